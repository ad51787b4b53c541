r"""The neural process: what is known of a function is the mean of its points.

$$r_* = \tfrac1n \sum_i \mathrm{MLP}_r(x_i, y_i)$$
"""

from __future__ import annotations

from torch import Tensor

from ..layers import mean_pool
from .model import ModelFacts
from .process import ProcessConfig, ProcessModel


class NeuralProcess(ProcessModel):
    """A function from some of its points, through their mean and a latent variable: the ablation of the attentive one.

    Cost:    time O(C + T) for C known points and T targets.
    Use it:  as a baseline; where hundreds of thousands of points must be summarised once.
    Avoid it: where predictions should pass through the known points: a mean forgets which value belongs where, and it underfits.
    Limits:  values and places should be standardised: deviations below 0.1 cannot be said.
    Shape:   x_BCX, y_BCY, at_BTX → mean and deviation (B, S, T, Y) for S samples of z.
    Paper:   Garnelo et al. 2018, "Neural processes", arXiv:1807.01622.
    """

    facts = ModelFacts(name="neural_process", year=2018, title="Neural processes", paper="arXiv:1807.01622")
    Config = ProcessConfig

    def at_targets(self, at_BTX: Tensor, x_BCX: Tensor, r_BCD: Tensor, c_B: Tensor) -> Tensor:
        return mean_pool(r_BCD, c_B).unsqueeze(1).expand(-1, at_BTX.shape[1], -1)
