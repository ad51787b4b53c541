"""What every model has, whatever it reads and says: facts, a config of plain values, and a name to be built by."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from ..attention import MECHANISMS, Attention
from ..errors import BadConfig, BadPattern, NotSupported, UnknownName
from ..layers import Block, MultiHead
from ..patterns import Full, Pattern, causal, full, lengths, parse


class Step(NamedTuple):
    """What one step of decoding says."""

    logits_BN: Tensor
    weights_BM: Tensor | None  # where it looked in the source: mean of the heads of the last cross-attention; None if there is none


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is true of a published system."""

    name: str
    year: int
    title: str  # of the paper
    paper: str  # arXiv number or venue


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Plain numbers and names, so that they go to a file and come back."""

    swapped: tuple[tuple[str, str], ...] = ()  # parts that look otherwise than they were built to: (path, mechanism); see `with_attention`

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):  # as JSON gives tuples back
                object.__setattr__(self, field.name, tuple(value))
            fits, expected = _FITS.get(str(field.type), (lambda value: True, ""))
            if not fits(value):
                raise BadConfig(f"{type(self).__name__}: {field.name}={value!r}; expected {expected}")
        if not all(len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in self.swapped):
            raise BadConfig(f"{type(self).__name__}: swapped={self.swapped!r}; expected pairs of a path and a mechanism")
        object.__setattr__(self, "swapped", tuple((path, spec) for path, spec in self.swapped))

    def _one_of(self, name: str, known: Iterable[str]) -> None:
        if getattr(self, name) not in (known := list(known)):
            raise UnknownName(f"{name} of {type(self).__name__}", str(getattr(self, name)), known)


_FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: type(value) is int and value >= 1, "a whole number of at least 1"),
    "float": (lambda value: type(value) in (int, float) and 0 <= value < 1, "a number from 0 to below 1"),
    "bool": (lambda value: type(value) is bool, "true or false"),
    "str": (lambda value: type(value) is str, "a name"),
}


class _Swapping(type):
    """Whatever a constructor builds: what the config says was swapped is swapped then."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        model = super().__call__(*args, **options)
        config = vars(model).get("config")
        for path, spec in config.swapped if isinstance(config, ModelConfig) else ():
            _swap(model, path, Spec.read(spec))
        return model


class Model(nn.Module, metaclass=_Swapping):
    """A published system. `Config(**settings)` checks its settings, `Model(config)` builds it; see `models.build`."""

    facts: ClassVar[ModelFacts]
    Config: ClassVar[type[ModelConfig]]
    config: ModelConfig
    writes: ClassVar[tuple[str, ...]] = ()  # beginnings of the paths of those parts that go step by step and must not look ahead

    def attentions(self) -> dict[str, MultiHead]:
        """The parts that look at their own sequence, by path, in order."""
        across = {id(part.cross) for part in self.modules() if isinstance(part, Block)}
        return {path: part for path, part in self.named_modules() if isinstance(part, MultiHead) and id(part) not in across}

    def with_attention(
        self,
        attention: str | Attention | type[Attention] | None = None,
        *,
        pattern: Pattern | None = None,
        layers: Iterable[int] | None = None,
    ) -> Self:
        """A copy that looks by another mechanism, or by its own under a pattern; all other weights are those of this model, copied.

            model.with_attention("longformer")                              as it fits the model's sizes
            model.with_attention(LocalAttention(64), layers=[0, 2])         made like this one, in some of `attentions()`
            model.with_attention(pattern=window(64) | tokens(0))            the mechanism stays

        What the new mechanism learns by itself begins anew. The config remembers, so a run that is saved and loaded is the same.
        """
        model, parts = deepcopy(self), list(self.attentions())
        if not parts:
            raise NotSupported(f"{type(self).__name__} has no MultiHead in which a mechanism could be swapped")
        chosen = range(len(parts)) if layers is None else list(layers)
        if any(not -len(parts) <= n < len(parts) for n in chosen):
            raise UnknownName(f"layer of {type(self).__name__}", str(list(chosen)), [f"{n} ({path})" for n, path in enumerate(parts)])
        swapped = dict(self.config.swapped)
        for n in chosen:
            spec = _asked(self.attentions()[parts[n]], attention, pattern)
            swapped[parts[n]] = str(spec)
            _swap(model, parts[n], spec)
        model.config = replace(self.config, swapped=tuple(swapped.items()))
        return model


def mechanism(name: str) -> type[Attention]:
    """The mechanism a config names."""
    known = {part.facts.name: part for part in MECHANISMS}
    if name not in known:
        raise UnknownName("mechanism", name, known)
    return known[name]


