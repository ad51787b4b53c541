"""The base class of all models: facts, a config of plain values, and mechanisms that can be replaced by name.

The types of a config's fields say which values are allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention, mechanisms
from ..bounds import Count, Depth, Positive, Probability, Size, convert  # noqa: F401  offered here too, for the configs of models
from ..errors import BadConfig, BadPattern, DtypeError, NotSupported, ShapeError, UnknownName
from ..kernels import fast_linear, smoothed_cross_entropy
from ..layers import Block, CrossBlock, MultiHead
from ..layers.spec import Spec, split_names
from ..patterns import Pattern, PatternLike, as_pattern, causal, lengths

Sizes = Mapping[str, "ModelConfig"]  # published sizes of a model by name


class Step(NamedTuple):
    """The result of one decoding step."""

    logits_BN: Tensor  # logits of the next token; a model that copies gives log-probabilities over the vocabulary and the source's words outside it
    weights_BM: Tensor | None  # attention weights over the source, averaged over the heads of the last cross-attention; None without one


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a published model."""

    name: str  # name, spelled as in configs and commands
    year: int  # year of the paper
    title: str  # title of the paper
    paper: str  # arXiv number or venue


def as_setting(owner: str, name: str, value: Any, kind: Any) -> Any:
    """The value of a setting as its type has it, or BadConfig; a single value stands for all of a tuple.

    Args:
        owner: name of the config or model, for errors.
        name: name of the setting.
        value: value that was given.
        kind: type, with its bounds.
    """
    if get_origin(kind) is tuple and isinstance(value, int | float | str):
        value = (value,) * (1 if get_args(kind)[-1] is Ellipsis else len(get_args(kind)))
    return convert(owner, name, value, kind)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Plain numbers and names, so that a config can be written to JSON and read back.

    Every value is checked against the type of its field when a config is made; JSON's lists become tuples.
    """

    attention_overrides: tuple[
        tuple[str, str], ...
    ] = ()  # (path, mechanism) of replaced attentions: see `Model.with_attention`; ("*", "softmax, local"): of all, in turn

    def __post_init__(self) -> None:
        wrong = []
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            try:
                object.__setattr__(self, name, as_setting(type(self).__name__, name, getattr(self, name), kind))
            except BadConfig as error:
                wrong.append(str(error))
        if wrong:
            raise BadConfig("; ".join(wrong))

    def _one_of(self, name: str, known: Iterable[str]) -> None:
        if getattr(self, name) not in (known := list(known)):
            raise UnknownName(f"{name} of {type(self).__name__}", str(getattr(self, name)), known)


AttentionChoice = str | Attention | type[Attention] | tuple[str | Attention | type[Attention], ...] | None


class Model(nn.Module):
    """A published model. `Config(**settings)` validates the settings, `Model(config)` builds it; see `models.build`.

    A model creates its submodules in `_build`; the constructor then replaces mechanisms according to `config.attention_overrides`.

    Args:
        config: settings; None for a model that is built around another, such as `Classifier`.
    """

    facts: ClassVar[ModelFacts]
    Config: ClassVar[type[ModelConfig]] = ModelConfig
    config: ModelConfig
    output: Any  # the output projection, of models where `head` is a linear layer of its own
    processor: Any = None  # processor of its run: tokenizers, special tokens, labels; set by a run, taken by `save` and `export`
    options: Mapping[str, Any] = {}  # options of the task of its run, alike
    sizes: ClassVar[Sizes] = {}
    causal_parts: ClassVar[tuple[str, ...]] = ()  # path prefixes of the submodules that decode step by step and must be causal
    length_setting: ClassVar[str] = "max_length"  # the setting that holds the longest sequence

    def __init__(self, config: ModelConfig | None = None):
        """Build what the config describes. A wrapper around another model passes no config and may expose that of the inner model."""
        super().__init__()
        self._wrapper = config is None
        if config is None:
            return
        if not isinstance(config, self.Config):
            raise BadConfig(f"{type(self).__name__}: config={config!r}; expected a {self.Config.__name__}")
        self.config = config
        self._build()
        self.config = replace(config, attention_overrides=tuple(self._by_path(config.attention_overrides).items()))
        for path, line in self.config.attention_overrides:
            _swap(self, path, Spec.read(line))

    def _by_path(self, overrides: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Each override under the path of its layer; `*` stands for all self-attention layers, with the mechanisms in turn."""
        found: dict[str, str] = {}
        for path, line in overrides:
            if path != "*":
                found[path] = line
                continue
            if not (parts := list(self.attentions())):
                raise NotSupported(f"{type(self).__name__} has no MultiHead whose mechanism could be replaced by {line}")
            names = split_names(line)
            found |= {part: names[n % len(names)] for n, part in enumerate(parts)}
        return found

    def _build(self) -> None:
        """Create the submodules that `self.config` describes."""

    @property
    def max_length(self) -> int:
        """The longest sequence the model is built for: `context_length` of language models, `max_length` of others."""
        return getattr(self.config, self.length_setting)

    @property
    def grid_columns(self) -> int | None:
        """Positions per row, of a model whose positions form a grid: for mechanisms that need to know."""
        return None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of its run, of a translator with two vocabularies both; None without one."""
        pair = getattr(self.processor, "pair", None)
        return pair.source if pair is not None and pair.joint else pair

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its classes in its run; of a model without classes none."""
        return getattr(self.processor, "labels", ())

    def head(self) -> tuple[Tensor, Tensor | None]:
        """weight_ND and bias_N of the output projection, so that a loss can be computed without storing all logits."""
        return self.output.weight, self.output.bias

    @property
    def logit_softcap(self) -> float | None:
        """Logits are bounded to ± this number; None: they are the output projection."""
        return None

    def logits(self, x: Tensor) -> Tensor:
        return cap_logits(fast_linear(x, *self.head()), self.logit_softcap)

    def cross_entropy(self, x_TD: Tensor, target_T: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The summed loss of all tokens, from their features, and how many have the largest logit. Without a soft cap the logits of all
        tokens never exist at once.

        Args:
            x_TD: features of the tokens.
            target_T: target id of each.
            smoothing: label smoothing.
        """
        if self.logit_softcap is None:
            return smoothed_cross_entropy(x_TD, *self.head(), target_T, smoothing)
        logits_TN = self.logits(x_TD).float()
        total = F.cross_entropy(logits_TN, target_T, reduction="sum", label_smoothing=smoothing)
        return total, (logits_TN.argmax(-1) == target_T).sum()

    def _check_ids(self, ids_BL: Tensor, beside_BL: Tensor | None) -> None:
        """Token ids are integers of shape (batch, length), and what comes with them has the same shape."""
        me = type(self).__name__
        if ids_BL.dim() != 2 or (beside_BL is not None and beside_BL.shape != ids_BL.shape):
            beside = "" if beside_BL is None else f" with segments or documents {tuple(beside_BL.shape)}"
            raise ShapeError(f"{me} takes token ids (batch, length), got {tuple(ids_BL.shape)}{beside}; ids[None] makes a batch of one")
        if ids_BL.dtype.is_floating_point or ids_BL.dtype == torch.bool:
            raise DtypeError(f"{me} takes token ids as integers, not {ids_BL.dtype}; convert with .long()")

    def attentions(self) -> dict[str, MultiHead]:
        """The self-attention layers by path, in order."""
        across = {id(part.cross) for part in self.modules() if isinstance(part, Block | CrossBlock)}
        return {path: part for path, part in self.named_modules() if isinstance(part, MultiHead) and id(part) not in across}

    def with_attention(
        self, attention: AttentionChoice = None, *, pattern: PatternLike | None = None, layers: Iterable[int] | None = None
    ) -> Self:
        """A copy with another attention mechanism, or with its own under a pattern; all other parameters are copied.

            model.with_attention("longformer")                              sized for the model
            model.with_attention(("softmax", "local"))                      for the layers in turn
            model.with_attention(LocalAttention(64), layers=[0, 2])         with these settings, in some of `attentions()`
            model.with_attention(pattern=window(64) | tokens(0))            the same mechanism, restricted to a pattern

        Parameters of the new mechanism are freshly initialised. The config records the change, so it survives saving and loading.

        Args:
            attention: mechanism, its class or its name, for all layers or one per layer in turn; None: keep it.
            pattern: pattern that restricts attention in addition to the caller's; None: as it is.
            layers: indices of the layers to change; None: all.
        """
        model, parts = deepcopy(self), list(self.attentions())
        if self._wrapper:
            raise NotSupported(
                f"{type(self).__name__} has the config of the model inside it; call with_attention on that, before wrapping it"
            )
        if not parts:
            raise NotSupported(f"{type(self).__name__} has no MultiHead whose mechanism could be replaced")
        chosen = range(len(parts)) if layers is None else list(layers)
        if any(not -len(parts) <= n < len(parts) for n in chosen):
            raise UnknownName(f"layer of {type(self).__name__}", str(list(chosen)), [f"{n} ({path})" for n, path in enumerate(parts)])
        attention_overrides = dict(self.config.attention_overrides)
        in_turn = attention if isinstance(attention, tuple) else (attention,)
        if not in_turn:
            raise BadConfig("with_attention(()): expected a mechanism, or several for the layers in turn")
        for number, n in enumerate(chosen):
            spec = _spec_of(self.attentions()[parts[n]], in_turn[number % len(in_turn)], None if pattern is None else as_pattern(pattern))
            attention_overrides[parts[n]] = str(spec)
            _swap(model, parts[n], spec)
        model.config = replace(self.config, attention_overrides=tuple(attention_overrides.items()))
        return model


def cap_logits(logits: Tensor, cap: float | None) -> Tensor:
    """Logits bounded to ± cap, smoothly."""
    return logits if cap is None else cap * (logits / cap).tanh()


def device_of(model: Any) -> torch.device:
    """The device of the model's parameters; CPU for a model without any.

    Args:
        model: a module.
    """
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """The model in evaluation mode (no dropout); modules that were training are set back to training afterwards.

    Args:
        model: a module.
    """
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def attention_lines(config: str, attention: object, parts: int = 1) -> tuple[str, ...]:
    """The mechanisms a config names, each line checked; a single name stands for all `parts`.

    Args:
        config: name of the config, for error messages.
        attention: name of a mechanism, or several.
        parts: number of parts that a single name stands for.
    """
    lines: list[str] = []
    for line in attention if isinstance(attention, tuple | list) else [attention] * parts:
        if not isinstance(line, str):
            raise BadConfig(
                f"{config}: attention={line!r}; expected the name of a mechanism, as in 'softmax'; a mechanism itself goes to "
                "model.with_attention(…)"
            )
        Spec.read(line)
        lines.append(line)
    if not lines:
        raise BadConfig(f"{config}: attention={attention!r}; expected names of mechanisms, one per layer in turn: ('softmax',)")
    return tuple(lines)


def build_heads(
    spec: str, width: int, heads: int, length: int, *, head_dim: int | None = None, columns: int | None = None, **options: Any
) -> MultiHead:
    """A MultiHead with the mechanism and the pattern that a line of a config names; the options are those of MultiHead.

    Args:
        spec: mechanism and pattern as configs name them: "softmax", "local(radius=64)".
        width: model width D.
        heads: number of heads.
        length: maximum number of keys.
        head_dim: size per head; width / heads if not given.
        columns: positions per row, where they form a grid.
        **options: options of `MultiHead`.
    """
    parsed = Spec.read(spec)
    attention = parsed.build(heads=heads, head_dim=width // heads if head_dim is None else head_dim, length=length, columns=columns)
    return MultiHead(width, heads, attention, head_dim=head_dim, within=parsed.pattern, **options)


def _spec_of(heads: MultiHead, attention: str | Attention | type[Attention] | None, pattern: Pattern | None) -> Spec:
    """The mechanism asked for, as a config can hold it."""
    if isinstance(attention, str):
        spec = Spec.read(attention)
    elif isinstance(attention, type):
        spec = Spec(attention)
    elif attention is None:
        spec = Spec(type(heads.attention), heads.attention.settings, heads.within)
    else:
        spec = Spec(type(attention), attention.settings)
    spec = spec if pattern is None else spec._replace(pattern=pattern)
    try:
        again = Spec.read(str(spec))
    except (BadConfig, BadPattern, UnknownName) as wrong:
        raise BadConfig(
            f"`{spec}` cannot be written into a config: the mechanism must be in `regard list`, its settings plain values, and its pattern "
            f"a rule without data ({wrong})"
        ) from wrong
    if again != spec:
        raise BadConfig(f"`{spec}` would be read back as `{again}`")
    return spec


def _swap(model: Model, path: str, spec: Spec) -> None:
    """Replace the mechanism at `path`, or raise an error that names the mechanisms which fit there."""
    heads = model.attentions().get(path)
    if heads is None:
        raise BadConfig(f"{type(model).__name__} has no self-attention at {path!r}; it has {', '.join(model.attentions())}")
    if type(heads) is not MultiHead:
        raise NotSupported(f"{path} is a {type(heads).__name__}, whose mechanism is fixed; only that of a plain MultiHead can be replaced")
    causal_parts = any(path.startswith(part) for part in model.causal_parts)
    why = _obstacle(spec.kind, heads, spec.pattern, causal_parts)
    if why is not None:
        can = [kind.facts.name for kind in mechanisms().values() if _obstacle(kind, heads, spec.pattern, causal_parts) is None]
        raise NotSupported(
            f"{spec.kind.facts.name} does not fit {path} of {model.facts.name}: {why}; mechanisms that fit: {', '.join(can)}"
        )
    like, attention = heads.out.weight, _build_for(model, heads, spec)
    heads.attention, heads.within = attention.to(like.device, like.dtype).train(heads.training), spec.pattern
    heads.project_gates(like.device, like.dtype)


def _build_for(model: Model, heads: MultiHead, spec: Spec) -> Attention:
    size = heads.sizes[0] // heads.heads
    return spec.build(heads=heads.heads, head_dim=size, length=model.max_length, columns=model.grid_columns)


def _obstacle(kind: type[Attention], heads: MultiHead, pattern: Pattern, decodes: bool) -> str | None:
    """Why a mechanism cannot be used here."""
    under = pattern & (causal if decodes else lengths([1]))
    if decodes and (why := kind.decoding_obstacle()) is not None:
        return why
    return None if kind.supports(under) else f"it does not support `{under}`"
