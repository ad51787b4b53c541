"""Models that read a question and a passage and say where in the passage the answer is.

All of them take ids_BL, the number of tokens n_B of each row, and segment_BL: 0 for the question, 1 for the passage.

    BOS who sat ? EOS the cat sat . EOS        ids
     0   0   0  0  0   1   1   1  1  1         segments
     ∅                 s   s   s  s            where an answer may start and end; ∅, position 0, stands for no answer
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import ShapeError
from .model import Model

NEVER = 100.0  # nats: with this threshold, or a higher one, every question is answered


class Reading(NamedTuple):
    """Log-probabilities of the first and of the last token of the answer; −∞ where an answer cannot be.

    start_BL, end_BL, or with a step per row in front: start_TBL, end_TBL.
    """

    start_BL: Tensor  # log-probability of the first token
    end_BL: Tensor  # log-probability of the last token


class Reader(Model):
    """Finds an answer in a passage. A model implements `steps`.

    `threshold` is a buffer, tuned on validation and saved with the parameters: a question has no answer if
    log p(no answer) − log p(best span) is above it.

    Shape: ids_BL, n_B, segment_BL → start_BL, end_BL.
    """

    threshold: Tensor
    between: ClassVar[tuple[str, ...]] = ()  # paths of the mechanisms in which the passage attends to the question, where there are such

    def steps(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Reading:
        """start_TBL and end_TBL of each step of reasoning; T is 1 for a model that has none.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: 0 for the tokens of the question, 1 for those of the passage.
        """
        raise NotImplementedError

    def forward(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Reading:
        """start_BL and end_BL: the log of the mean probability of the steps.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: 0 for the tokens of the question, 1 for those of the passage.
        """
        start_TBL, end_TBL = self.steps(ids_BL, n_B, segment_BL)
        return Reading(log_mean(start_TBL), log_mean(end_TBL))

    def _add_threshold(self) -> None:
        self.register_buffer("threshold", torch.tensor(NEVER))

    def check(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> None:
        """Raise an error for inputs whose shapes or types do not fit together.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: 0 for the tokens of the question, 1 for those of the passage.
        """
        self._check_ids(ids_BL, segment_BL)
        if n_B.shape != ids_BL.shape[:1]:
            raise ShapeError(
                f"{type(self).__name__} takes one length per row, got lengths {tuple(n_B.shape)} for ids {tuple(ids_BL.shape)}"
            )


def log_mean(log_p_TBL: Tensor, keep_TB: Tensor | None = None) -> Tensor:
    """The log of the mean of probabilities over steps, or over those that are kept. The mean of logs would be another distribution."""
    if len(log_p_TBL) == 1:
        return log_p_TBL[0]
    possible_BL = log_p_TBL[0] > -torch.inf
    log_p_TBL = log_p_TBL.masked_fill(~possible_BL, 0)  # −∞ in all steps would give a gradient of nan
    if keep_TB is None:
        mean_BL = log_p_TBL.logsumexp(0) - torch.tensor(float(len(log_p_TBL))).log()
    else:
        mean_BL = log_p_TBL.masked_fill(~keep_TB[..., None], -torch.inf).logsumexp(0) - keep_TB.sum(0)[:, None].log()
    return mean_BL.masked_fill(~possible_BL, -torch.inf)


def answer_positions(n_B: Tensor, segment_BL: Tensor) -> Tensor:
    """Mark the positions where an answer may start and end: in the passage before its last token, EOS; and at position 0, which stands for no answer.

    Args:
        n_B: number of real tokens of each row.
        segment_BL: 0 for the tokens of the question, 1 for those of the passage.

    Shape: n_B, segment_BL → allowed_BL.
    """
    at_L = torch.arange(segment_BL.shape[1], device=segment_BL.device)
    return ((segment_BL == 1) & (at_L < n_B[:, None] - 1)) | (at_L == 0)
