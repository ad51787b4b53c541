"""Routing attention: queries and keys are assigned to learned centroids and attend within clusters."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bounds import Fraction, Heads, Size
from ..kernels import SCORES_AT_ONCE, HiddenPairs, attend_many_small
from ..patterns import Causal, Full, Pattern, full
from ._base import Attention, Call, Facts, Paper
from ._gather import allowed_pairs, slices, take_rows
from .helpers import float32_or_wider, no_autocast, real_lengths, share_heads, softmax_where


class RoutingAttention(Attention):
    r"""Each centroid selects the w queries and the w keys nearest to it; within this cluster attention is exact.

    $$o_i = \frac{1}{n_i} \sum_{c \ni i} \sum_{j \in c} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      i \in c \iff \mathrm{LN}(q_i)^\top \mu_c \text{ is among the } w \text{ largest}$$

    and likewise for keys. $n_i$ is the number of clusters in which i may attend to any key.

    Cost:    time O(L·C·(K + log L) + C·w²·K) for C clusters of w; memory O(C·w·K) plus the distances and scores of a
             few clusters, in training too: they are recomputed in the backward pass. With C = w = √L: time L^1.5, memory L.
    Use it:  for long sequences with topics, where related tokens are far apart. Half of the heads local, as in the paper.
    Avoid it: where every token must get an output: one that no centroid selects (an eighth of random ones with C·w = L) gets zeros.
    Limits:  heads and head size are fixed at construction. Membership depends on the whole sequence: causal as a
             mask only. Padding belongs to no cluster. No bias, no streaming. Membership has no gradient. Centroids
             learn by `update`, which training calls; `forward` changes nothing.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each with its own centroids.
        clusters: number of centroids C per head.
        size: queries and keys w per cluster.
        decay: share of a centroid that remains at each `update`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Roy, Saffar, Vaswani & Grangier 2020, "Efficient content-based sparse attention with routing transformers",
             arXiv:2003.05997, section 4.
    We differ: q and k need not be the same vector; where they are, exclude attending to oneself with `~window(0)`. A centroid
             moves towards the mean of the vectors nearest to it (the paper adds sums). Ties go to the earlier position.

        def learn(attention, inputs, out):                            # a forward hook that training registers and removes
            if torch.is_grad_enabled():
                q, k, _, pattern = inputs[:4]
                attention.update(*attention.tally(q, k, pattern))     # sums and counts may be added over processes first
        attention.register_forward_hook(learn)
    """

    facts = Facts(
        name="routing",
        paper=Paper("Efficient content-based sparse attention with routing transformers", 2020, "arXiv:2003.05997"),
        formula="softmax(q·k / √K) v,  within clusters of q and k",
        time="L·C·K + C·w²·K",
        memory="C·w·K",
        rows="joint",
        cross=False,
        state=None,
        normalised=False,
        bias=False,
    )

    centroid_HCK: Tensor

    def __init__(self, *, head_dim: Size, heads: Heads = 1, clusters: Size = 16, size: Size = 64, decay: Fraction = 0.999):
        super().__init__()
        self.heads, self.head_dim, self.clusters, self.size, self.decay = heads, head_dim, clusters, size, decay
        self.register_buffer("centroid_HCK", torch.randn(heads, clusters, head_dim))

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        clusters = max(1, round(length**0.5))
        return cls(heads=heads, head_dim=head_dim, clusters=clusters, size=-(-length // clusters))

    def members(self, x_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        """Membership of each query (or key) in each cluster, in_BHCL: for the definition, and to count those in none."""
        near_BHCL, at_L = self._nearness(_normed(x_BLHK), pattern), torch.arange(x_BLHK.shape[1], device=x_BLHK.device)
        inside = []
        for near_BHL in near_BHCL.unbind(2):
            mine, other = near_BHL.unsqueeze(-1), near_BHL.unsqueeze(-2)
            inside.append(((other > mine) | (other == mine) & (at_L < at_L[:, None])).sum(-1) < self.size)
        return torch.stack(inside, 2) & (near_BHCL > -torch.inf)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        pattern, (H, K) = call.pattern, q_BLHK.shape[2:]
        k_BMHK = share_heads(k_BMHK, H)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) * K**-0.5
        mask_BHLM = call.mask()
        sums_BHLM, count_BHL1 = torch.zeros_like(scores_BHLM), torch.zeros_like(scores_BHLM[..., :1])
        for q_BHL, k_BHM in zip(self.members(q_BLHK, pattern).unbind(2), self.members(k_BMHK, pattern).unbind(2), strict=True):
            allowed_BHLM = mask_BHLM & q_BHL.unsqueeze(-1) & k_BHM.unsqueeze(-2)
            sums_BHLM = sums_BHLM + softmax_where(scores_BHLM, allowed_BHLM)
            count_BHL1 = count_BHL1 + allowed_BHLM.any(-1, keepdim=True)
        return sums_BHLM / count_BHL1.clamp(min=1)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        (B, L, H, K), V, pattern = q_BLHK.shape, v_BMHV.shape[-1], call.pattern
        k_BMHK, v_BMHV = share_heads(k_BMHK, H), share_heads(v_BMHV, H)
        i_BHCW, j_BHCW = self._select(q_BLHK, pattern), self._select(k_BMHK, pattern)
        q_NWK, k_NWK, v_NWV = (take_rows(x, at).flatten(0, 2) for x, at in ((q_BLHK, i_BHCW), (k_BMHK, j_BHCW), (v_BMHV, j_BHCW)))
        first_BH11 = torch.arange(B * H, device=q_BLHK.device).view(B, H, 1, 1) * L
        i_NW, j_NW = ((first_BH11 + at).flatten(0, 2) for at in (i_BHCW, j_BHCW))
        precise = torch.promote_types(q_BLHK.dtype, torch.float32)
        out_NWV, some_NW = attend_many_small(q_NWK, k_NWK, v_NWV, self._hidden(i_NW, j_NW, pattern, H, L, precise), K**-0.5)

        to_X = i_NW.flatten()
        out_XV = out_NWV.new_zeros(B * H * L, V, dtype=precise).scatter_add(
            0, to_X[:, None].expand(-1, V), out_NWV.to(precise).flatten(0, 1)
        )
        count_X = out_XV.new_zeros(B * H * L).scatter_add(0, to_X, some_NW.flatten().to(precise))
        return (out_XV / count_X.clamp(min=1)[:, None]).to(v_BMHV.dtype).view(B, H, L, V).transpose(1, 2)

    def _hidden(self, i_NW: Tensor, j_NW: Tensor, pattern: Pattern, heads: int, length: int, dtype: torch.dtype) -> HiddenPairs | None:
        """The mask over the pairs of some clusters: 0 if allowed, negative if not; None if all are allowed."""
        if isinstance(pattern, Full):
            return None
        if isinstance(pattern, Causal):
            at_i, at_j = ((x % length).to(dtype) for x in (i_NW, j_NW))
            return lambda part: (at_i[part].unsqueeze(-1) - at_j[part].unsqueeze(-2)).clamp_max_(0)
        fit, real_B = pattern.fit(length, length), real_lengths(pattern, length, i_NW.device)

        def hidden(part: slice) -> Tensor:
            i, j = i_NW[part].unsqueeze(-1), j_NW[part].unsqueeze(-2)
            padding = i % length >= real_B[i // (heads * length) if len(real_B) > 1 else i * 0]  # belongs to no cluster
            return (allowed_pairs(fit, i, j, heads, length) & ~padding).to(dtype) - 1

        return hidden

    @torch.no_grad()
    def tally(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full) -> tuple[Tensor, Tensor]:
        """Sum and number of the queries and keys nearest to each centroid: sum_HCK, count_HC. Padding is excluded.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            pattern: pattern of the call, which tells padding.
        """
        self._check(q_BLHK, k_BMHK, None, pattern, None, None)
        H = q_BLHK.shape[2]
        shorter_HC1 = self._centroids().square().sum(-1, keepdim=True) / 2  # nearest by distance, not by dot product
        sum_HCK, count_HC = torch.zeros_like(self._centroids()), torch.zeros_like(shorter_HC1[..., 0])
        for x_BLHK in (_normed(q_BLHK), _normed(share_heads(k_BMHK, H))):
            for at in slices(x_BLHK.shape[1], SCORES_AT_ONCE // max(1, len(x_BLHK) * H * self.clusters)):
                near_BHCL = self._nearness(x_BLHK, pattern, at=at)
                mine_BHCL = (near_BHCL - shorter_HC1).argmax(2, keepdim=True) == torch.arange(self.clusters, device=near_BHCL.device)[
                    :, None
                ]
                mine_BHCL = (mine_BHCL & (near_BHCL > -torch.inf)).to(near_BHCL.dtype)
                sum_HCK += torch.einsum("bhcl,blhk->hck", mine_BHCL, x_BLHK[:, at])
                count_HC += mine_BHCL.sum((0, 3))
        return sum_HCK, count_HC

    @torch.no_grad()
    def update(self, sum_HCK: Tensor, count_HC: Tensor, decay: float | None = None) -> None:
        """Move each centroid that has members towards their mean: μ ← λμ + (1 − λ)·mean. `decay=0` is a step of k-means.

        Args:
            sum_HCK: sum of the members of each centroid.
            count_HC: number of the members of each centroid.
            decay: share λ of a centroid that remains; that of the constructor if not given.
        """
        keep = self.decay if decay is None else decay
        moved_HCK = keep * self._centroids() + (1 - keep) * sum_HCK / count_HC.clamp(min=1).unsqueeze(-1)
        self.centroid_HCK.copy_(torch.where(count_HC.unsqueeze(-1) > 0, moved_HCK, self._centroids()))

    def _centroids(self) -> Tensor:
        return float32_or_wider(self.centroid_HCK)

    @no_autocast
    def _nearness(self, x_BLHK: Tensor, pattern: Pattern, clusters: slice = slice(None), at: slice = slice(None)) -> Tensor:
        """near_BHCL, dot products of layer-normed vectors and centroids, of some clusters or positions; −inf for padding."""
        at_L = torch.arange(x_BLHK.shape[1], device=x_BLHK.device)[at]
        near_BHCL = torch.einsum("blhk,hck->bhcl", x_BLHK[:, at], self._centroids()[:, clusters].to(x_BLHK.dtype))
        near_BHCL = near_BHCL.masked_fill(
            near_BHCL.isnan(), torch.finfo(near_BHCL.dtype).min
        )  # of a NaN or an infinity: farthest, but there
        padding_BL = at_L >= real_lengths(pattern, x_BLHK.shape[1], x_BLHK.device)[:, None]
        return near_BHCL.masked_fill(padding_BL[:, None, None], -torch.inf)

    def _select(self, x_BLHK: Tensor, pattern: Pattern) -> Tensor:
        """The positions each cluster selects, at_BHCW, in order; padding only where there is nothing else.

        A few clusters at a time: the distances of all of them are C·L numbers, L^1.5 with √L clusters.
        """
        x_BLHK, (B, L, H) = _normed(x_BLHK), x_BLHK.shape[:3]
        parts = slices(self.clusters, SCORES_AT_ONCE // max(1, B * L * H))
        return torch.cat([self._nearest(self._nearness(x_BLHK, pattern, part)) for part in parts], 2)

    def _nearest(self, near_BHCL: Tensor) -> Tensor:
        """The positions of the w largest, at_BHCW, in order. Ties go to the earlier position."""
        size = min(self.size, near_BHCL.shape[-1])
        least = near_BHCL.topk(size, sorted=False).values.amin(-1, keepdim=True)
        above, level = near_BHCL > least, near_BHCL == least
        selected_BHCL = above | level & (level.cumsum(-1) <= size - above.sum(-1, keepdim=True))
        return selected_BHCL.nonzero()[:, -1].view(*near_BHCL.shape[:-1], size)


def _normed(x_BLHK: Tensor) -> Tensor:
    return F.layer_norm(float32_or_wider(x_BLHK.detach()), x_BLHK.shape[-1:])
