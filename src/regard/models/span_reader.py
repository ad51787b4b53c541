r"""A span head over an encoder: BERT's reader.

$$p(\mathrm{start} = i) = \mathrm{softmax}_i(w_s^\top x_i + b_s) \qquad p(\mathrm{end} = j) = \mathrm{softmax}_j(w_e^\top x_j + b_e)$$

over the tokens i, j of the passage and position 0, which stands for no answer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import NotSupported
from .encoder import TextEncoder
from .headed import Headed
from .model import Model
from .reader import Reader, Reading, answer_positions


class SpanReader(Headed, Reader):
    """An encoder of texts with a span head. Its config is that of its body.

    Paper:   Devlin et al. 2019, "BERT", arXiv:1810.04805, sections 4.2 and 4.3.
    We differ: the softmax is over the tokens where an answer may be; transformers' BertForQuestionAnswering takes it over all of them.

    Args:
        body: encoder of texts.

    Shape: ids_BL, n_B, segment_BL → start_BL, end_BL.
    """

    def __init__(self, body: Model):
        super().__init__(body)
        if not isinstance(body, TextEncoder):
            raise NotSupported(f"{type(body).__name__} has no features of tokens that have read both sides; expected an encoder, as bert")
        self.output = nn.Linear(body.pooled_width, 2)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)
        self._add_threshold()

    def scores(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Tensor:
        """logits_BL2 of start and end at every token.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: 0 for the tokens of the question, 1 for those of the passage.
        """
        self.check(ids_BL, n_B, segment_BL)
        assert isinstance(self.body, TextEncoder)
        return self.output(self.body.features(ids_BL, n_B, segment_BL))

    def steps(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Reading:
        scores_BL2 = self.scores(ids_BL, n_B, segment_BL).float()
        log_p_BL2 = scores_BL2.masked_fill(~answer_positions(n_B, segment_BL)[..., None], -torch.inf).log_softmax(1)
        start_BL, end_BL = log_p_BL2.unbind(-1)
        return Reading(start_BL[None], end_BL[None])
