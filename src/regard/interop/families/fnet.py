"""FNet in transformers' files."""

from __future__ import annotations

from ..encoders import SETTINGS, encoder_family
from ..family import SPANS, ClassifierHead
from ..names import Entry, layer


def mixer_table(i: int) -> list[Entry]:
    """The Fourier transform has no parameters, the norm after it has."""
    return layer(f"blocks.{i}.around_mixer.over", f"encoder.layer.{i}.fourier.output.LayerNorm")


FNET = encoder_family(
    "fnet",
    "FNet",
    SETTINGS,
    lambda hf: {},
    lambda model: {},
    mixer_table=mixer_table,
    extra_table=tuple(layer("embedding.projection", "embeddings.projection")),
    classifiers={
        "text": ClassifierHead("FNetForSequenceClassification", pooler="fnet.pooler.dense"),
        "token": ClassifierHead("FNetForTokenClassification", pooler="fnet.pooler.dense"),
        "span": ClassifierHead("FNetForQuestionAnswering", SPANS, "fnet.pooler.dense"),
    },
)
