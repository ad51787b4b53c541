"""Nyströmformer in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import BadConfig
from ..models import Nystromformer
from ._encoders import (
    PLACES,
    Plain,
    embedding_table,
    encoder_config,
    encoder_settings,
    heads_table,
    looking_table,
    prefixed,
    thinking_table,
    tied,
    unswapped,
)
from ._names import Line, expect, line, ours, theirs

TYPES = ("nystromformer",)
NAMES = ("nystromformer",)
BUFFERS = (PLACES, r"^cls\.predictions\.decoder\.(weight|bias)$")


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """With as many landmarks as `segment_means_seq_len` attention over there is exact, at any length; so it is here with one a place."""
    expect(hf, inv_coeff_init_option=False)
    settings = encoder_settings(hf, activation="gelu_new", eps=1e-5)
    landmarks, segments, kernel = hf.get("num_landmarks", 64), hf.get("segment_means_seq_len", 64), hf.get("conv_kernel_size", 65)
    if kernel is None:
        raise BadConfig("config.json says conv_kernel_size=null; Nystromformer here has the convolution")
    del settings["attention"]
    return "nystromformer", settings | {
        "landmarks": settings["length"] if landmarks == segments else landmarks,
        "segmented": segments,
        "kernel": kernel,
    }


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "nystromformer")
    tied(hf, "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight")
    tied(hf, "cls.predictions.decoder.bias", "cls.predictions.bias")
    return {name: x.flatten(1) if name.endswith("c_HT") else x for name, x in ours(hf, _table(settings)).items()}


def exported(model: Nystromformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Over there landmarks are means of equal segments of texts of one length."""
    c = model.config
    unswapped(model)
    kind = "NystromformerForMaskedLM" if c.words else "NystromformerModel"
    landmarks = c.segmented if c.landmarks >= c.length else c.landmarks
    if c.segmented % landmarks:
        raise BadConfig(f"transformers cuts {c.segmented} tokens (`segmented`) into {landmarks} equal segments; choose a multiple")
    more = {"num_landmarks": landmarks, "segment_means_seq_len": c.segmented, "conv_kernel_size": c.kernel, "pad_token_id": 1}
    state = {name: x[:, None, :, None] if name.endswith("c_HT") else x for name, x in model.state_dict().items()}
    return encoder_config(model, "nystromformer", kind) | more, prefixed(theirs(state, _table(vars(c))), "nystromformer" if c.words else "")


def _table(settings: Mapping[str, Any]) -> list[Line]:
    depth = settings["depth"]
    bands = [line(f"blocks.{i}.mixer.attention.c_HT", f"encoder.layer.{i}.attention.self.conv.weight") for i in range(depth)]
    return [*embedding_table(), *looking_table(depth), *bands, *thinking_table(depth), *heads_table(settings)]
