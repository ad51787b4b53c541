"""Checks of a recipe, and of a checkpoint family with the settings of a small model."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from .. import interop
from .._extras import extra
from ..errors import MissingPackage
from ..interop.family import Family
from ..models import build, find_model
from ..recipes import Recipe
from ._models import inputs
from ._subject import ContractError, NotApplicable


def has_claims(recipe: Recipe, **settings: Any) -> None:
    if len(recipe.variants) < 2 or not recipe.claims:
        raise ContractError("a claim compares a system with the ablation that must lose; give at least two variants and one claim")


def reads_what_it_writes(family: Family, **settings: Any) -> None:
    if not settings:
        raise NotApplicable(f'no settings of a small {family.model} were given: regard check "module:FAMILY(vocab_size=50, …)"')
    torch.manual_seed(0)
    model = build(family.model, settings).eval()
    with TemporaryDirectory() as folder:
        interop.export(model, folder)
        again = interop.load_run(folder).model
        given = inputs(model)
        if not torch.allclose(model(*given), again(*given), atol=1e-5):
            raise ContractError(
                "a model that was exported and read again computes something else; both tables must name every tensor and setting"
            )


def agrees_with_transformers(family: Family, **settings: Any) -> None:
    if not settings:
        raise NotApplicable("no settings of a small model were given")
    try:
        with extra("interop"):
            import transformers
    except MissingPackage as missing:
        raise NotApplicable(str(missing)) from missing
    torch.manual_seed(0)
    model = build(family.model, settings).eval()
    with TemporaryDirectory() as folder, torch.no_grad():
        interop.export(model, folder)
        named = getattr(transformers, (interop_config(Path(folder)).get("architectures") or ["AutoModel"])[0])
        theirs, given = named.from_pretrained(folder).eval(), inputs(model)
        found = theirs(*given[:1])
        other = getattr(found, "logits", found[0])
        if not torch.allclose(model(*given), other, atol=1e-4):
            raise ContractError(
                f"transformers' {named.__name__} computes something else, by {float((model(*given) - other).abs().max()):.2g}"
            )


def interop_config(folder: Path) -> dict[str, Any]:
    """config.json of an exported model."""
    from ..files import read_json

    found: dict[str, Any] = read_json(folder / "config.json")
    return found


def names_a_model(family: Family, **settings: Any) -> None:
    find_model(family.model)
    if not family.model_types:
        raise ContractError("model_types is empty; name the model_type of the config.json files that it reads")


RECIPE_CHECKS = {"claims": has_claims}
FAMILY_CHECKS = {"model": names_a_model, "round-trip": reads_what_it_writes, "transformers": agrees_with_transformers}
