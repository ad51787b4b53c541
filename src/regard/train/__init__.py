"""One loop trains everything: give it a model, an objective and options.

    from regard.train import TrainOptions, fit

    result = fit(model, objective, TrainOptions(steps=2000, schedule="cosine", lr=1e-3), out)

The options are in `options.py`; what an objective must offer is in `objective.py`; the loop in `loop.py`; what is kept on disk in `checkpoint.py`; many processes in `distributed.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from .launcher import launch
    from .log import read_metrics
    from .loop import Result, fit
    from .objective import Loss, Metric, Objective, Progress, ahead, to_device
    from .optim import OPTIMIZERS, Adafactor, Adam, AdamW, Lamb, Muon, OptimizerConfig, RAdam, Rates, depths, layerwise, optimizer_of
    from .options import TrainOptions
    from .schedule import SCHEDULES, WSD, Constant, Cosine, InverseSquareRoot, Linear, Noam, Schedule, schedule_of
else:
    __getattr__, __dir__ = lazy(__name__)
