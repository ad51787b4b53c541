"""Papers' claims, one file each: the system, the ablation that must lose, the metrics that decide. The imports are the list."""

from . import (
    alibi2021,
    anp2019,
    bahdanau2014,
    bert2018,
    bigbird2020,
    bpe2016,
    chen2016,
    clip2021,
    completion2020,
    complexity2017,
    dalle2021,
    differential2024,
    draw2015,
    dwivedi2020,
    efficient2018,
    entmax2019,
    forgetting2025,
    gat2018,
    gated_delta2024,
    gpt2018,
    gpt2020,
    graves2013,
    hops2017,
    image_transformer2018,
    layernorm2020,
    lin2017,
    linear2020,
    longformer2020,
    lowrank2021,
    luong2015,
    memory2020,
    memory_transformer2020,
    mixers2021,
    ntm2014,
    performer2021,
    recall2021,
    reformer2020,
    revnet2017,
    rfa2021,
    routing2020,
    san2018,
    scale2017,
    see2017,
    set2019,
    sigmoid2024,
    sinkhorn2020,
    sortcut2020,
    span2019,
    sparse2019,
    streaming2023,
    synthesizer2020,
    transformer2017,
    vit2020,
    vivit2021,
    wikipedia2018,
    xl2019,
    xu2015,
    yang2016,
)
from ._engine import LOOKS as LOOKS
from ._engine import Claim as Claim
from ._engine import Outcome as Outcome
from ._engine import Proportion as Proportion
from ._engine import Recipe as Recipe
from ._engine import RecipeFacts as RecipeFacts
from ._engine import Reevaluation as Reevaluation
from ._engine import Results as Results
from ._engine import Sample as Sample
from ._engine import above as above
from ._engine import at_least as at_least
from ._engine import at_most as at_most
from ._engine import below as below
from ._engine import between as between
from ._engine import measured as measured
from ._engine import run as run

# The list everything else reads, derived from the imports above: a new recipe is one line there.
_FOUND = [part.recipe for part in list(vars().values()) if isinstance(getattr(part, "recipe", None), Recipe)]
RECIPES: tuple[Recipe, ...] = tuple(sorted(_FOUND, key=lambda recipe: recipe.facts.year))
registered: dict[str, Recipe] = {}  # from outside the package: `regard.register`


def recipes() -> dict[str, Recipe]:
    """Every recipe by name, oldest first, then registered ones."""
    return {recipe.facts.name: recipe for recipe in RECIPES} | registered
