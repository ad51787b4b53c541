"""One loop trains everything: give it a model, a task and a configuration.

    from regard.train import AdamW, Budget, Noam, TrainConfig, fit

    result = fit(model, task, TrainConfig(budget=Budget(steps=2000), schedule=Noam(width=256, warmup=400)), out)

What a task must offer is in `task.py`; the loop in `loop.py`; what is kept on disk in `checkpoint.py`; many processes in `distributed.py`.
"""

from .config import Budget as Budget
from .config import Every as Every
from .config import TrainConfig as TrainConfig
from .distributed import launch as launch
from .loop import Result as Result
from .loop import fit as fit
from .optim import OPTIMIZERS as OPTIMIZERS
from .optim import Adafactor as Adafactor
from .optim import Adam as Adam
from .optim import AdamW as AdamW
from .optim import Lamb as Lamb
from .optim import Muon as Muon
from .optim import OptimizerConfig as OptimizerConfig
from .optim import RAdam as RAdam
from .optim import Rates as Rates
from .optim import depths as depths
from .optim import layerwise as layerwise
from .schedule import SCHEDULES as SCHEDULES
from .schedule import WSD as WSD
from .schedule import Constant as Constant
from .schedule import Cosine as Cosine
from .schedule import InverseSquareRoot as InverseSquareRoot
from .schedule import Linear as Linear
from .schedule import Noam as Noam
from .schedule import Schedule as Schedule
from .task import AfterStep as AfterStep
from .task import Loss as Loss
from .task import Metric as Metric
from .task import Rated as Rated
from .task import Task as Task
