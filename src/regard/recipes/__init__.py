"""Papers' claims, one file each: the system, the ablation that must lose, the metrics that decide. The imports are the list."""

from . import (
    bahdanau2014,
    bert2018,
    chen2016,
    clip2021,
    completion2020,
    complexity2017,
    dalle2021,
    draw2015,
    gpt2018,
    gpt2020,
    graves2013,
    image_transformer2018,
    lin2017,
    linear2020,
    longformer2020,
    lowrank2021,
    luong2015,
    memory2020,
    mixers2021,
    performer2021,
    recall2021,
    reformer2020,
    san2018,
    see2017,
    sinkhorn2020,
    span2019,
    transformer2017,
    vit2020,
    vivit2021,
    xl2019,
    xu2015,
    yang2016,
)
from ._engine import Claim, Outcome, Recipe, RecipeFacts, Reevaluation, Results, Spread, above, at_least, at_most, below, between, run

# The list everything else reads, derived from the imports above: a new recipe is one line there.
_FOUND = [part.recipe for part in list(vars().values()) if isinstance(getattr(part, "recipe", None), Recipe)]
RECIPES: tuple[Recipe, ...] = tuple(sorted(_FOUND, key=lambda recipe: recipe.facts.year))
