"""Attention that transformers' files can describe, and its form in our configs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..attention import LocalAttention, SoftmaxAttention
from ..errors import NotSupported
from ..layers import MultiHead
from ..models import Model
from ..patterns import Full


class Softmax(NamedTuple):
    """Softmax attention of a layer: its sliding window, which counts the query itself (None: full attention), and its options."""

    window: int | None = None
    dropout: float = 0.0
    scale: float | None = None
    softcap: float | None = None
    sinks: int = 0  # heads with a sink

    def __str__(self) -> str:
        """Write it as our configs do; options that change nothing are left out."""
        options = {name: value for name, value in self._asdict().items() if name != "window" and value}
        if self.window is not None:
            options = {"radius": self.window - 1, **options}
        name = "softmax" if self.window is None else "local"
        return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})" if options else name


def refuse_overrides(model: Model) -> None:
    """Refuse a model with replaced mechanisms: these architectures have one kind of attention in transformers."""
    if model.config.attention_overrides:
        overrides = "; ".join(f"{path} uses {spec}" for path, spec in model.config.attention_overrides)
        raise NotSupported(f"{overrides}; transformers' {model.facts.name} supports its own attention only: export the original model")


def layer_attention(model: Model, *may_have: str) -> list[Softmax]:
    """Softmax attention of each layer; `may_have` are the options besides dropout that the target supports. Others are refused."""
    found = []
    for name, part in model.named_modules():
        if not isinstance(part, MultiHead):
            continue
        attention = part.attention
        window = attention.radius + 1 if type(attention) is LocalAttention else None
        softmax = attention.softmax if type(attention) is LocalAttention else attention
        within = "" if isinstance(part.within, Full) else f" within {part.within}"
        if type(softmax) is not SoftmaxAttention or (softmax.sinks and "sinks" not in may_have) or within:
            raise NotSupported(
                f"{name} uses {attention.facts.name} attention{within}; transformers' {model.facts.name} supports plain softmax only: "
                'export model.with_attention("softmax"), fine-tuned if need be'
            )
        layer = Softmax(window, softmax.dropout, softmax.scale, softmax.softcap, softmax.sinks)
        odd = [key for key, value in layer._asdict().items() if value != Softmax._field_defaults[key] and key not in ("dropout", *may_have)]
        if odd:
            raise NotSupported(f"{name} uses {layer}; transformers' {model.facts.name} has no {' and '.join(odd)} of attention")
        found.append(layer)
    return found


def same_in_all(model: Model, layers: list[Softmax]) -> Softmax:
    """The attention that all layers share."""
    if len(set(layers)) > 1:
        each = "; ".join(f"window {layer.window}, dropout {layer.dropout}" for layer in dict.fromkeys(layers))
        raise NotSupported(f"attention differs between layers: {each}; transformers' {model.facts.name} has one kind for all")
    return layers[0] if layers else Softmax()


def plain_attention_dropout(model: Model) -> float:
    """The attention dropout of a model with plain softmax attention in all layers; anything else cannot be exported."""
    return same_in_all(model, layer_attention(model)).dropout


def specs(layers: list[Softmax]) -> tuple[str, ...]:
    """Write them as our configs do: once if all are the same, else one per layer."""
    lines = tuple(map(str, layers))
    return lines[:1] if len(set(lines)) == 1 else lines


def window_config(model: Model, layers: list[Softmax]) -> dict[str, Any]:
    """The windows of layers as `layer_types` and `sliding_window` say them: a layer has the one window, or full attention."""
    windows = {layer.window for layer in layers} - {None}
    if len(windows) > 1:
        raise NotSupported(f"windows of {sorted(windows, key=str)} tokens; transformers' {model.facts.name} has one length for all layers")
    types = ["full_attention" if layer.window is None else "sliding_attention" for layer in layers]
    return {"layer_types": types, "sliding_window": windows.pop() if windows else None}
