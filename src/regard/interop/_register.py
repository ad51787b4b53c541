"""Run the attention of transformers models with mechanisms of regard."""

from __future__ import annotations

import math
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..attention import Attention, PatternAttention, SoftmaxAttention, mechanisms
from ..errors import BadConfig, BadFile, MissingFile, NotSupported, StateNotSupported
from ._masks import Mask, mask_of, read_mask, transformers_module

PREFIX = "regard:"
ATTRIBUTE = "regard"  # the attribute of a transformers attention module that holds the mechanism
RESERVED = ("eager", "sdpa", "flash", "flex_attention", "paged|", "/")  # names that transformers interprets itself

Model = TypeVar("Model", bound=nn.Module)

_preparing: ContextVar[bool] = ContextVar("_preparing", default=False)


class Factory(Protocol):
    """Builds the mechanism of one layer, for `heads` heads of size `head_dim` and up to `length` keys."""

    def __call__(self, *, heads: int, head_dim: int, length: int) -> Attention: ...


def register(name: str | None = None, factory: Factory | None = None) -> None:
    """Register mechanisms with transformers: all of them, as "regard:<name>", or those that `factory` builds, as `name`.

    `attn_implementation=` then accepts the name. Registering a name again affects only layers that have no mechanism yet.

    Args:
        name: name for `attn_implementation=`; None: all mechanisms, as "regard:<name>".
        factory: function of heads, head_dim and length that builds the mechanism of a layer; given if and only if `name` is.
    """
    known: dict[str, Factory]
    if name is None and factory is None:
        known = {PREFIX + name: mechanism.sized for name, mechanism in mechanisms().items()}
    elif name is not None and factory is not None:
        known = {name: factory}
    else:
        raise BadConfig('register() without arguments registers all mechanisms; to register your own, pass both: register("name", factory)')
    masks = transformers_module("masking_utils").AttentionMaskInterface
    attentions = transformers_module("modeling_utils").AttentionInterface
    for key, make in known.items():
        if any(word in key for word in RESERVED) or not key:
            raise BadConfig(f"cannot register {key!r}: transformers reserves names with {', '.join(RESERVED)}; choose another name")
        if not isinstance(attentions().get(key), _Interface | None):
            raise BadConfig(f"{key!r} is already registered by transformers or another library; choose another name")
        attentions.register(key, _Interface(key, make))
        masks.register(key, mask_of)


