"""Rotary embeddings in config.json: rope_parameters, and the keys of older files, with the precedence of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadConfig
from .hf_config import HFConfig

ROPE_TYPES: dict[str, tuple[str, ...]] = {  # rope_type → its parameters in config.json, in the order of `Rotary(stretch=…)`
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rotary_settings(
    hf: HFConfig, *, base_key: str = "rope_theta", part_key: str = "partial_rotary_factor", part: float = 1.0
) -> dict[str, Any]:
    """Base, stretch and `part`, the share of the features of a head that is rotated, of a model with one rotary embedding for all layers.

    `rope_scaling` replaces `rope_parameters`; what is inside them goes before the keys outside (`base_key`, `part_key`) and the default.
    """
    rope: Mapping[str, Any] = hf.get("rope_scaling") or hf["rope_parameters"] or {}
    base, share = rope.get("rope_theta", hf.get(base_key, 10_000.0)), rope.get("partial_rotary_factor", hf.get(part_key, part))
    length = hf["max_position_embeddings"]
    return {**stretch_settings(rope, length), "base": _positive("rope_theta", base), "part": _positive("partial_rotary_factor", share)}


def stretch_settings(rope: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Read how rotary angles are scaled."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise BadConfig(f"config.json has rope_type={str(kind)[:60]!r}; supported are {', '.join(ROPE_TYPES)}")
    values = {"original_max_position_embeddings": length, **rope}
    missing = [name for name in ROPE_TYPES[kind] if name not in values]
    if missing:
        raise BadConfig(f"config.json has rope_type={kind!r} and lacks {', '.join(missing)}")
    return {"stretch": tuple(_positive(name, values[name]) for name in ROPE_TYPES[kind])}


def rotary_config(base: float, stretch: tuple[int | float, ...], **more: Any) -> dict[str, Any]:
    """The value of rope_parameters."""
    kind = next(kind for kind, names in ROPE_TYPES.items() if len(names) == len(stretch))
    return {"rope_type": kind, "rope_theta": base, **dict(zip(ROPE_TYPES[kind], stretch, strict=True)), **more}


def _positive(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadConfig(f"config.json has {name}={str(value)[:60]!r}; expected a number above 0")
    return value
