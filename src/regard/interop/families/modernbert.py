"""ModernBERT in transformers' files. Its classification heads, which have a layer and a norm more than ours, are not read."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig
from ...models import ModernBert
from ..attention import Softmax, layer_attention, same_in_all, specs, window_config
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, LayerNames, block_layers, tensor
from ..rotary import rotary_config, stretch_settings
from .llama import layer_windows

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "hidden": "intermediate_size",
    "eps": "norm_eps",
    "dropout": "mlp_dropout",
}
BLOCK: LayerNames = {
    "mixer.qkv": "attn.Wqkv",
    "mixer.out": "attn.Wo",
    "feedforward.up": "mlp.Wi",
    "feedforward.down": "mlp.Wo",
    "around_mixer.before": "attn_norm",
    "around_feedforward.before": "mlp_norm",
}


def _base(hf: HFConfig, kind: str, key: str, default: float) -> Any:
    """The base of the rotary angles in layers of one kind; `key` is its name in older files."""
    rope = {**((hf["rope_parameters"] or {}).get(kind) or {}), **(hf.get("rope_scaling") or {})}
    if stretch_settings(rope, 1)["stretch"] or rope.get("partial_rotary_factor", 1) != 1:
        raise BadConfig("config.json has scaled or partial rotary embeddings, which are not supported for a modernbert")
    return rope.get("rope_theta", hf.get(key, default))


class ModernBertFamily(Family):
    model = "modernbert"
    model_types = ("modernbert",)
    settings = SETTINGS
    prefix = "model"
    heads = ("head.", "decoder.")
    base = "ModernBertModel"
    tied = (("decoder.weight", "embeddings.tok_embeddings.weight"),)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(
            attention_bias=False, mlp_bias=False, norm_bias=False, classifier_bias=False, decoder_bias=True, classifier_activation="gelu"
        )
        depth, types = hf["num_hidden_layers"], hf["layer_types"]
        if types is None:
            every = hf.get("global_attn_every_n_layers", 3)
            types = ["sliding_attention" if i % every else "full_attention" for i in range(min(depth, 10_000))]
        windows = layer_windows(types, depth, hf["local_attention"] // 2 + 1)  # transformers counts both sides of the query
        return {
            "activation": hf.activation("hidden_activation"),
            "attention": specs([Softmax(window, hf["attention_dropout"] or 0.0) for window in windows]),
            "mlm_head": "head.dense.weight" in hf.tensor_names,
            "base": _base(hf, "full_attention", "global_rope_theta", 160_000.0),
            "local_base": _base(hf, "sliding_attention", "local_rope_theta", 10_000.0),
        }

    def more_config(self, model: ModernBert) -> dict[str, Any]:
        c, layers = model.config, layer_attention(model, "window")
        windows = window_config(model, layers)
        return {
            "architectures": ["ModernBertForMaskedLM" if c.mlm_head else "ModernBertModel"],
            "hidden_activation": hf_activation(c.activation),
            "layer_types": windows["layer_types"],
            "local_attention": 2 * ((windows["sliding_window"] or 65) - 1),
            "rope_parameters": {
                "full_attention": rotary_config(c.base, (), c.max_length),
                "sliding_attention": rotary_config(c.local_base, (), c.max_length),
            },
            "attention_dropout": same_in_all(model, [layer._replace(window=None) for layer in layers]).dropout,
            "embedding_dropout": c.dropout,
        }

    def table(self, settings: Settings) -> list[Entry]:
        blocks = block_layers(settings["depth"], "layers", BLOCK, bias=False)
        entries = [
            tensor("embedding.token.weight", "embeddings.tok_embeddings.weight"),
            tensor("embedding_norm.weight", "embeddings.norm.weight"),
            *(entry for entry in blocks if entry.name != "blocks.0.around_mixer.before.weight"),  # the embeddings are normed
            tensor("norm.weight", "final_norm.weight"),
        ]
        head = {"mlm_head.0.weight": "head.dense.weight", "mlm_head.1.weight": "head.norm.weight", "mlm_bias": "decoder.bias"}
        return entries + [tensor(ours, hf) for ours, hf in head.items() if settings["mlm_head"]]