def prepare(model: Model, folder: str | Path | None = None, **inputs: Any) -> Model:
    """Build the mechanisms of a model by calling it once, with `inputs` or with the dummy inputs of transformers.

    Mechanisms with parameters need it, so that optimizers and `save_pretrained` see them. `from_pretrained`
    builds the model without mechanisms; their parameters are loaded from `folder`.

    Args:
        model: transformers model with mechanisms of regard.
        folder: `save_pretrained` directory to load the parameters of mechanisms from; None: keep the initial ones.
        **inputs: inputs of the call.
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
    """The attention function that transformers calls for one registered name."""

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
        self._configure(mechanism, dropout, more)
        mask, bias = read_mask(attention_mask, L, M, getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if position_bias is not None:
            bias = position_bias if bias is None else bias + position_bias
        if mask.keys < M:
            k_BMHK, v_BMHV = k_BMHK[:, : mask.keys], v_BMHV[:, : mask.keys]
            bias = None if bias is None else bias[..., : mask.keys]
        share = 1.0 if scaling is None else scaling * math.sqrt(K)
        if not math.isclose(share, 1.0, rel_tol=1e-6):
            q_BLHK = q_BLHK * share  # the mechanism applies its own scale, usually 1/√K
        state = None
        if mask.past:  # a first step over all keys so far; mechanisms that cannot stream raise
            state = mechanism.start(B, mask.pattern)
        elif L == 1 < M:
            state = mechanism.start_cross(B)
        if state is not None and not state.grows:
            way = "use generate(use_cache=False)" if mask.past else "give the decoder at least two tokens at a time"
            raise StateNotSupported(
                f"{type(mechanism).__name__} needs the absolute query position, which transformers does not pass; "
                f"call the model on whole sequences: {way}"
            )
        return mechanism(q_BLHK, k_BMHK, v_BMHV, mask.pattern, bias, state).contiguous(), None

    def _mechanism(self, module: nn.Module, q_BLHK: Tensor, keys: int) -> Attention:
        """The mechanism of this layer, a submodule built at the first call."""
        held = getattr(module, ATTRIBUTE, None)
        if isinstance(held, Attention) and module.regard_name == self.name:
            return held
        like = next((p for p in module.parameters() if p.dtype.is_floating_point), q_BLHK)
        length = getattr(getattr(module, "config", None), "max_position_embeddings", None) or keys
        with torch.inference_mode(False):  # parameters built in inference mode could not be trained
            mechanism = self.factory(heads=q_BLHK.shape[2], head_dim=q_BLHK.shape[3], length=length)
        me = type(mechanism).__name__
        if not isinstance(mechanism, Attention):
            raise BadConfig(f"the factory of {self.name!r} returned a {me}; expected a regard.Attention")
        if mechanism.reads_gates:
            raise NotSupported(
                f"{me} needs {mechanism.gates + mechanism.query_gates} gates per token, which transformers' attention layers do not project; "
                "regard.MultiHead projects them from x"
            )
        if not _preparing.get() and any(True for _ in mechanism.parameters()):
            raise NotSupported(
                f"{me} has parameters of its own, which optimizers and saved files must include: call regard.interop.prepare(model) once, "
                "before training, and regard.interop.prepare(model, folder) after from_pretrained(folder)"
            )
        setattr(module, ATTRIBUTE, mechanism.to(like.device, like.dtype).train(module.training))
        module.regard_name = self.name  # type: ignore[assignment]
        return mechanism

    def _configure(self, mechanism: Attention, dropout: float, more: dict[str, Any]) -> None:
        """Give the mechanism the options the model passes with each call; refuse those it does not support."""
        name = type(mechanism).__name__
        softmax = mechanism.softmax if isinstance(mechanism, PatternAttention) else mechanism
        if isinstance(softmax, SoftmaxAttention):
            softmax.dropout = dropout  # transformers passes 0 in evaluation
        elif dropout:
            raise NotSupported(
                f"{name} does not support attention dropout (the model asks for {dropout}); set it to 0 in the config: "
                "attention_probs_dropout_prob, attn_pdrop or attention_dropout"
            )
        softcap = more.get("softcap")
        if softcap is not None and getattr(softmax, "softcap", None) != softcap:
            raise NotSupported(
                f"the model caps its scores at {softcap}, and this {name} does not; register one that does: "
                f'register("capped", lambda heads, head_dim, length: SoftmaxAttention(softcap={softcap}))'
            )
        if more.get("s_aux") is not None:
            raise NotSupported(f"{name} does not support the model's attention sinks (s_aux); attn_implementation='eager' does")
        if more.get("cache") is not None:
            raise NotSupported(f"{name} does not support paged caches; use generate(), not generate_batch()")
        if more.get("output_attentions"):
            raise NotSupported("output_attentions is not supported; `with regard.capture(model) as maps:` records the attention weights")


def _load(model: nn.Module, folder: Path) -> None:
    """Load the parameters and buffers of mechanisms from the files that `save_pretrained` wrote."""
    from safetensors import safe_open

    head = f"{getattr(model, 'base_model_prefix', '')}."  # models with and without a task head save different prefixes
    wanted = {name.removeprefix(head): x for name, x in model.state_dict().items() if f".{ATTRIBUTE}." in name}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise MissingFile(f"{folder} holds no .safetensors file; expected a directory written by save_pretrained")
    for file in files:
        with safe_open(file, "pt") as saved:
            for name in saved.keys():  # noqa: SIM118 (not a dictionary)
                held = wanted.pop(name.removeprefix(head), None)
                if held is None:
                    continue
                x = saved.get_tensor(name)
                if x.shape != held.shape:
                    raise BadFile(f"{file}: {name} has shape {tuple(x.shape)}, the model expects {tuple(held.shape)}")
                held.copy_(x)
    if wanted:
        raise BadFile(
            f"{folder} has no tensors for {', '.join(sorted(wanted)[:3])}; call regard.interop.prepare(model) before save_pretrained"
        )
