"""Rotary embeddings in config.json: rope_parameters, and the keys of older files, with the precedence of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import BadConfig, NotSupported
from ..layers.positions.scaling import Stretch, kind_of
from .hf_config import HFConfig

Rope = Mapping[str, Any]  # rope_parameters
LENGTH = "original_max_position_embeddings"
NEEDED = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",),
          "dynamic": ("factor",), "longrope": ("short_factor", "long_factor")}  # fmt: skip


def rotary_settings(
    hf: HFConfig,
    rope: Rope | None = None,
    *,
    base_key: str = "rope_theta",
    base: float = 10_000.0,
    part_key: str = "partial_rotary_factor",
    part: float = 1.0,
) -> dict[str, Any]:
    """Base, stretch and `part`, the share of the features of a head that is rotated, of a model with one rotary embedding for all layers.

    What is inside `rope` goes before the keys outside (`base_key`, `part_key`), and those before the defaults (`base`, `part`).
    """
    rope = rope_parameters(hf) if rope is None else rope
    base, share = rope.get("rope_theta", hf.get(base_key, base)), rope.get("partial_rotary_factor", hf.get(part_key, part))
    found = {**stretch_settings(rope, hf["max_position_embeddings"]), "base": _positive("rope_theta", base)}
    if base == 1 and kind_of(found["stretch"])[0] == "yarn":
        raise BadConfig("config.json has rope_type='yarn' with rope_theta=1, where no angle is slower than another")
    return found | {"part": _positive("partial_rotary_factor", share)}


def rope_parameters(hf: HFConfig) -> Rope:
    """`rope_parameters`, or what replaces them in older files."""
    return hf.get("rope_scaling") or hf["rope_parameters"] or {}


def stretch_settings(rope: Rope, length: int) -> dict[str, Any]:
    """Read how rotary angles are scaled, in a model for texts of `length` tokens."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in NEEDED:
        raise BadConfig(f"config.json has rope_type={str(kind)[:60]!r}; supported are {', '.join(NEEDED)}")
    missing = [name for name in NEEDED[kind] if name not in rope]
    if missing:
        raise BadConfig(f"config.json has rope_type={kind!r} and lacks {', '.join(missing)}")
    return {"stretch": _stretch(kind, {LENGTH: length, **rope}, length)}


def _stretch(kind: str, rope: Rope, length: int) -> Stretch:
    if kind in ("default", "linear"):
        return tuple(_positive(name, rope[name]) for name in NEEDED[kind])
    if kind == "dynamic":
        return "dynamic", _positive("factor", rope["factor"]), length
    original = _positive(LENGTH, rope[LENGTH])
    if kind == "llama3":
        return (*(_positive(name, rope[name]) for name in NEEDED[kind]), original)
    given = rope.get("factor")
    factor = length / original if given is None else _positive("factor", given)
    gain = rope.get("attention_factor")
    if kind == "longrope":
        if gain is None:
            gain = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        short, long = ([_positive(name, value) for value in _numbers(name, rope[name])] for name in NEEDED[kind])
        if len(short) != len(long):
            raise BadConfig(
                f"config.json has {len(short)} numbers of short_factor and {len(long)} of long_factor; expected as many of both"
            )
        return "longrope", original, _positive("attention_factor", gain), *short, *long
    if gain is None:
        all_features, some = rope.get("mscale_all_dim"), rope.get("mscale")
        gain = _gain(factor, some) / _gain(factor, all_features) if some and all_features else _gain(factor, 1.0)
    low, high = rope.get("beta_slow") or 1, rope.get("beta_fast") or 32
    turns = _positive("beta_slow", low), _positive("beta_fast", high)
    return "yarn", factor, *turns, original, _positive("attention_factor", gain), int(bool(rope.get("truncate", True)))


def _gain(factor: float, share: Any) -> float:
    """YaRN's factor of queries and keys."""
    return 1.0 if factor <= 1 else 0.1 * _positive("mscale", share) * math.log(factor) + 1.0


def rotary_config(base: float, stretch: Stretch, length: int, **more: Any) -> dict[str, Any]:
    """The value of rope_parameters, of a model for texts of `length` tokens."""
    kind, numbers = kind_of(stretch)
    written: dict[str, Any] = {"rope_type": kind or "default", "rope_theta": base}
    if kind == "longrope":
        original, gain, *divisors = numbers
        half = len(divisors) // 2
        written |= {"short_factor": divisors[:half], "long_factor": divisors[half:], LENGTH: int(original), "attention_factor": float(gain)}
    elif kind == "yarn":
        factor, low, high, original, gain, whole = numbers
        written |= {"factor": factor, "beta_slow": low, "beta_fast": high, LENGTH: int(original), "truncate": bool(whole)}
        written |= {} if gain == _gain(factor, 1.0) else {"attention_factor": float(gain)}
    elif kind == "dynamic" and numbers[1] != length:
        raise NotSupported(f"stretch={stretch} in a model for {length} tokens; transformers scales dynamically from that length on")
    else:
        written |= dict(zip((*NEEDED[kind or "default"], LENGTH), numbers if kind != "dynamic" else numbers[:1], strict=False))
    return written | more


def _numbers(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise BadConfig(f"config.json has {name}={str(values)[:60]!r}; expected a list of numbers")
    return values


def _positive(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadConfig(f"config.json has {name}={str(value)[:60]!r}; expected a number above 0")
    return value
