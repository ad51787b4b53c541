"""Checks of a model: `regard check "my_module:MyModel(vocab_size=50, width=16)"`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..docstrings import field_help
from ..models import ImageEncoder, LanguageModel, Model, TextEncoder, Translator, config_of
from ._subject import ContractError, NotApplicable

B, L = 2, 9  # rows and tokens


def inputs(model: Model) -> tuple[Tensor, ...]:
    """Random inputs of `forward` for the kinds of models that have a contract of their own."""
    c: Any = model.config
    if isinstance(model, LanguageModel | TextEncoder):
        return (torch.randint(c.vocab_size, (B, min(L, model.max_length))),)
    if isinstance(model, Translator):
        source, target = torch.randint(c.source_vocab_size, (B, L)), torch.randint(c.target_vocab_size, (B, L - 2))
        return source, torch.tensor([L, L - 3]), target
    if isinstance(model, ImageEncoder):
        return (torch.randn(B, c.channels, *c.image_size),)
    raise NotApplicable("it is none of LanguageModel, TextEncoder, Translator, ImageEncoder, whose inputs are known")


def build(kind: type[Model], **settings: Any) -> Model:
    """The model in float64, in evaluation mode."""
    torch.manual_seed(0)
    return kind(kind.Config(**settings)).double().eval()


def as_doubles(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in given)


def explains_settings(kind: type[Model], **settings: Any) -> None:
    said = field_help(kind.Config)
    missing = [name for name in kind.Config.__dataclass_fields__ if name not in said and name != "attention_overrides"]
    if missing:
        raise ContractError(
            f"settings without a help text: {', '.join(missing)}; write a comment behind each field of {kind.Config.__name__}"
        )


def builds_again(kind: type[Model], **settings: Any) -> None:
    """A model is what its config says: built again and filled, it computes the same."""
    model = build(kind, **settings)
    name, stored = config_of(model)
    again = build(kind, **stored)
    if name != kind.facts.name or config_of(again) != (name, stored):
        raise ContractError("its config, read back, is another one; fields must be plain values: numbers, strings, tuples")
    again.load_state_dict(model.state_dict())
    given = as_doubles(inputs(model))
    if not torch.equal(model(*given), again(*given)):
        raise ContractError(
            "built again with the same parameters it computes something else; parameters or buffers are missing from its state dict"
        )


def reaches_parameters(kind: type[Model], **settings: Any) -> None:
    model = build(kind, **settings)
    out = model(*as_doubles(inputs(model)))
    out.square().sum().backward()
    still = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    if still or not torch.isfinite(out).all():
        raise ContractError(f"no gradient reaches {', '.join(still[:3])}; remove what is not used" if still else "outputs are not finite")


@torch.no_grad()
def ignores_the_future(kind: type[Model], **settings: Any) -> None:
    model = build(kind, **settings)
    if not isinstance(model, LanguageModel):
        raise NotApplicable("of language models")
    (ids,) = inputs(model)
    other = ids.clone()
    other[:, -3:] = (other[:, -3:] + 1) % model.config.vocab_size
    if not torch.equal(model(ids)[:, :-3], model(other)[:, :-3]):
        raise ContractError("earlier outputs change with later tokens; pass `causal` to every layer that mixes tokens")


@torch.no_grad()
def decodes_step_by_step(kind: type[Model], **settings: Any) -> None:
    model = build(kind, **settings)
    if isinstance(model, LanguageModel):
        (ids,) = inputs(model)
        state, whole = model.start(len(ids)), model(ids)
        steps = torch.stack([model.step(ids[:, t], state).logits_BN for t in range(ids.shape[1])], 1)
    elif isinstance(model, Translator):
        source, n_B, ids = inputs(model)
        decoding, whole = model.start(source, n_B), model(source, n_B, ids)
        steps = torch.stack([model.step(ids[:, t], decoding).logits_BN for t in range(ids.shape[1])], 1)
    else:
        raise NotApplicable("of language models and translators")
    if not torch.allclose(steps, whole, atol=1e-8):
        raise ContractError(
            f"decoding step by step differs from one pass by {float((steps - whole).abs().max()):.2g}; pass the state to every layer"
        )


CHECKS = {
    "settings": explains_settings,
    "config": builds_again,
    "gradients": reaches_parameters,
    "causal": ignores_the_future,
    "steps": decodes_step_by_step,
}
