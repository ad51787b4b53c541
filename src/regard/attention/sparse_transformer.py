"""The two patterns of the Sparse Transformer. Each has two factors: one looks near, one picks what stands for the rest."""

from __future__ import annotations

from math import isqrt
from typing import Literal, Self, Unpack

import torch
from torch import Tensor

from ..errors import ShapeError
from ..kernels import Bias, attend, merge
from ..patterns import Pattern, block, full, per_head, stride, summary, window
from ._base import Facts
from ._patterned import Options, Patterned, by_heads, in_columns
from ._state import State

Factor = Literal[0, 1] | None


class SparseStridedAttention(Patterned):
    r"""The last `step` keys, and every `step`-th before them: in an image `step` wide, the row and the column.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : |i - j| \le s \} \cup \{ j : (i - j) \bmod s = 0 \}$$

    Cost:    time O(L·(s + M/s)·K), so L^1.5 with s = √L; memory O(L·K). Patterns other than `full` and `causal`, or a bias, make it
             dense work in tiles.
    Use it:  for images, sound and other data with a period; with `causal`, as the paper has it.
    Avoid it: for text, which has no columns: there fixed attention was better (0.99 against 1.13 bits a byte in the paper).
    Limits:  within one sequence. With `heads` their number is fixed.
    Paper:   Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4.3; how the two sets
             are used, section 5.1: together in every head (merged, the default); one in each half of the `heads`; or one a
             layer (interleaved): `factor=0` and `factor=1` in turn.
    We differ: the direction is the caller's; heads are parted in halves, not odd and even, which is the same but for their names.
    """

    facts = Facts(
        name="sparse_strided",
        year=2019,
        title="Generating long sequences with sparse transformers",
        paper="arXiv:1904.10509",
        formula="softmax(q·k / √K) v,  |i − j| ≤ s or (i − j) mod s = 0",
        time="L·(s + M/s)·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, step: int = 128, *, heads: int | None = None, factor: Factor = None, **options: Unpack[Options]):
        super().__init__(_used(window(step), stride(step), heads, factor), **options)
        self.step, self.heads, self.factor = step, heads, factor

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(2, isqrt(length)))

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        if not self._plain(pattern, bias, state) or self.factor == 0:
            return super().forward(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern)

        def near(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._average(q, k, v, pattern & window(self.step))

        def far(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return in_columns(lambda q, k, v: self._average(q, k, v, pattern), self.step, q, k, v)

        if self.factor == 1:
            return far(q_BLHK, k_BMHK, v_BMHV)
        if self.heads is not None:
            return by_heads([(n, look) for n, look in zip(_halves(self.heads), (near, far), strict=True) if n], q_BLHK, k_BMHK, v_BMHV)
        return self._merged(q_BLHK, k_BMHK, v_BMHV, pattern)

    def _merged(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern) -> Tensor:
        """The window, and of each column what is more than one row away, which the window has not seen."""

        def look(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
            dropout = self.dropout if self.training else 0.0
            return attend(q, k, v, pattern, scale=self.scale, softcap=self.softcap, dropout=dropout, with_lse=True)

        def column(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out, lse = look(q, k, v, pattern & ~window(1))
            return torch.cat([out, lse.transpose(1, 2).unsqueeze(-1)], -1)  # both go back to their places together

        far = in_columns(column, self.step, q_BLHK, k_BMHK, v_BMHV)
        near = look(q_BLHK, k_BMHK, v_BMHV, pattern & window(self.step))
        return merge([near, (far[..., :-1], far[..., -1].transpose(1, 2))])[0].to(v_BMHV.dtype)  # the log-sum-exp is in float32 at least


class SparseFixedAttention(Patterned):
    r"""The block of the query, and the `last` keys of every block, which learn to stand for theirs.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : \lfloor j/s \rfloor = \lfloor i/s \rfloor \} \cup \{ j : j \bmod s \ge s - c \}$$

    Cost:    time O(L·(s + c·M/s)·K), so L^1.5 with s = √L; memory O(L·K).
    Use it:  for text, with `causal`, as the paper has it: 128 to 256 keys a block, 8 to 32 of them summaries.
    Avoid it: for images, where the same places would always speak for the rest.
    Limits:  within one sequence. With `heads` their number is fixed.
    Paper:   Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4.3; how the two sets
             are used, section 5.1: together in every head (merged, the default); one in each half of the `heads`; or one a
             layer (interleaved): `factor=0` and `factor=1` in turn.
    We differ: the direction is the caller's; heads are parted in halves; all heads have the same summaries (the paper lets heads take
             different ones: `per_head` patterns do).
    """

    facts = Facts(
        name="sparse_fixed",
        year=2019,
        title="Generating long sequences with sparse transformers",
        paper="arXiv:1904.10509",
        formula="softmax(q·k / √K) v,  ⌊j/s⌋ = ⌊i/s⌋ or j mod s ≥ s − c",
        time="L·(s + c·M/s)·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, step: int = 128, last: int = 8, *, heads: int | None = None, factor: Factor = None, **options: Unpack[Options]):
        super().__init__(_used(block(step), summary(step, last), heads, factor), **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(2, isqrt(length)), 1)


def _used(near: Pattern, far: Pattern, heads: int | None, factor: Factor) -> Pattern:
    """The two factors merged, or one in each half of the heads, or one of them alone."""
    if factor is None:
        first, second = _halves(heads) if heads else (0, 0)
        return per_head(*[near] * first, *[far] * second) if heads else near | far
    if heads is not None or factor not in (0, 1):
        raise ShapeError(
            f"factor={factor!r}, heads={heads}: a layer has the factor 0 or 1, or one in each half of its heads, or both merged"
        )
    return (near, far)[factor]


def _halves(heads: int) -> tuple[int, int]:
    return heads - heads // 2, heads // 2
