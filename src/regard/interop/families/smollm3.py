"""SmolLM 3 in transformers' files: Llama with rotary embeddings in some layers only."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig
from ..attention import layer_attention, same_in_all, window_config
from ..hf_config import HFConfig
from .llama import LlamaFamily, attention_bias, decoder_config, layer_windows


def _rotated(hf: HFConfig) -> list[bool]:
    depth, interval, layers = hf["num_hidden_layers"], hf["no_rope_layer_interval"], hf["no_rope_layers"]
    if layers is None:
        return [bool((i + 1) % interval) for i in range(min(depth, 10_000))]
    if not isinstance(layers, list) or len(layers) != depth or not {0, 1} >= set(layers):
        raise BadConfig(
            f"config.json has no_rope_layers={str(layers)[:60]}; expected 1 (rotary embeddings) or 0 for each of {depth} layers"
        )
    return [bool(each) for each in layers]


class SmolLM3Family(LlamaFamily):
    model_types = ("smollm3",)
    rope_theta = 2_000_000.0

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        return super().more_settings(hf) | {"rotated": _rotated(hf)}

    def windows(self, hf: HFConfig) -> list[int | None]:
        depth, window, types, used = hf["num_hidden_layers"], hf["sliding_window"], hf["layer_types"], hf["use_sliding_window"]
        if types is not None:
            return layer_windows(types, depth, window)
        return [window if used and not rotated else None for rotated in _rotated(hf)]

    def more_config(self, model: Any) -> dict[str, Any]:
        c, layers = model.config, layer_attention(model, "window")
        windows = window_config(model, layers)
        return {
            **decoder_config(model, "SmolLM3ForCausalLM", same_in_all(model, [layer._replace(window=None) for layer in layers])),
            "attention_bias": attention_bias(model),
            "no_rope_layers": [int(c.rotated[i % len(c.rotated)]) for i in range(c.depth)],
            "use_sliding_window": windows["sliding_window"] is not None,
            **windows,
        }

    def fits(self, model: Any) -> bool:
        c = model.config
        return not all(c.rotated) and c.norm == "rms" and c.part == 1 and not c.qk_norm
