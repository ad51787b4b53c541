"""The two patterns of the Sparse Transformer, strided and fixed: each combines a local factor with one that covers the rest."""

from __future__ import annotations

from math import isqrt
from typing import Literal, Self, Unpack

import torch
from torch import Tensor

from ..bounds import Heads, Size
from ..errors import ShapeError
from ..kernels import attend, merge
from ..patterns import Pattern, block, per_head, stride, summary, window
from ._base import Call, Paper
from ._pattern import Attend, PatternAttention, PatternFacts, SoftmaxOptions, attend_columns, attend_head_groups

Factor = Literal[0, 1] | None


class SparseStridedAttention(PatternAttention):
    r"""The last `step` keys, and every `step`-th before them: in an image `step` wide, the row and the column.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : |i - j| \le s \} \cup \{ j : (i - j) \bmod s = 0 \}$$

    Cost:    time O(L·(s + M/s)·K), so L^1.5 with s = √L; memory O(L·K). Under patterns other than `full` and
             `causal`, or with a bias, tiles do dense work.
    Use it:  for images, audio and other data with a period; with `causal`, as in the paper.
    Avoid it: for text, which has no columns: fixed attention was better there (0.99 against 1.13 bits per byte in the paper).
    Limits:  self-attention only. With `heads` their number is fixed.
    Args:
        step: stride s, which is also the size of the window.
        heads: number of heads, the first half of which has the first factor and the others the second; None: any number.
        factor: None: both factors in every head, or halves by `heads`; 0: the window only; 1: the stride only.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4.3.
             By section 5.1 the two factors are merged in every head (the default), split between the halves of the
             `heads`, or alternate by layer (`factor=0`, `factor=1`).
    We differ: the direction is the caller's; heads are split into halves, not odd and even, which only renames them.
    """

    facts = PatternFacts(
        name="sparse_strided",
        paper=Paper("Generating long sequences with sparse transformers", 2019, "arXiv:1904.10509"),
        formula="softmax(q·k / √K) v,  |i − j| ≤ s or (i − j) mod s = 0",
        time="L·(s + M/s)·K",
        memory="L·K",
    )

    def __init__(self, step: Size = 128, *, heads: Heads | None = None, factor: Factor = None, **options: Unpack[SoftmaxOptions]):
        super().__init__(_combine(window(step), stride(step), heads, factor), **options)
        self.step, self.heads, self.factor = step, heads, factor

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(max(2, isqrt(length)))

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        direction = self._direction(call)
        if direction is None or self.factor == 0:
            return super()._forward(q_BLHK, k_BMHK, v_BMHV, call)

        def near(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._attend(q, k, v, direction & window(self.step))

        def far(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_columns(lambda q, k, v: self._attend(q, k, v, direction), self.step, q, k, v)

        if self.factor == 1:
            return far(q_BLHK, k_BMHK, v_BMHV)
        if self.heads is not None:
            groups: list[tuple[int, Attend]] = [(n, part) for n, part in zip(_halves(self.heads), (near, far), strict=True) if n]
            return attend_head_groups(groups, q_BLHK, k_BMHK, v_BMHV)
        return self._merged(q_BLHK, k_BMHK, v_BMHV, direction)

    def _merged(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, direction: Pattern) -> Tensor:
        """The window, plus the keys of the column that are more than one row away and so outside it."""
        softmax = self.softmax

        def attend_lse(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
            dropout = softmax.dropout if self.training else 0.0
            return attend(q, k, v, pattern, scale=softmax.scale, softcap=softmax.softcap, dropout=dropout, with_lse=True)

        def column(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out, lse = attend_lse(q, k, v, direction & ~window(1))
            return torch.cat([out, lse.transpose(1, 2).unsqueeze(-1)], -1)  # both return to their positions together

        far = attend_columns(column, self.step, q_BLHK, k_BMHK, v_BMHV)
        near = attend_lse(q_BLHK, k_BMHK, v_BMHV, direction & window(self.step))
        return merge([near, (far[..., :-1], far[..., -1].transpose(1, 2))])[0].to(v_BMHV.dtype)  # log-sum-exp is float32 or wider


class SparseFixedAttention(PatternAttention):
    r"""The block of the query, and the `last` keys of every block, which learn to summarise it.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : \lfloor j/s \rfloor = \lfloor i/s \rfloor \} \cup \{ j : j \bmod s \ge s - c \}$$

    Cost:    time O(L·(s + c·M/s)·K), so L^1.5 with s = √L; memory O(L·K).
    Use it:  for text, with `causal`, as in the paper: 128 to 256 keys per block, 8 to 32 of them summaries.
    Avoid it: for images, where the same positions would always summarise the rest.
    Limits:  self-attention only. With `heads` their number is fixed.
    Args:
        step: keys per block s.
        last: summaries c at the end of every block.
        heads: number of heads, the first half of which has the first factor and the others the second; None: any number.
        factor: None: both factors in every head, or halves by `heads`; 0: the block only; 1: the summaries only.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4.3.
             By section 5.1 the two factors are merged in every head (the default), split between the halves of the
             `heads`, or alternate by layer (`factor=0`, `factor=1`).
    We differ: the direction is the caller's; heads are split into halves; all heads have the same summaries (the
             paper lets heads use different ones, as `per_head` patterns do).
    """

    facts = PatternFacts(
        name="sparse_fixed",
        paper=Paper("Generating long sequences with sparse transformers", 2019, "arXiv:1904.10509"),
        formula="softmax(q·k / √K) v,  ⌊j/s⌋ = ⌊i/s⌋ or j mod s ≥ s − c",
        time="L·(s + c·M/s)·K",
        memory="L·K",
    )

    def __init__(
        self, step: Size = 128, last: Size = 8, *, heads: Heads | None = None, factor: Factor = None, **options: Unpack[SoftmaxOptions]
    ):
        super().__init__(_combine(block(step), summary(step, last), heads, factor), **options)
        self.step, self.last, self.heads, self.factor = step, last, heads, factor

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(max(2, isqrt(length)), 1)


def _combine(near: Pattern, far: Pattern, heads: int | None, factor: Factor) -> Pattern:
    """The two factors merged, or one in each half of the heads, or one of them alone."""
    if factor is None:
        first, second = _halves(heads) if heads else (0, 0)
        return per_head(*[near] * first, *[far] * second) if heads else near | far
    if heads is not None or factor not in (0, 1):
        raise ShapeError(
            f"factor={factor!r}, heads={heads}: expected factor 0 or 1, or heads (one factor in each half), or neither (both merged)"
        )
    return (near, far)[factor]


def _halves(heads: int) -> tuple[int, int]:
    return heads - heads // 2, heads // 2
