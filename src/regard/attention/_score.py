"""Score, normalise, average: what attention in recurrent networks, and softmax attention after it, have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import BadConfig
from ..kernels import EdgePlan, ScoreActivation, attend, attend_pointwise, average_by_edges, dropout, edge_plan
from ..patterns import full
from ._base import Attention, Call
from .helpers import average, by_rows, seeded_generator, share_heads, softmax_where


class ScoreAttention(Attention):
    r"""A score for each pair of query and key, a normaliser over the allowed keys, an average of their values.

    $$o_i = \sum_j \mathrm{normalise}_j\big(s(q_i, k_j) + b_{ij}\big)\, v_j$$

    Write `scores`. Optional: `prepare`, the part that concerns a query or a key alone, run once per call; `normalise`, softmax by default;
    `nonlinearity`, applied to scores with their bias; `numbers_per_pair`, how many numbers `scores` forms per pair. The average runs over chunks
    of query rows, each recomputed in the backward pass: L × M is never stored unless it is small.

    Where `pairwise` is True and the pattern is a sparse list of pairs, such as `edges`, `scores` gets these pairs alone, each as a batch row of one
    query and one key. `dropout`, of a class that takes it, acts on weights in training.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    """

    pairwise: ClassVar[bool] = False  # `scores` reads a query and a key, nothing of the call, and `normalise` is the softmax
    dropout: float = 0.0  # probability of dropping a weight in training

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the score that concerns a query or a key alone."""
        return q_BLHK, k_BMHK

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        """scores_BHLM from prepared queries and keys; `call` has the positions.

        Args:
            q_BLHK: prepared queries.
            k_BMHK: prepared keys.
            call: the pattern, positions, gates and state of the call.
        """
        raise NotImplementedError

    def nonlinearity(self, scores_BHLM: Tensor) -> Tensor:
        """Scores with their bias as they go into the normaliser."""
        return scores_BHLM

    def normalise(self, scores_BHLM: Tensor, mask_BHLM: Tensor) -> Tensor:
        """weights_BHLM, zero outside the mask. There is at least one key; rows without an allowed key are zeros, with finite gradients."""
        return softmax_where(scores_BHLM, mask_BHLM)

    def numbers_per_pair(self, q_BLHK: Tensor) -> int:
        return 1

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return self._prepared_weights(*self.prepare(q_BLHK, k_BMHK), call)

    def _prepared_weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        scores_BHLM = self.nonlinearity(self.scores(q_BLHK, k_BMHK, call) + call.scores_bias())
        return self.normalise(scores_BHLM, call.mask()) if call.keys else scores_BHLM  # a row has a maximum, a first key …

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        plan = edge_plan(call.pattern, q_BLHK, k_BMHK) if self.pairwise else None
        q_BLHK, k_BMHK = self.prepare(q_BLHK, k_BMHK)
        rate, seed = self.dropout if self.training else 0.0, None
        if plan is not None and not plan.by_head:
            scores_HE = self._scores_along(plan, q_BLHK, k_BMHK, call)
            if scores_HE is not None:
                return average_by_edges(scores_HE, v_BMHV, plan, len(q_BLHK), rate)
        if rate:
            seed = int(torch.randint(2**31, (), device="cpu"))

        def attend_rows(rows: Tensor) -> Tensor:
            weights_BHLM = self._prepared_weights(q_BLHK[:, rows], k_BMHK, call.of_rows(rows))
            if seed is not None:  # the same in the backward pass, which computes the rows again
                weights_BHLM = dropout(weights_BHLM, rate, seeded_generator(seed + int(rows[0])))
            return average(weights_BHLM, v_BMHV)

        return by_rows(attend_rows, q_BLHK, v_BMHV, q_BLHK.shape[2] * call.keys * self.numbers_per_pair(q_BLHK))

    def _scores_along(self, plan: EdgePlan, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor | None:
        """Scores of listed pairs, scores_HE, from prepared queries and keys; None if there is a bias that is known by tiles only."""
        heads = q_BLHK.shape[2]
        added_HE = None if call.bias is None else plan.added(call.bias, call.queries, call.keys, heads)
        if call.bias is not None and added_HE is None:
            return None
        q_E1HK = q_BLHK.flatten(0, 1).index_select(0, plan.by_query.rows_E).unsqueeze(1)
        k_E1HK = k_BMHK.flatten(0, 1).index_select(0, plan.by_query.columns_E).unsqueeze(1)
        scores_HE = self.scores(q_E1HK, k_E1HK, Call(full, None, None, 1, 1, call.device))[:, :, 0, 0].t()
        return self.nonlinearity(scores_HE if added_HE is None else scores_HE + added_HE)


class DotProductAttention(ScoreAttention):
    """A score that is the dot product of a transformed query and key, so the tiled softmax kernel applies. Write `prepare`.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for hook in ("scores", "normalise"):
            if hook in vars(cls) and "_forward" not in vars(cls):
                raise BadConfig(
                    f"{cls.__name__} writes `{hook}`, which the tiled softmax of DotProductAttention never calls; derive from ScoreAttention, "
                    "or write `_forward` too"
                )

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, q_BLHK.shape[2]))

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        q_BLHK, k_BMHK = self.prepare(q_BLHK, k_BMHK)
        return attend(q_BLHK, k_BMHK, v_BMHV, call.pattern, scale=1.0, bias=call.bias)


class PointwiseAttention(DotProductAttention):
    """Weights that are a function of each score alone, without a normaliser, computed in tiles.

    Set `activation`. Optional: `prepare` (by default q / √K and k), `row_bias`, one number per query added to its scores. Set
    `normalised=False` in `facts`.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    """

    activation: ClassVar[ScoreActivation]

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return q_BLHK * q_BLHK.shape[-1] ** -0.5, k_BMHK

    def row_bias(self, call: Call) -> Tensor | None:
        """A number added to all scores of a query, broadcasting to BHL."""
        return None

    def _prepared_weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        scores_BHLM, row_bias = self.scores(q_BLHK, k_BMHK, call) + call.scores_bias(), self.row_bias(call)
        if row_bias is not None:
            scores_BHLM = scores_BHLM + row_bias.unsqueeze(-1).to(scores_BHLM.dtype)
        return self.normalise(scores_BHLM, call.mask())

    def normalise(self, scores_BHLM: Tensor, mask_BHLM: Tensor) -> Tensor:
        allowed_BHLM = mask_BHLM & (scores_BHLM > -torch.inf)
        return self.activation.value(scores_BHLM.masked_fill(~allowed_BHLM, 0)).masked_fill(~allowed_BHLM, 0)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        q_BLHK, k_BMHK = self.prepare(q_BLHK, k_BMHK)
        return attend_pointwise(
            q_BLHK, k_BMHK, v_BMHV, call.pattern, self.activation, scale=1.0, bias=call.bias, row_bias=self.row_bias(call)
        )
