"""FNet in transformers' files."""

from __future__ import annotations

from typing import ClassVar

from ..encoders import SETTINGS, EncoderFamily
from ..family import SPANS, ClassifierHead, Classifiers, Settings
from ..names import Entry, layer


class FNetFamily(EncoderFamily):
    model = "fnet"
    model_types = ("fnet",)
    architecture = "FNet"
    pretraining = True
    settings = SETTINGS
    extra_table = tuple(layer("embedding.projection", "embeddings.projection"))
    classifiers: ClassVar[Classifiers] = {
        "text": ClassifierHead("FNetForSequenceClassification", pooler="fnet.pooler.dense"),
        "token": ClassifierHead("FNetForTokenClassification", pooler="fnet.pooler.dense"),
        "span": ClassifierHead("FNetForQuestionAnswering", SPANS, "fnet.pooler.dense"),
    }

    def difference(self, settings: Settings) -> str:
        return "transformers mixes padding into all tokens of a row; here it does so only if n_B is left out"

    def mixer_table(self, i: int) -> list[Entry]:
        """The Fourier transform has no parameters, the norm after it has."""
        return layer(f"blocks.{i}.around_mixer.over", f"encoder.layer.{i}.fourier.output.LayerNorm")
