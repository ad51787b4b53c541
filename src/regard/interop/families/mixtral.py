"""Mixtral and Qwen 3's mixtures of experts in transformers' files, which hold each expert by itself."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ..attention import layer_attention, same_in_all
from ..family import Settings
from ..hf_config import HFConfig
from ..names import Entry, tensor
from .llama import LlamaFamily, attention_bias, decoder_config


class MixtralFamily(LlamaFamily):
    model = "mixtral"
    model_types: tuple[str, ...] = ("mixtral",)
    settings = LlamaFamily.settings | {"chosen": "num_experts_per_tok"}
    rope_theta = 1_000_000.0
    mixture = "block_sparse_moe"  # transformers' name of the layer, and its names of gate, value and output of an expert
    parts = ("w1", "w3", "w2")

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        experts, router = self.experts(hf), f"model.layers.0.{self.mixture}.gate.weight"
        if hf.rows(router) != experts:
            raise BadConfig(f"config.json describes {experts} experts, and {router} has {hf.rows(router)} rows; expected one for each")
        return super().more_settings(hf) | {"experts": experts}

    def experts(self, hf: HFConfig) -> Any:
        return hf["num_local_experts"]

    def more_config(self, model: Any) -> dict[str, Any]:
        c, attention = model.config, same_in_all(model, layer_attention(model, "window"))
        if not c.renormalized or c.qkv_bias or c.out_bias or c.part != 1 or c.norm != "rms" or not all(c.rotated):
            raise NotSupported(
                f"a Mixtral with renormalized={c.renormalized}, qkv_bias={c.qkv_bias}, out_bias={c.out_bias}, part={c.part}, norm={c.norm!r}, "
                f"rotated={c.rotated}; transformers' has weights that sum to one, no biases, RMS norms, and rotary embeddings of all features in all layers"
            )
        return {
            **decoder_config(model, "MixtralForCausalLM", attention),
            "num_local_experts": c.experts,
            "sliding_window": attention.window,
        }

    def feedforward_table(self, block: str, hf: str, settings: Settings) -> list[Entry]:
        moe, experts = f"{hf.removesuffix('.mlp')}.{self.mixture}", range(settings["experts"])
        gate, value, out = self.parts
        up = [f"{moe}.experts.{e}.{part}.weight" for e in experts for part in (gate, value)]
        down = [f"{moe}.experts.{e}.{out}.weight" for e in experts]
        return [
            tensor(f"{block}.feedforward.router.weight", f"{moe}.gate.weight"),
            Entry(f"{block}.feedforward.up_EFD", tuple(up), stacked=settings["experts"]),
            Entry(f"{block}.feedforward.down_EDF", tuple(down), stacked=settings["experts"]),
        ]

    def fits(self, model: Any) -> bool:
        return not model.config.qk_norm


class Qwen3MoeFamily(MixtralFamily):
    model_types = ("qwen3_moe",)
    settings = MixtralFamily.settings | {"hidden": "moe_intermediate_size", "renormalized": "norm_topk_prob"}
    rope_theta = 10_000.0
    mixture = "mlp"
    parts = ("gate_proj", "up_proj", "down_proj")

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(decoder_sparse_step=1)
        hf["intermediate_size"]  # of layers without experts, of which there are none
        if hf["mlp_only_layers"] not in (None, []):
            raise BadConfig(f"config.json has mlp_only_layers={hf['mlp_only_layers']}; only [] is supported: experts in all layers")
        return super().more_settings(hf) | {"qk_norm": True}

    def experts(self, hf: HFConfig) -> Any:
        return hf.get("num_local_experts", hf["num_experts"])

    def windows(self, hf: HFConfig) -> list[int | None]:
        window, used = hf["sliding_window"], hf["use_sliding_window"]
        return [window if used else None]

    def more_config(self, model: Any) -> dict[str, Any]:
        c, attention = model.config, same_in_all(model, layer_attention(model, "window"))
        if c.part != 1 or c.norm != "rms" or not all(c.rotated):
            raise NotSupported(
                f"a Mixtral with qk_norm, part={c.part}, norm={c.norm!r}, rotated={c.rotated}; transformers has Qwen 3 with RMS norms, and rotary "
                "embeddings of all features in all layers"
            )
        return {
            **decoder_config(model, "Qwen3MoeForCausalLM", attention),
            "attention_bias": attention_bias(model),
            "num_experts": c.experts,
            "intermediate_size": c.hidden,  # of layers without experts, of which there are none
            "sliding_window": attention.window,
            "use_sliding_window": attention.window is not None,
            "mlp_only_layers": [],
            "decoder_sparse_step": 1,
        }

    def fits(self, model: Any) -> bool:
        return bool(model.config.qk_norm)
