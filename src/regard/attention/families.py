"""Mechanisms by family: those that share a base class, and by name those that derive from none."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Attention
from ._feature_map import FeatureMapAttention
from ._pattern import PatternAttention
from ._recurrent import RecurrentAttention


@dataclass(frozen=True)
class Family:
    """Mechanisms that belong together: by a base class, and by name those that derive from none."""

    title: str
    text: str
    base: type[Attention] | None = None
    names: tuple[str, ...] = ()


FAMILIES = (
    Family(
        "Recurrent-era scores and windows",
        "One head between a decoder's state and an encoder's annotations: a score, a normaliser, an average. Published before 2017.",
    ),
    Family(
        "Exact", "Every pair that the pattern allows is compared.", names=("softmax", "differential", "entmax", "forgetting", "sigmoid")
    ),
    Family("Graphs", "Scores of pairs of nodes, along the edges of a graph.", names=("graph_attention", "graph_attention_v2")),
    Family("Sparse patterns", "Softmax attention within a pattern of its own.", PatternAttention, ("adaptive_span",)),
    Family(
        "Clustered, hashed and sorted",
        "Keys are grouped by content, and queries attend within their group.",
        names=("lsh", "routing", "sinkhorn", "sortcut"),
    ),
    Family("Low-rank and compressed", "Fewer keys than tokens.", names=("linformer", "memory_compressed", "nystrom")),
    Family(
        "Feature maps",
        "Weights are dot products of features, so keys and values are summed once for all queries.",
        FeatureMapAttention,
        ("efficient",),
    ),
    Family("Recurrent state", "A matrix of fixed size that each token decays and writes to.", RecurrentAttention),
    Family(
        "Synthetic",
        "Weights predicted from the query alone, or learned for each pair of positions.",
        names=(
            "dense_synthesizer",
            "factorised_dense_synthesizer",
            "factorised_random_synthesizer",
            "mixture_synthesizer",
            "random_synthesizer",
        ),
    ),
    Family("Others", "In no family yet: name it in `attention/families.py`, or derive it from a base class."),
)
RECURRENT_ERA, OTHERS = FAMILIES[0], FAMILIES[-1]


def family_of(mechanism: type[Attention]) -> Family:
    """Find the family of a mechanism: by name, by base class, by year."""
    for family in FAMILIES:
        if mechanism.facts.name in family.names or (family.base is not None and issubclass(mechanism, family.base)):
            return family
    return RECURRENT_ERA if mechanism.facts.paper.year < 2017 else OTHERS
