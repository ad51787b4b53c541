"""BigBird in the files of transformers."""

from __future__ import annotations

from typing import Any

from ..errors import NotSupported
from ..models import BigBird
from ._attention import refuse_overrides
from ._encoders import HEADS_AND_DROPOUT, encoder_family
from ._family import ClassifierHead
from ._hf_config import HFConfig


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(use_bias=True, rescale_embeddings=False)
    sparse = hf.get("attention_type", "block_sparse") == "block_sparse"
    # one block as long as the context is full attention
    return {"block": hf.get("block_size", 64) if sparse else hf["max_position_embeddings"], "drawn": False}


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
    HEADS_AND_DROPOUT | {"random": ("num_random_blocks", 3)},
    more_settings,
    more_config,
    prefix="bert",
    activation="gelu_new",
    pooler="pooler",
    # not BigBirdForSequenceClassification: its head reads the first token through gelu, ours through tanh
    classifiers={"token": ClassifierHead("BigBirdForTokenClassification", pooler="bert.pooler")},
)
