"""Synthesizer: attention weights without comparing queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import Bias
from ..patterns import Pattern, causal, full
from ._base import Attention, Facts, average, bias_of, bias_rows, pattern_rows, share_heads, softmax_where
from ._scored import by_rows, fits, uniform
from ._state import Cache, State, remembered

TITLE, PAPER = "Synthesizer: rethinking self-attention in transformer models", "arXiv:2005.00743"


class _Synthesizer(Attention):
    """A logit for each pair of positions, a softmax over the keys one may see, an average. The hole: `logits`.

    Keys and queries count from 0 where their row of the batch begins; there are logits for the first `length` of them.
    """

    heads: int | None = None  # what the parameters were made for; None fits any
    width: int | None = None
    reads: ClassVar[bool] = True  # q or k; else one matrix serves the whole batch

    def __init__(self, length: int):
        super().__init__()
        if length < 1:
            raise ShapeError(f"{type(self).__name__} has logits for `length` keys, so at least 1, got {length}")
        self.length = length

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """logits_BHLM of queries at i and keys at j; places are 1L and 1M if the same for all, and B may be 1 if q is not read."""
        raise NotImplementedError

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        return self.weights_of(torch.arange(q_BLHK.shape[1], device=q_BLHK.device), q_BLHK, k_BMHK, pattern, bias)

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        weights_BHLM = self._weights(rows, q_BLHK, k_BMHK, pattern, bias, _from_zero(k_BMHK))
        return weights_BHLM.expand(len(q_BLHK), -1, -1, -1)

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        j_BM = None
        if state is not None:
            k_BMHK, v_BMHV, pattern, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, pattern, bias)
            assert isinstance(state, Cache)
            j_BM = state.places()
        (B, L, H), M = q_BLHK.shape[:3], k_BMHK.shape[1]
        place_BM = _from_zero(k_BMHK) if j_BM is None else j_BM
        matrices = B if self.reads or bias is not None else max(pattern.batch, len(place_BM))

        def look(rows: Tensor) -> Tensor:
            return average(self._weights(rows, q_BLHK, k_BMHK, pattern, bias, place_BM), v_BMHV)

        return by_rows(look, L, matrices * H * M, q_BLHK.device)

    def _weights(self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern, bias: Tensor | Bias | None, j_BM: Tensor) -> Tensor:
        L, M, device = q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.device
        i_BL = j_BM[:, -1:] + 1 - L + rows if M else rows[None]  # the last query stands at the last key
        logits_BHLM = self.logits(q_BLHK[:, rows], k_BMHK, i_BL, j_BM)
        logits_BHLM = logits_BHLM + bias_of(bias_rows(bias, rows, L, M), len(rows), M, device)
        return softmax_where(logits_BHLM, pattern_rows(pattern, rows, L, M).mask(len(rows), M, device))

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch)  # keeps every key, whatever the pattern: weights are asked for by place, and there are at most `length`

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        super().check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)
        keys = k_BMHK.shape[1] + (state.length if isinstance(state, Cache) else 0)
        if keys > self.length:
            raise ShapeError(
                f"{type(self).__name__} has logits for {self.length} keys and was given {keys}; make it with length={keys}, "
                "or use SoftmaxAttention, which takes any number"
            )

    def extra_repr(self) -> str:
        said = {"heads": self.heads, "width": self.width, "length": self.length}
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)


class DenseSynthesizer(_Synthesizer):
    r"""Each token says from itself alone at which positions it looks, whatever stands there: keys are not read.

    $$o_i = \sum_j \mathrm{softmax}_j\big(w_j^\top \mathrm{relu}(q_i) + b_j\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·M·(K + V)), memory L·M in chunks of rows; N·K parameters a head for `length` N.
    Use it:  as the ablation that asks what comparing tokens is worth; where a token's kind fixes where it looks.
    Avoid it: where the answer depends on what the other tokens are: copying, recall.
    Limits:  at most `length` keys. Keys that are not allowed are left out before the softmax, so short rows sum to one.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    We differ: q is the first layer, W₁x + b₁: the projection that MultiHead makes, so the hidden layer is as wide as a head.
    """

    facts = Facts(
        name="dense_synthesizer",
        year=2020,
        title=TITLE,
        paper=PAPER,
        formula="softmax(W relu(q)) v",
        time="L·M·(K + V)",
        memory="L·M",
        positional=True,
    )

    def __init__(self, *, width: int, length: int, heads: int = 1):
        super().__init__(length)
        self.heads, self.width = heads, width
        self.w_HNK, self.b_HN = uniform(heads, length, width, fan=width), uniform(heads, length, fan=width)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width, length=length)

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        w_BHMK, b_BHM1 = _at(self.w_HNK, j_BM), _at(self.b_HN[..., None], j_BM)
        return torch.einsum("blhk,bhmk->bhlm", F.relu(q_BLHK), w_BHMK) + b_BHM1.mT


class RandomSynthesizer(_Synthesizer):
    r"""One learned matrix says who looks at whom, the same for every input: neither queries nor keys are read.

    $$o_i = \sum_j \mathrm{softmax}_j\big(R_{ij}\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·M·V), one matrix product for the whole batch; memory L·M in chunks of rows; N² parameters a head.
    Use it:  as the ablation that asks what content is worth; for fixed rearrangements, where it is the fastest mixer.
    Avoid it: where anything depends on content; with weight decay on R, which drives it to the plain mean.
    Limits:  at most `length` tokens, of one sequence: R has a row for each query.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
             Its "fixed random" is `.requires_grad_(False)`.
    We differ: nothing. R begins small (0.02): large logits would be one-hot from the start.
    """

    facts = Facts(
        name="random_synthesizer",
        year=2020,
        title=TITLE,
        paper=PAPER,
        formula="softmax(R) v",
        time="L·M·V",
        memory="L·M",
        cross=False,
        positional=True,
    )
    reads = False

    def __init__(self, *, length: int, heads: int = 1):
        super().__init__(length)
        self.heads = heads
        self.r_HNN = nn.Parameter(0.02 * torch.randn(heads, length, length))

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, length=length)

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        return _columns(_at(self.r_HNN, i_BL), j_BM)


class FactorisedDenseSynthesizer(_Synthesizer):
    r"""The dense Synthesizer with two short vectors a token, whose products are the logits.

    $$o_i = \sum_j \mathrm{softmax}_j\big(a_i[j \bmod n] \cdot b_i[\lfloor j/n \rfloor]\big)\, v_j \qquad
      a_i = W_a\,\mathrm{relu}(q_i) + c_a, \quad b_i = W_b\,\mathrm{relu}(q_i) + c_b$$

    Cost:    time O(L·(√N·K + M·V)), memory L·M in chunks of rows; about 2·√N·K parameters a head for `length` N.
    Use it:  in place of the dense one, where its parameters weigh.
    Avoid it: where content matters, as the dense one.
    Limits:  at most `length` keys. The logits of a row are a table of rank one.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    We differ: n is the square root of `length`, rounded up, so any length can be cut; q is the first layer, as in
             DenseSynthesizer.
    """

    facts = Facts(
        name="factorised_dense_synthesizer",
        year=2020,
        title=TITLE,
        paper=PAPER,
        formula="softmax(a[j mod n]·b[j div n]) v,  (a, b) = W relu(q)",
        time="L·(√N·K + M·V)",
        memory="L·M",
        positional=True,
    )

    def __init__(self, *, width: int, length: int, heads: int = 1):
        super().__init__(length)
        self.heads, self.width, self.n = heads, width, isqrt(length - 1) + 1
        self.sizes = (self.n, -(-length // self.n))
        self.w_HKN, self.c_HN = uniform(heads, width, sum(self.sizes), fan=width), uniform(heads, sum(self.sizes), fan=width)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width, length=length)

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        both_BHLN = torch.einsum("blhk,hkn->bhln", F.relu(q_BLHK), self.w_HKN) + self.c_HN[:, None]
        a_BHLN, b_BHLN = both_BHLN.split(self.sizes, -1)
        j_BM = j_BM.clamp(0, self.length - 1)
        return _columns(a_BHLN, j_BM % self.n) * _columns(b_BHLN, j_BM // self.n)


class FactorisedRandomSynthesizer(_Synthesizer):
    r"""The random Synthesizer with a matrix of low rank.

    $$o_i = \sum_j \mathrm{softmax}_j\big(r_i^\top s_j\big)\, v_j \qquad r_i, s_j \in \mathbb{R}^{8}, \text{ learned for each position}$$

    Cost:    time O(L·M·V), one matrix product for the whole batch; memory L·M in chunks of rows; 16·N parameters a head.
    Use it:  in place of the random one for long sequences, where N² parameters overfit or weigh.
    Avoid it: where anything depends on content; for sharp rearrangements of many places, which want full rank.
    Limits:  at most `length` tokens, of one sequence.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    """

    facts = Facts(
        name="factorised_random_synthesizer",
        year=2020,
        title=TITLE,
        paper=PAPER,
        formula="softmax(R S) v",
        time="L·M·V",
        memory="L·M",
        cross=False,
        positional=True,
    )
    reads = False

    def __init__(self, *, length: int, heads: int = 1, rank: int = 8):
        super().__init__(length)
        self.heads = heads
        spread = 0.02**0.5 * rank**-0.25  # then the logits have one of 0.02, as the entries of the full matrix
        self.r_HNR, self.s_HNR = (nn.Parameter(spread * torch.randn(heads, length, rank)) for _ in "rs")

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, length=length)

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        return _at(self.r_HNR, i_BL) @ _at(self.s_HNR, j_BM).mT


class MixtureSynthesizer(_Synthesizer):
    r"""Logits of several Synthesizers, and of softmax attention, added with learned shares.

    $$o_i = \sum_j \mathrm{softmax}_j\Big(\alpha_0\, q_i^\top k_j / \sqrt{K} + \sum_m \alpha_m\, B^{(m)}_{ij}\Big)\, v_j \qquad
      \alpha = \mathrm{softmax}(a)$$

    Cost:    time O(L·M·K) and that of the parts, memory L·M in chunks of rows.
    Use it:  random with softmax: the paper's best, where positions and content both matter.
    Avoid it: where SoftmaxAttention with a learned bias on positions will do: that is the same without the shares.
    Limits:  at most as many tokens as the part for the fewest, of one sequence.
    Paper:   Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, section 3.
    We differ: the shares are one number a part, for all heads. `compare=False` leaves out q·k.
    """

    facts = Facts(
        name="mixture_synthesizer",
        year=2020,
        title=TITLE,
        paper=PAPER,
        formula="softmax(α₀ q·k / √K + α₁ R + …) v",
        time="L·M·K",
        memory="L·M",
        cross=False,
        positional=True,
    )

    def __init__(self, parts: Iterable[_Synthesizer], *, compare: bool = True):
        parts = list(parts)
        if not parts:
            raise ShapeError("MixtureSynthesizer mixes at least one Synthesizer, got none; SoftmaxAttention compares q and k alone")
        super().__init__(min(part.length for part in parts))
        self.parts, self.compare = nn.ModuleList(parts), compare
        self.share_P = nn.Parameter(torch.zeros(len(parts) + compare))  # of q·k first

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls([RandomSynthesizer(heads=heads, length=length)])

    def logits(self, q_BLHK: Tensor, k_BMHK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        said: list[Tensor] = [part.logits(q_BLHK, k_BMHK, i_BL, j_BM) for part in self.parts]  # type: ignore[operator]
        if self.compare:
            H, K = q_BLHK.shape[2:]
            said.insert(0, torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, H)) / K**0.5)
        shares = self.share_P.softmax(-1)
        mixed_BHLM = shares[0] * said[0]
        for share, one in zip(shares[1:], said[1:], strict=True):
            mixed_BHLM = mixed_BHLM + share * one
        return mixed_BHLM

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        super().check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        for part in self.parts:
            part.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)  # type: ignore[operator]


def _at(table_HNX: Tensor, place_BL: Tensor) -> Tensor:
    """What a table of each head holds for these places: (B or 1, H, L, X). What a row forgot is out of range, and forbidden."""
    place_BL = place_BL.clamp(0, table_HNX.shape[1] - 1)
    return table_HNX.index_select(1, place_BL.flatten()).unflatten(1, place_BL.shape).transpose(0, 1)  # type: ignore[no-any-return]


def _columns(x_BHLN: Tensor, place_BM: Tensor) -> Tensor:
    """Those columns, (B, H, L, M), of places that may differ by batch row."""
    place_BM = place_BM.clamp(0, x_BHLN.shape[-1] - 1)
    if len(place_BM) == 1:
        return x_BHLN.index_select(-1, place_BM[0])
    B, H, L, _ = x_BHLN.shape
    return x_BHLN.gather(-1, place_BM[:, None, None].expand(B, H, L, -1))


def _from_zero(k_BMHK: Tensor) -> Tensor:
    return torch.arange(k_BMHK.shape[1], device=k_BMHK.device)[None]
