"""BigBird in transformers' files."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import BadConfig, NotSupported
from ...models import BigBird
from ..attention import refuse_overrides
from ..encoders import HEADS_AND_DROPOUT, EncoderFamily
from ..family import ClassifierHead, Classifiers
from ..hf_config import HFConfig


class BigBirdFamily(EncoderFamily):
    model = "big_bird"
    model_types = ("big_bird",)
    prefix = "bert"
    architecture = "BigBird"
    pretraining = True
    settings = HEADS_AND_DROPOUT | {"random": "num_random_blocks"}
    pooler = "pooler"
    # not BigBirdForSequenceClassification: its head reads the first token through gelu, ours through tanh
    classifiers: ClassVar[Classifiers] = {"token": ClassifierHead("BigBirdForTokenClassification", pooler="bert.pooler")}

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        kind, block = hf["attention_type"], hf["block_size"]
        if kind not in ("block_sparse", "original_full"):
            raise BadConfig(f"config.json has attention_type={kind!r}; expected 'block_sparse' or 'original_full'")
        # one block as long as the context is full attention
        return super().more_settings(hf) | {"block": block if kind == "block_sparse" else hf["max_position_embeddings"], "drawn": False}

    def more_config(self, model: BigBird) -> dict[str, Any]:
        refuse_overrides(model)
        c = model.config
        if c.drawn and c.random and c.max_length > c.short:
            raise NotSupported(
                f"this BigBird attends to random blocks, which transformers omits in evaluation: results for more than {c.short} tokens "
                "would differ; train it with drawn=False"
            )
        kind = "block_sparse" if c.max_length > c.short else "original_full"
        return super().more_config(model) | {"attention_type": kind, "block_size": c.block}
