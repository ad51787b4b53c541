"""Which attention the files of transformers can describe, and how our configs write it."""

from __future__ import annotations

from ..attention import Attention, LocalAttention, SoftmaxAttention
from ..errors import NotSupported
from ..layers import MultiHead
from ..models import Model
from ..patterns import Full


def softmax_spec(dropout: float) -> str:
    """Softmax attention with dropout, as our configs write it."""
    return f"softmax(dropout={dropout})" if dropout else "softmax"


def refuse_overrides(model: Model) -> None:
    """These architectures have one kind of attention in transformers, so nothing may have replaced it."""
    if model.config.attention_overrides:
        overrides = "; ".join(f"{path} uses {spec}" for path, spec in model.config.attention_overrides)
        raise NotSupported(f"{overrides}; transformers' {model.facts.name} supports its own attention only: export the original model")


def plain_attention_dropout(model: Model) -> float:
    """The attention dropout of a model with plain softmax attention in all layers; anything else cannot be exported."""
    return window_and_dropout(model, windows=False)[1]


def window_and_dropout(model: Model, windows: bool = True) -> tuple[int | None, float]:
    """The sliding window (None for full attention) and the dropout that all layers share; anything else cannot be exported."""
    found = set()
    for name, part in model.named_modules():
        if not isinstance(part, MultiHead):
            continue
        plain = _plain(part.attention) if isinstance(part.within, Full) else None
        if plain is None or (plain[0] is not None and not windows):
            within = "" if isinstance(part.within, Full) else f" within {part.within}"
            raise NotSupported(
                f"{name} uses {part.attention.facts.name} attention{within}; transformers' {model.facts.name} supports plain softmax only: "
                'export model.with_attention("softmax"), fine-tuned if need be'
            )
        found.add(plain)
    if len(found) > 1:
        layers = "; ".join(f"window {window}, dropout {dropout}" for window, dropout in found)
        raise NotSupported(f"attention differs between layers: {layers}; transformers' {model.facts.name} has one kind for all")
    return found.pop() if found else (None, 0.0)


def _plain(attention: Attention) -> tuple[int | None, float] | None:
    """Window, counting the query itself, and dropout of softmax attention without other options; None for any other attention."""
    window = attention.radius + 1 if type(attention) is LocalAttention else None
    softmax = attention.softmax if type(attention) is LocalAttention else attention
    if type(softmax) is not SoftmaxAttention or (softmax.scale, softmax.softcap, softmax.sinks) != (None, None, 0):
        return None
    return window, softmax.dropout
