"""Options of the task sets: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...bounds import Size
from ...train.options import TrainOptions
from .shared import DataOptions, Declaration, Files


@dataclass(frozen=True, kw_only=True)
class SetsOptions(DataOptions):
    """Sets."""

    data: Files = "max:"
    """JSON lines {"set": [[0.1, 2], [0.7, 1]], "y": 0.7}, an .npz of ragged arrays, or generated sets: max:10, unique:10, clusters:4, odd:10."""
    target: Literal["auto", "number", "label", "index", "clusters"] = "auto"
    """Kind of y: a number, a label, the index of an item; clusters: none, a mixture of Gaussians per set; auto: by the first set."""
    components: Size = 4
    """Gaussians per set, with --target clusters."""
    batch_size: Size = 64
    """Sets per batch."""


class SetsTaskDeclaration(Declaration):
    """Train a model of sets: a number, a label, the odd one out, or clusters.

    As in:  regard train sets --out runs/max
            regard train sets --data odd:10 --out runs/odd
            regard train sets --data clusters:4 --out runs/clusters --set encoder=isab
            regard train sets --data sets.jsonl --out runs/sets
    """

    name = "sets"
    Options = SetsOptions
    default_model = "set_transformer"
    default_train = TrainOptions(steps=3000, lr=1e-3, schedule="cosine", average=0, weight_decay=0.0)
    main_options = ("target", "components")
