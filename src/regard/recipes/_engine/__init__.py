"""Parts of recipes: claims and their statistics, variants that train, puzzles with known answers, pictures and the report."""

from .base import Outcome, Recipe, RecipeFacts, Reevaluation, Variant, run, variant_folder
from .claims import Claim, Comparison, Kind, Proportion, Results, Value, Verdict, above, at_least, at_most, below, between, measured
from .pictures import Alignments, AttentionMaps, Curves, validation_curves
from .statistics import LOOKS, Sample
