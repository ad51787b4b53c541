"""BigBird in transformers' files."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ...models import BigBird
from ..attention import refuse_overrides
from ..encoders import HEADS_AND_DROPOUT, encoder_family
from ..family import ClassifierHead
from ..hf_config import HFConfig


def more_settings(hf: HFConfig) -> dict[str, Any]:
    kind, block = hf["attention_type"], hf["block_size"]
    if kind not in ("block_sparse", "original_full"):
        raise BadConfig(f"config.json has attention_type={kind!r}; expected 'block_sparse' or 'original_full'")
    # one block as long as the context is full attention
    return {"block": block if kind == "block_sparse" else hf["max_position_embeddings"], "drawn": False}


def more_config(model: BigBird) -> dict[str, Any]:
    refuse_overrides(model)
    c = model.config
    if c.drawn and c.random and c.max_length > c.short:
        raise NotSupported(
            f"this BigBird attends to random blocks, which transformers omits in evaluation: results for more than {c.short} tokens "
            "would differ; train it with drawn=False"
        )
    return {"attention_type": "block_sparse" if c.max_length > c.short else "original_full", "block_size": c.block}


BIG_BIRD = encoder_family(
    "big_bird",
    "BigBird",
    HEADS_AND_DROPOUT | {"random": "num_random_blocks"},
    more_settings,
    more_config,
    prefix="bert",
    pooler="pooler",
    # not BigBirdForSequenceClassification: its head reads the first token through gelu, ours through tanh
    classifiers={"token": ClassifierHead("BigBirdForTokenClassification", pooler="bert.pooler")},
)
