"""Synthesizer: attention weights without comparing queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..bounds import Heads, Size
from ..errors import BadConfig, ShapeError
from ..patterns import Pattern
from ._base import Attention, Call, Facts, Paper
from ._cache import Cache
from .helpers import average, by_rows, share_heads, softmax_where, uniform_parameter

TITLE, PAPER = "Synthesizer: rethinking self-attention in transformer models", "arXiv:2005.00743"


class _Synthesizer(Attention):
    """A logit per pair of positions, a softmax over the allowed keys, an average. Write `logits`.

    Positions count from 0 at the start of each batch row; there are logits for the first `max_length` of them.
    """

    max_length: int
    reads_content: ClassVar[bool] = True  # q or k; else one matrix serves the whole batch

    def __init__(self, max_length: Size):
        super().__init__()
        self.max_length = max_length

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """logits_BHLM of queries at positions i and keys at j, each 1L and 1M if the same for all; B may be 1 if q is not read."""
        raise NotImplementedError

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return self._batch_weights(q_BLHK, k_BMHK, call).expand(len(q_BLHK), -1, -1, -1)

    def _batch_weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        """Compute the weights, with a batch axis of 1 where one matrix serves all rows."""
        logits_BHLM = self.logits(q_BLHK, k_BMHK, call.query_positions(), call.key_positions())
        return softmax_where(logits_BHLM + call.scores_bias(), call.mask())

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        B, _, H = q_BLHK.shape[:3]
        matrices = B if self.reads_content or call.bias is not None else max(call.pattern.batch, len(call.key_positions()))

        def attend_rows(rows: Tensor) -> Tensor:
            return average(self._batch_weights(q_BLHK[:, rows], k_BMHK, call.of_rows(rows)), v_BMHV)

        return by_rows(attend_rows, q_BLHK, v_BMHV, -(-matrices * H * call.keys // max(B, 1)))

    def _start(self, batch: int, pattern: Pattern) -> Cache:
        return Cache(batch)  # keeps every key, whatever the pattern: logits are read by position, and there are at most `max_length`


class DenseSynthesizer(_Synthesizer):
    r"""Each token predicts from itself alone which positions it attends to: keys are not read.

    $$o_i = \sum_j \mathrm{softmax}_j\big(w_j^\top \mathrm{relu}(q_i) + b_j\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·M·(K + V)), memory L·M in chunks of rows; N·K parameters per head for `max_length` N.
    Use it:  as an ablation of comparing tokens; where the kind of a token determines where it attends.
    Avoid it: where the output depends on what the other tokens are: copying, recall.
    Limits:  at most `max_length` keys. Masked keys are excluded from the softmax, so short rows sum to one.
    Args:
        head_dim: size K of queries, which is that of the hidden layer.
        max_length: maximum number of keys N.
        heads: number of heads, each with its own matrix.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    We differ: q is the first layer, W₁x + b₁, which MultiHead projects, so the hidden layer has the size of a head.
    """

    facts = Facts(
        name="dense_synthesizer",
        paper=Paper(TITLE, 2020, PAPER),
        formula="softmax(W relu(q)) v",
        time="L·M·(K + V)",
        memory="L·M",
        positional=True,
    )

    def __init__(self, *, head_dim: Size, max_length: Size, heads: Heads = 1):
        super().__init__(max_length)
        self.heads, self.head_dim = heads, head_dim
        self.w_HNK, self.b_HN = (
            uniform_parameter(heads, max_length, head_dim, fan=head_dim),
            uniform_parameter(heads, max_length, fan=head_dim),
        )

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        w_BHMK, b_BHM1 = _rows_at(self.w_HNK, j_BM), _rows_at(self.b_HN[..., None], j_BM)
        return torch.einsum("blhk,bhmk->bhlm", F.relu(q_BLHK), w_BHMK) + b_BHM1.mT


class RandomSynthesizer(_Synthesizer):
    r"""One learned matrix sets the weights, the same for every input: neither queries nor keys are read.

    $$o_i = \sum_j \mathrm{softmax}_j\big(R_{ij}\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·M·V), one matmul for the whole batch; memory L·M in chunks of rows; N² parameters per head.
    Use it:  as an ablation of content; for fixed rearrangements, where it is the fastest mixer.
    Avoid it: where anything depends on content; with weight decay on R, which drives it to the plain mean.
    Limits:  self-attention over at most `max_length` tokens: R has one row per query.
    Args:
        max_length: maximum number of tokens N.
        heads: number of heads, each with its own matrix R.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
             Its "fixed random" is `.requires_grad_(False)`.
    We differ: nothing. R is initialised small (0.02): large logits would be one-hot from the start.
    """

    facts = Facts(
        name="random_synthesizer",
        paper=Paper(TITLE, 2020, PAPER),
        formula="softmax(R) v",
        time="L·M·V",
        memory="L·M",
        cross=False,
        positional=True,
    )
    reads_content = False

    def __init__(self, *, max_length: Size, heads: Heads = 1):
        super().__init__(max_length)
        self.heads = heads
        self.r_HNN = nn.Parameter(0.02 * torch.randn(heads, max_length, max_length))

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        return _columns_at(_rows_at(self.r_HNN, i_BL), j_BM)


class FactorisedDenseSynthesizer(_Synthesizer):
    r"""The dense Synthesizer with two short vectors per token, whose products are the logits.

    $$o_i = \sum_j \mathrm{softmax}_j\big(a_i[j \bmod n] \cdot b_i[\lfloor j/n \rfloor]\big)\, v_j \qquad
      a_i = W_a\,\mathrm{relu}(q_i) + c_a, \quad b_i = W_b\,\mathrm{relu}(q_i) + c_b$$

    Cost:    time O(L·(√N·K + M·V)), memory L·M in chunks of rows; about 2·√N·K parameters per head for `max_length` N.
    Use it:  in place of the dense Synthesizer, where the number of parameters matters.
    Avoid it: where content matters, as for the dense Synthesizer.
    Limits:  at most `max_length` keys. The logits of a row form a matrix of rank one.
    Args:
        head_dim: size K of queries, which is that of the hidden layer.
        max_length: maximum number of keys N.
        heads: number of heads, each with its own matrices.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    We differ: n is √`max_length`, rounded up, so any length can be split; q is the first layer, as in DenseSynthesizer.
    """

    facts = Facts(
        name="factorised_dense_synthesizer",
        paper=Paper(TITLE, 2020, PAPER),
        formula="softmax(a[j mod n]·b[j div n]) v,  (a, b) = W relu(q)",
        time="L·(√N·K + M·V)",
        memory="L·M",
        positional=True,
    )

    def __init__(self, *, head_dim: Size, max_length: Size, heads: Heads = 1):
        super().__init__(max_length)
        self.heads, self.head_dim, self.n = heads, head_dim, isqrt(max_length - 1) + 1
        self.sizes = (self.n, -(-max_length // self.n))
        self.w_HKN, self.c_HN = (
            uniform_parameter(heads, head_dim, sum(self.sizes), fan=head_dim),
            uniform_parameter(heads, sum(self.sizes), fan=head_dim),
        )

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        both_BHLN = torch.einsum("blhk,hkn->bhln", F.relu(q_BLHK), self.w_HKN) + self.c_HN[:, None]
        a_BHLN, b_BHLN = both_BHLN.split(self.sizes, -1)
        j_BM = j_BM.clamp(0, self.max_length - 1)
        return _columns_at(a_BHLN, j_BM % self.n) * _columns_at(b_BHLN, j_BM // self.n)


class FactorisedRandomSynthesizer(_Synthesizer):
    r"""The random Synthesizer with a low-rank matrix.

    $$o_i = \sum_j \mathrm{softmax}_j\big(r_i^\top s_j\big)\, v_j \qquad r_i, s_j \in \mathbb{R}^{8}, \text{ learned for each position}$$

    Cost:    time O(L·M·V), one matmul for the whole batch; memory L·M in chunks of rows; 16·N parameters per head.
    Use it:  in place of the random Synthesizer for long sequences, where N² parameters overfit or are too many.
    Avoid it: where anything depends on content; for sharp rearrangements of many positions, which need full rank.
    Limits:  self-attention over at most `max_length` tokens.
    Args:
        max_length: maximum number of tokens N.
        heads: number of heads, each with its own matrix.
        rank: rank of the matrix of logits.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    """

    facts = Facts(
        name="factorised_random_synthesizer",
        paper=Paper(TITLE, 2020, PAPER),
        formula="softmax(R S) v",
        time="L·M·V",
        memory="L·M",
        cross=False,
        positional=True,
    )
    reads_content = False

    def __init__(self, *, max_length: Size, heads: Heads = 1, rank: Size = 8):
        super().__init__(max_length)
        self.heads, self.rank = heads, rank
        spread = 0.02**0.5 * rank**-0.25  # gives logits a standard deviation of 0.02, as in the full matrix
        self.r_HNR, self.s_HNR = (nn.Parameter(spread * torch.randn(heads, max_length, rank)) for _ in "rs")

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        return _rows_at(self.r_HNR, i_BL) @ _rows_at(self.s_HNR, j_BM).mT


class MixtureSynthesizer(_Synthesizer):
    r"""Logits of several Synthesizers and of softmax attention, added with learned coefficients.

    $$o_i = \sum_j \mathrm{softmax}_j\Big(\alpha_0\, q_i^\top k_j / \sqrt{K} + \sum_m \alpha_m\, B^{(m)}_{ij}\Big)\, v_j \qquad
      \alpha = \mathrm{softmax}(a)$$

    Cost:    time O(L·M·K) plus that of the parts, memory L·M in chunks of rows.
    Use it:  with a random Synthesizer and softmax: the paper's best, where positions and content both matter.
    Avoid it: where SoftmaxAttention with a learned positional bias will do: that is the same without the coefficients.
    Limits:  self-attention over at most the smallest `max_length` of the parts.
    Args:
        parts: Synthesizers whose logits are added.
        compare: add the scaled dot products of q and k.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    We differ: one coefficient per part, for all heads. `compare=False` omits q·k.
    """

    facts = Facts(
        name="mixture_synthesizer",
        paper=Paper(TITLE, 2020, PAPER),
        formula="softmax(α₀ q·k / √K + α₁ R + …) v",
        time="L·M·K",
        memory="L·M",
        cross=False,
        positional=True,
    )

    def __init__(self, parts: Iterable[_Synthesizer], *, compare: bool = True):
        if not isinstance(parts, Iterable) or not (parts := list(parts)) or not all(isinstance(part, _Synthesizer) for part in parts):
            raise BadConfig(
                f"MixtureSynthesizer: parts={parts!r}; expected one Synthesizer or more; SoftmaxAttention compares q and k alone"
            )
        super().__init__(min(part.max_length for part in parts))
        self.parts, self.compare = nn.ModuleList(parts), compare
        self.heads = _common("heads", [part.heads for part in parts])
        self.head_dim = _common("head_dim", [part.head_dim for part in parts])
        self.share_P = nn.Parameter(torch.zeros(len(parts) + compare))  # of q·k first

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls([RandomSynthesizer(heads=heads, max_length=length)])

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        logits: list[Tensor] = [part.logits(q_BLHK, k_BMHK, i_BL, j_BM) for part in self.parts]  # type: ignore[operator]
        if self.compare:
            H, K = q_BLHK.shape[2:]
            logits.insert(0, torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, H)) / K**0.5)
        shares = self.share_P.softmax(-1)
        mixed_BHLM = shares[0] * logits[0]
        for share, one in zip(shares[1:], logits[1:], strict=True):
            mixed_BHLM = mixed_BHLM + share * one
        return mixed_BHLM


def _rows_at(table_HNX: Tensor, position_BL: Tensor) -> Tensor:
    """Rows of a per-head table at these positions, (B or 1, H, L, X). Keys before a row's start are out of range, and masked."""
    position_BL = position_BL.clamp(0, table_HNX.shape[1] - 1)
    return table_HNX.index_select(1, position_BL.flatten()).unflatten(1, position_BL.shape).transpose(0, 1)


def _columns_at(x_BHLN: Tensor, position_BM: Tensor) -> Tensor:
    """The columns at these positions, which may differ per batch row, (B, H, L, M)."""
    position_BM = position_BM.clamp(0, x_BHLN.shape[-1] - 1)
    if len(position_BM) == 1:
        return x_BHLN.index_select(-1, position_BM[0])
    B, H, L, _ = x_BHLN.shape
    return x_BHLN.gather(-1, position_BM[:, None, None].expand(B, H, L, -1))


def _common(name: str, values: list[int | None]) -> int | None:
    fixed = {value for value in values if value is not None}
    if len(fixed) > 1:
        raise ShapeError(f"MixtureSynthesizer: its parts have {name} {' and '.join(map(str, sorted(fixed)))}; expected the same for all")
    return fixed.pop() if fixed else None
