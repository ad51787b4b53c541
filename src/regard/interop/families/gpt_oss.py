"""gpt-oss in transformers' files, whose experts are stored as one tensor, (in, out)."""

from __future__ import annotations

from typing import Any

from ...attention import LocalAttention
from ...errors import NotSupported
from ...layers.spec import Spec
from ..attention import Softmax, layer_attention, same_in_all, specs, window_config
from ..family import Settings
from ..hf_config import HFConfig
from ..names import Entry, layer, tensor
from ..rotary import Rope, rotary_settings
from .llama import LlamaFamily, attention_bias, decoder_config, layer_windows

ROPE: Rope = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip
FACTORS = {"experts": "num_local_experts", "chosen": "num_experts_per_tok", "alpha": "swiglu_alpha", "limit": "swiglu_limit"}


class GptOssFamily(LlamaFamily):
    model = "gpt_oss"
    model_types = ("gpt_oss",)
    settings = LlamaFamily.settings | FACTORS
    rope_theta = 150_000.0

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        layers = [Softmax(window, hf["attention_dropout"] or 0.0, sinks=hf["num_attention_heads"]) for window in self.windows(hf)]
        return super().more_settings(hf) | {"attention": specs(layers)}

    def windows(self, hf: HFConfig) -> list[int | None]:
        depth, types = hf["num_hidden_layers"], hf["layer_types"]
        if types is None:
            types = ["full_attention" if i % 2 else "sliding_attention" for i in range(min(depth, 10_000))]
        return layer_windows(types, depth, hf["sliding_window"])

    def rotary(self, hf: HFConfig) -> dict[str, Any]:
        rope = hf.get("rope_scaling") or hf["rope_parameters"]
        found = rotary_settings(hf, ROPE if rope is None else rope, base=self.rope_theta)
        self.check_part(found)
        return found

    def more_config(self, model: Any) -> dict[str, Any]:
        c, layers = model.config, layer_attention(model, "window", "sinks")
        attention = same_in_all(model, [layer._replace(window=None) for layer in layers])
        if attention.sinks != c.heads or not c.renormalized or c.qk_norm or c.part != 1 or c.norm != "rms" or not all(c.rotated):
            raise NotSupported(
                f"a gpt-oss with sinks={attention.sinks}, renormalized={c.renormalized}, qk_norm={c.qk_norm}, part={c.part}, norm={c.norm!r}, "
                f"rotated={c.rotated}; transformers' has a sink for each of {c.heads} heads, weights that sum to one, no norms of q and k, RMS norms, "
                "and rotary embeddings of all features in all layers"
            )
        return {
            **decoder_config(model, "GptOssForCausalLM", attention),
            "attention_bias": attention_bias(model),
            **window_config(model, layers),
        }

    def attention_table(self, block: str, hf: str, settings: Settings) -> list[Entry]:
        line = settings["attention"][int(block.rpartition(".")[2]) % len(settings["attention"])]
        sinks = "attention.softmax.sink_H" if Spec.read(line).kind is LocalAttention else "attention.sink_H"
        return [*super().attention_table(block, hf, settings), tensor(f"{block}.mixer.{sinks}", f"{hf}.sinks")]

    def feedforward_table(self, block: str, hf: str, settings: Settings) -> list[Entry]:
        ours = f"{block}.feedforward"
        return [
            *layer(f"{ours}.router", f"{hf}.router"),
            Entry(f"{ours}.up_EFD", (f"{hf}.experts.gate_up_proj",), transposed=True),
            tensor(f"{ours}.up_bias_EF", f"{hf}.experts.gate_up_proj_bias"),
            Entry(f"{ours}.down_EDF", (f"{hf}.experts.down_proj",), transposed=True),
            tensor(f"{ours}.down_bias_ED", f"{hf}.experts.down_proj_bias"),
        ]

    def fits(self, model: Any) -> bool:
        return True
