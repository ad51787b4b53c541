"""FNet in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..models import FNet
from ._encoders import PLACES, Plain, embedding_table, encoder_config, encoder_settings, heads_table, prefixed, thinking_table, tied
from ._names import Line, both, ours, theirs

TYPES = ("fnet",)
NAMES = ("fnet",)
BUFFERS = (PLACES, r"^cls\.predictions\.decoder\.(weight|bias)$", r"\.fourier\.self\.dft_mat_(hidden|seq)$")  # matrices of the transform


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = encoder_settings(hf, activation="gelu_new")
    return "fnet", {key: value for key, value in settings.items() if key not in ("heads", "attention")}


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "fnet")
    tied(hf, "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight")
    tied(hf, "cls.predictions.decoder.bias", "cls.predictions.bias")
    return ours(hf, _table(settings))


def exported(model: FNet) -> tuple[dict[str, Any], dict[str, Tensor]]:
    c = model.config
    kind = "FNetForPreTraining" if c.words and c.sentences else "FNetForMaskedLM" if c.words else "FNetModel"
    tensors = theirs(model.state_dict(), _table(vars(c)))
    return encoder_config(model, "fnet", kind), prefixed(tensors, "" if kind == "FNetModel" else "fnet")


def _table(settings: Mapping[str, Any]) -> list[Line]:
    mixing = [
        each
        for i in range(settings["depth"])
        for each in both(f"blocks.{i}.around_mixer.over", f"encoder.layer.{i}.fourier.output.LayerNorm")
    ]
    return [
        *embedding_table(),
        *both("embedding.projection", "embeddings.projection"),
        *mixing,
        *thinking_table(settings["depth"]),
        *heads_table(settings),
    ]
