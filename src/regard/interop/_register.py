"""Attentions of transformers' models, computed by a mechanism."""

from __future__ import annotations

import math
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..attention import MECHANISMS, Attention, SoftmaxAttention
from ..errors import BadConfig, BadFile, MissingFile, NotSupported, StateNotSupported
from ._masks import Mask, mask_of, read, transformers

PREFIX = "regard:"
PLACE = "regard"  # the name of the mechanism inside an attention module of transformers
TAKEN = ("eager", "sdpa", "flash", "flex_attention", "paged|", "/")  # what transformers reads a meaning of its own into

Model = TypeVar("Model", bound=nn.Module)

_preparing: ContextVar[bool] = ContextVar("_preparing", default=False)


class Factory(Protocol):
    """Makes one mechanism for one layer, of `heads` heads of size `width`, for up to `length` keys."""

    def __call__(self, *, heads: int, width: int, length: int) -> Attention: ...


def register(name: str | None = None, factory: Factory | None = None) -> None:
    """Make mechanisms known to transformers: all of them, as "regard:" and their names, or what `factory` makes, as `name`.

    After it, `attn_implementation=` takes the name. Registering a name again counts for the layers that have no mechanism yet.
    """
    known: dict[str, Factory]
    if name is None and factory is None:
        known = {PREFIX + mechanism.facts.name: mechanism.sized for mechanism in MECHANISMS}
    elif name is not None and factory is not None:
        known = {name: factory}
    else:
        raise BadConfig('register() makes all mechanisms known; one of your own takes both: register("name", factory)')
    masks, attentions = transformers("masking_utils").AttentionMaskInterface, transformers("modeling_utils").AttentionInterface
    for key, make in known.items():
        if any(word in key for word in TAKEN) or not key:
            raise BadConfig(f"transformers reads {', '.join(TAKEN)} in a name as something of its own, so {key!r} cannot be one")
        if not isinstance(attentions().get(key), _Interface | None):
            raise BadConfig(f"{key!r} is an attention of transformers or of another library already; take another name")
        attentions.register(key, _Interface(key, make))
        masks.register(key, mask_of)


def prepare(model: Model, folder: str | Path | None = None, **inputs: Any) -> Model:
    """Make the mechanisms of a model now, by one call of it: with `inputs`, or with the dummy ones that transformers has.

    Mechanisms with parameters of their own need it: an optimiser sees, and `save_pretrained` saves, what is there. `folder` is where
    `save_pretrained` wrote; `from_pretrained` builds a model without mechanisms, and what was saved of them is read here.
    """
    before, token = model.training, _preparing.set(True)
    try:
        with ExitStack() as undo:
            undo.enter_context(torch.no_grad())
            undo.callback(model.train, before)
            model.eval()
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            given: dict[str, Any] = inputs or getattr(model, "dummy_inputs", {})
            model(**{key: x.to(device) if isinstance(x, Tensor) else x for key, x in given.items()})
    finally:
        _preparing.reset(token)
    if folder is not None:
        _load(model, Path(folder))
    return model


