"""Parts of recipes: claims, variants that train, puzzles with known answers, pictures and the report."""

from .base import (
    Claim,
    Outcome,
    Recipe,
    RecipeFacts,
    Reevaluation,
    Results,
    Spread,
    Variant,
    above,
    at_least,
    at_most,
    below,
    between,
    run,
    variant_folder,
)
from .pictures import Alignments, AttentionMaps, Curves, validation_curves
