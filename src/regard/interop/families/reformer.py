"""Reformer in transformers' files."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import BadConfig
from ...models import Reformer
from ..attention import refuse_overrides
from ..constants import is_mask_value
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, layer, tensor

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "attention_head_size",
    "hidden": "feed_forward_size",
    "layers": "attn_layers",
    "rounds": "num_hashes",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "local_attention_probs_dropout_prob",
    "eps": "layer_norm_eps",
    "causal": "is_decoder",
}
KINDS = ("local", "lsh")  # our pairs have a value for layers of each kind, config.json has two keys
BY_KIND = {"chunk": "attn_chunk_length", "before": "num_chunks_before", "after": "num_chunks_after"}


class ReformerFamily(Family):
    model = "reformer"
    model_types = ("reformer",)
    settings = SETTINGS
    prefix = "reformer"
    base = "ReformerModel"
    constants = (
        (r"^lm_head\.bias$", lambda x, settings: True),  # transformers never adds it
        (r"\.(self_)?mask_value_float(16|32)$", is_mask_value),
    )

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(lsh_attention_probs_dropout_prob=0.0)
        longest = hf["max_position_embeddings"]
        if any(hf[f"{kind}_attn_chunk_length"] > longest for kind in KINDS):
            raise BadConfig(f"config.json has chunks that are longer than max_position_embeddings={longest}")
        buckets, seed = hf["num_buckets"], hf["hash_seed"]
        shape, dims = hf["axial_pos_shape"], hf["axial_pos_embds_dim"]
        return {
            "axial": [*shape, *dims] if hf["axial_pos_embds"] else [],
            **{ours: [hf[f"{kind}_{key}"] for kind in KINDS] for ours, key in BY_KIND.items()},
            "buckets": [] if buckets is None else [buckets] if isinstance(buckets, int) else list(buckets),
            "seed": [] if seed is None else [seed],
            "activation": hf.activation("hidden_act"),
            "mlm_head": "lm_head.decoder.weight" in hf.tensor_names,
        }

    def more_config(self, model: Reformer) -> dict[str, Any]:
        refuse_overrides(model)
        c = model.config
        architecture = ("ReformerModelWithLMHead" if c.causal else "ReformerForMaskedLM") if c.mlm_head else "ReformerModel"
        return {
            "architectures": [architecture],
            "axial_pos_embds": bool(c.axial),
            **({"axial_pos_shape": list(c.axial[:2]), "axial_pos_embds_dim": list(c.axial[2:])} if c.axial else {}),
            **{f"{kind}_{key}": getattr(c, ours)[n] for ours, key in BY_KIND.items() for n, kind in enumerate(KINDS)},
            "num_buckets": None if not c.buckets else c.buckets[0] if len(c.buckets) == 1 else list(c.buckets),
            "hash_seed": c.seed[0] if c.seed else None,
            "lsh_attention_probs_dropout_prob": 0.0,
            "hidden_act": hf_activation(c.activation),
            "tie_word_embeddings": False,
        }

    def difference(self, settings: Settings) -> str:
        return "" if settings["seed"] else "it has no hash_seed, so its hashes differ between calls, here as in transformers"

    def table(self, settings: Settings) -> list[Entry]:
        entries = [tensor("token.weight", "embeddings.word_embeddings.weight"), *layer("norm", "encoder.layer_norm")]
        positions = "embeddings.position_embeddings"
        if settings["axial"]:
            entries += [
                tensor("positions.0.weight", f"{positions}.weights.0", singletons=(1,)),
                tensor("positions.1.weight", f"{positions}.weights.1", singletons=(0,)),
            ]
        else:
            entries += [tensor("positions.0.weight", f"{positions}.embedding.weight")]
        for i, kind in enumerate(settings["layers"]):
            block, hf = f"stack.blocks.{i}", f"encoder.layers.{i}"
            projections = ("query", "key", "value") if kind == "local" else ("query_key", "value")
            entries += [
                tensor(f"{block}.mixer.qkv.weight", *(f"{hf}.attention.self_attention.{part}.weight" for part in projections)),
                tensor(f"{block}.mixer.out.weight", f"{hf}.attention.output.dense.weight"),
                *layer(f"{block}.before_mixer", f"{hf}.attention.layer_norm"),
                *layer(f"{block}.before_feedforward", f"{hf}.feed_forward.layer_norm"),
                *layer(f"{block}.feedforward.up", f"{hf}.feed_forward.dense.dense"),
                *layer(f"{block}.feedforward.down", f"{hf}.feed_forward.output.dense"),
            ]
        return entries + ([tensor("output.weight", "lm_head.decoder.weight")] if settings["mlm_head"] else [])

    def extra_tensors(self, settings: Settings) -> dict[str, Tensor]:
        """A bias that is in the files, but that transformers never adds."""
        return {"lm_head.bias": torch.zeros(settings["vocab_size"])} if settings["mlm_head"] else {}