class _Interface:
    """What transformers calls in the place of its own attention, for one registered name."""

    def __init__(self, name: str, factory: Factory):
        self.name, self.factory = name, factory

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | Mask | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """(B, H, L, K) in, (B, L, H, V) out."""
        q_BLHK, k_BMHK, v_BMHV = (x.transpose(1, 2) for x in (query, key, value))
        (B, L, _, K), M = q_BLHK.shape, k_BMHK.shape[1]
        mechanism = self._mechanism(module, q_BLHK, M)
        self._refuse(mechanism, dropout, more)
        mask, bias = read(attention_mask, L, M, getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if position_bias is not None:
            bias = position_bias if bias is None else bias + position_bias
        if mask.keys < M:
            k_BMHK, v_BMHV = k_BMHK[:, : mask.keys], v_BMHV[:, : mask.keys]
            bias = None if bias is None else bias[..., : mask.keys]
        share = 1.0 if scaling is None else scaling * math.sqrt(K)
        if not math.isclose(share, 1.0, rel_tol=1e-6):
            q_BLHK = q_BLHK * share  # the mechanism's own scale stays what it is, 1/√K in most
        state = None
        if mask.past:  # a first step over all keys there are; mechanisms that cannot go step by step say so
            state = mechanism.start(B, mask.pattern)
        elif L == 1 < M:
            state = mechanism.start_over_memory(B)
        if state is not None and not state.grows:
            way = "use generate(use_cache=False)" if mask.past else "give the decoder at least two tokens at a time"
            raise StateNotSupported(
                f"{type(mechanism).__name__} counts its queries from the first one, and transformers does not tell which one this is; "
                f"call the model on whole sequences: {way}"
            )
        return mechanism(q_BLHK, k_BMHK, v_BMHV, mask.pattern, bias, state).contiguous(), None

    def _mechanism(self, module: nn.Module, q_BLHK: Tensor, keys: int) -> Attention:
        """The mechanism of this layer: a module inside it, made at the first call."""
        held = getattr(module, PLACE, None)
        if isinstance(held, Attention) and module.regard_name == self.name:
            return held
        like = next((p for p in module.parameters() if p.dtype.is_floating_point), q_BLHK)
        length = getattr(getattr(module, "config", None), "max_position_embeddings", None) or keys
        with torch.inference_mode(False):  # what is made inside it could never be trained
            made = self.factory(heads=q_BLHK.shape[2], width=q_BLHK.shape[3], length=length)
        me = type(made).__name__
        if not isinstance(made, Attention):
            raise BadConfig(f"the factory of {self.name!r} should make a mechanism, a regard.attention.Attention, and made a {me}")
        if made.extra:
            raise NotSupported(
                f"{me} wants {made.extra} more numbers of every token than q, k and v, and transformers' attentions have none to give; "
                "regard.MultiHead makes them from x"
            )
        if not _preparing.get() and any(True for _ in made.parameters()):
            raise NotSupported(
                f"{me} has parameters of its own, and an optimiser or a file must not miss them: call regard.interop.prepare(model) once, "
                "before training, and regard.interop.prepare(model, folder) after from_pretrained(folder)"
            )
        setattr(module, PLACE, made.to(like.device, like.dtype).train(module.training))
        module.regard_name = self.name  # type: ignore[assignment]
        return made

    def _refuse(self, mechanism: Attention, dropout: float, more: dict[str, Any]) -> None:
        """What a model asks for besides, and a mechanism cannot do."""
        me = type(mechanism).__name__
        if dropout and isinstance(mechanism, SoftmaxAttention):
            mechanism.dropout = dropout
        elif dropout:
            raise NotSupported(
                f"{me} drops out no weights, and the model asks for {dropout} of them: set its attention dropout to 0 "
                "(attention_probs_dropout_prob, attn_pdrop or attention_dropout in the config)"
            )
        softcap = more.get("softcap")
        if softcap is not None and getattr(mechanism, "softcap", None) != softcap:
            raise NotSupported(
                f"the model bends its scores at {softcap}, and this {me} does not; register a name of your own: "
                f'register("capped", lambda heads, width, length: SoftmaxAttention(softcap={softcap}))'
            )
        if more.get("s_aux") is not None:
            raise NotSupported(f"the model has sinks of its own (s_aux), which {me} does not take; attn_implementation='eager' does")
        if more.get("cache") is not None:
            raise NotSupported(f"{me} does not read paged caches; use generate(), not generate_batch()")
        if more.get("output_attentions"):
            raise NotSupported("weights are not handed out by the layers; `with regard.capture(model) as maps:` keeps them")


def _load(model: nn.Module, folder: Path) -> None:
    """The parameters and buffers of mechanisms, out of the files that `save_pretrained` wrote."""
    from safetensors import safe_open

    head = f"{getattr(model, 'base_model_prefix', '')}."  # a model with a head writes names that one without does not know
    wanted = {name.removeprefix(head): x for name, x in model.state_dict().items() if f".{PLACE}." in name}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise MissingFile(f"{folder} holds no .safetensors file; it should be a folder that save_pretrained wrote")
    for file in files:
        with safe_open(file, "pt") as saved:
            for name in saved.keys():  # noqa: SIM118 (not a dictionary)
                held = wanted.pop(name.removeprefix(head), None)
                if held is None:
                    continue
                x = saved.get_tensor(name)
                if x.shape != held.shape:
                    raise BadFile(f"{file}: {name} is {tuple(x.shape)}, and the model's {tuple(held.shape)}")
                held.copy_(x)
    if wanted:
        raise BadFile(f"{folder} has nothing saved for {', '.join(sorted(wanted)[:3])}; was the model prepared before it was saved?")
