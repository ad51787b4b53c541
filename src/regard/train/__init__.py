"""One loop trains everything: give it a model, a task and a configuration.

    from regard.train import AdamW, Budget, Noam, TrainConfig, fit

    result = fit(model, task, TrainConfig(budget=Budget(steps=2000), schedule=Noam(width=256, warmup_steps=400)), out)

What a task must offer is in `task.py`; the loop in `loop.py`; what is kept on disk in `checkpoint.py`; many processes in `distributed.py`.
"""

from .config import Budget, Every, TrainConfig, TrainOptions
from .launcher import launch
from .log import read_metrics
from .loop import Result, fit
from .optim import OPTIMIZERS, Adafactor, Adam, AdamW, Lamb, Muon, OptimizerConfig, RAdam, Rates, depths, layerwise
from .schedule import SCHEDULES, WSD, Constant, Cosine, InverseSquareRoot, Linear, Noam, Schedule
from .task import AfterStep, BeforeStep, Loss, Merging, Metric, Objective, Rated