class Spec(NamedTuple):
    """Which mechanism, made how, and under which pattern, as one line of a config:

    local                                           as its `sized` makes it for the model
    local(radius=64)                                made with these settings
    softmax(dropout=0.1) under window(64) | tokens(0)   and looking only where the pattern allows, too
    """

    kind: type[Attention]
    settings: dict[str, Any] | None = None  # None: as `sized` makes it
    pattern: Pattern = full

    @classmethod
    def read(cls, text: str) -> Spec:
        """What the line says; never run as code."""
        made, _, under = text.partition(" under ")
        pattern = parse(under) if under else full
        if made.isidentifier():
            return cls(mechanism(made), None, pattern)
        try:
            match ast.parse(made.strip(), mode="eval").body:
                case ast.Call(func=ast.Name(id=name), args=[], keywords=given) if all(option.arg for option in given):
                    return cls(mechanism(name), {str(option.arg): ast.literal_eval(option.value) for option in given}, pattern)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        raise BadConfig(
            f"{text!r} names no mechanism; write for example: local, or local(radius=64), or softmax under window(64) | tokens(0)"
        )

    def made(self, *, heads: int, width: int, length: int) -> Attention:
        """The mechanism for `heads` heads of size `width` and up to `length` keys."""
        if self.settings is None:
            return self.kind.sized(heads=heads, width=width, length=length)
        try:
            return self.kind(**self.settings)
        except TypeError as wrong:
            raise BadConfig(f"{self.kind.__name__} is not made with {self.settings}: {wrong}") from wrong

    def __str__(self) -> str:
        given = "" if self.settings is None else f"({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"
        return self.kind.facts.name + given + ("" if isinstance(self.pattern, Full) else f" under {self.pattern}")


def looking(spec: str, width: int, heads: int, length: int, *, head_width: int | None = None, **options: Any) -> MultiHead:
    """Heads that look as the line of a config says; the options are those of MultiHead."""
    said = Spec.read(spec)
    attention = said.made(heads=heads, width=width // heads if head_width is None else head_width, length=length)
    return MultiHead(width, heads, attention, head_width=head_width, own=said.pattern, **options)


def _asked(heads: MultiHead, attention: str | Attention | type[Attention] | None, pattern: Pattern | None) -> Spec:
    """What is to be there now, as it can be written down."""
    if isinstance(attention, str):
        spec = Spec.read(attention)
    elif isinstance(attention, type):
        spec = Spec(attention)
    elif attention is None:
        spec = Spec(type(heads.attention), heads.attention.settings, heads.own)
    else:
        spec = Spec(type(attention), attention.settings)
    spec = spec if pattern is None else spec._replace(pattern=pattern)
    try:
        again = Spec.read(str(spec))
    except (BadConfig, BadPattern, UnknownName) as wrong:
        raise BadConfig(
            f"`{spec}` cannot be written into a config: a mechanism must be one of `regard list`, its settings plain values, and its pattern "
            f"a rule without data ({wrong})"
        ) from wrong
    if again != spec:
        raise BadConfig(f"`{spec}` would be read back as `{again}`")
    return spec


def _swap(model: Model, path: str, spec: Spec) -> None:
    """Put the mechanism there, or say why not and which could be."""
    heads = model.attentions().get(path)
    if heads is None:
        raise BadConfig(f"{type(model).__name__} has nothing at {path!r} that looks; it has {', '.join(model.attentions())}")
    if type(heads) is not MultiHead:
        raise NotSupported(
            f"{path} is a {type(heads).__name__}, which looks in a way of its own; mechanisms are swapped in plain MultiHead"
        )
    writes = any(path.startswith(part) for part in model.writes)
    why = _obstacle(spec.kind, heads, spec.pattern, writes)
    if why is not None:
        can = [kind.facts.name for kind in MECHANISMS if _obstacle(kind, heads, spec.pattern, writes) is None]
        raise NotSupported(f"{spec.kind.facts.name} cannot be at {path} of {model.facts.name}: {why}; those that can: {', '.join(can)}")
    length: int = getattr(model.config, "length", 1024)
    like, attention = heads.out.weight, spec.made(heads=heads.heads, width=heads.sizes[0] // heads.heads, length=length)
    heads.attention, heads.own = attention.to(like.device, like.dtype).train(heads.training), spec.pattern
    extra = heads.kv_heads * attention.extra
    heads.extra = nn.Linear(heads.memory_width, extra, device=like.device, dtype=like.dtype) if extra else None


def _obstacle(kind: type[Attention], heads: MultiHead, pattern: Pattern, writes: bool) -> str | None:
    """Why a mechanism cannot take this place."""
    facts, under = kind.facts, pattern & (causal if writes else lengths([1]))
    if writes and facts.causal != "strict":
        return "this part must not look ahead" + (", and it lets statistics of the future in" if facts.causal == "mask-only" else "")
    if writes and (not facts.streaming or facts.fixed_memory):
        return "this part goes step by step"
    if heads.kv_heads != heads.heads and not facts.grouped:
        return f"{heads.heads} query heads share {heads.kv_heads} key heads here"
    if not kind.knows(under):
        return f"it cannot be restricted to `{under}`"
    return None
