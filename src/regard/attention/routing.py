"""Routing Transformer's attention: queries and keys are sent to learned centroids, and look at each other there."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadConfig
from ..kernels import Bias, Hidden, many
from ..patterns import Causal, Full, Pattern, full
from ._base import Attention, Facts, share_heads, softmax_where, unmixed
from ._places import allowed, real, take
from ._scored import fits
from ._state import State


class RoutingAttention(Attention):
    r"""Each centroid draws the w queries and the w keys nearest to it; within this cluster attention is exact.

    $$o_i = \frac{1}{n_i} \sum_{c \ni i} \sum_{j \in c} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      i \in c \iff \mathrm{LN}(q_i)^\top \mu_c \text{ is among the } w \text{ largest}$$

    and keys alike. $n_i$ is the number of clusters in which i sees anything.

    Cost:    time O(L·C·(K + log L) + C·w²·K) for C clusters of w; memory O(C·w·K) and some
             clusters' scores, in training too: they are computed again on the way back. With C = w = √L: time L^1.5.
    Use it:  for long sequences with topics: what belongs together is far apart. Half of the heads local, as in the paper.
    Avoid it: where every token must get an answer: one that no centroid draws (an eighth of random ones with C·w = L) gets zeros.
    Limits:  heads and key size are fixed when it is made. Membership looks at the whole sequence: causal as a mask only.
             Padding belongs to no cluster. No bias, no steps. Which cluster a vector belongs to has no gradient.
             Centroids learn by `update`, which training calls; `forward` changes nothing.
    Paper:   Roy, Saffar, Vaswani & Grangier 2020, "Efficient content-based sparse attention with routing transformers",
             arXiv:2003.05997, section 4.
    We differ: q and k need not be one vector; where they are, rule out looking at oneself with `~window(0)`. A centroid
             moves towards the mean of what is nearest to it (the paper adds sums). Among equals the earlier position wins.

        def learn(attention, given, out):                             # a hook that training registers, and removes
            if torch.is_grad_enabled():
                q, k, _, pattern = given[:4]
                attention.update(*attention.tally(q, k, pattern))     # sums and counts may be added over processes first
        attention.register_forward_hook(learn)
    """

    facts = Facts(
        name="routing",
        year=2020,
        title="Efficient content-based sparse attention with routing transformers",
        paper="arXiv:2003.05997",
        formula="softmax(q·k / √K) v,  within clusters of q and k",
        time="L·C·K + C·w²·K",
        memory="C·w·K",
        causal="mask-only",
        cross=False,
        streaming=False,
        normalised=False,
        bias=False,
    )

    centroid_HCK: Tensor

    def __init__(self, *, width: int, heads: int = 1, clusters: int = 16, size: int = 64, decay: float = 0.999):
        super().__init__()
        if clusters < 1 or size < 1 or not 0 <= decay <= 1:
            raise BadConfig(
                f"RoutingAttention takes at least one cluster of at least one position, and a decay from 0 to 1; "
                f"got clusters={clusters}, size={size}, decay={decay}"
            )
        self.heads, self.width, self.clusters, self.size, self.decay = heads, width, clusters, size, decay
        self.register_buffer("centroid_HCK", torch.randn(heads, clusters, width))

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        clusters = max(1, round(length**0.5))
        return cls(heads=heads, width=width, clusters=clusters, size=-(-length // clusters))

    def members(self, x_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        """Whether each query (or key) is in each cluster, in_BHCL: for definitions and for counting those in none."""
        near_BHCL, at_L = self._nearness(x_BLHK, pattern), torch.arange(x_BLHK.shape[1], device=x_BLHK.device)
        inside = []
        for near_BHL in near_BHCL.unbind(2):
            mine, other = near_BHL.unsqueeze(-1), near_BHL.unsqueeze(-2)
            inside.append(((other > mine) | (other == mine) & (at_L < at_L[:, None])).sum(-1) < self.size)
        return torch.stack(inside, 2) & (near_BHCL > -torch.inf)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self._check(q_BLHK, k_BMHK, None, pattern, bias)
        L, H, K = q_BLHK.shape[1:]
        k_BMHK = share_heads(k_BMHK, H)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) * K**-0.5
        mask_BHLM = pattern.mask(L, L, q_BLHK.device)
        sums_BHLM, count_BHL1 = torch.zeros_like(scores_BHLM), torch.zeros_like(scores_BHLM[..., :1])
        for q_BHL, k_BHM in zip(self.members(q_BLHK, pattern).unbind(2), self.members(k_BMHK, pattern).unbind(2), strict=True):
            seen_BHLM = mask_BHLM & q_BHL.unsqueeze(-1) & k_BHM.unsqueeze(-2)
            sums_BHLM = sums_BHLM + softmax_where(scores_BHLM, seen_BHLM)
            count_BHL1 = count_BHL1 + seen_BHLM.any(-1, keepdim=True)
        return sums_BHLM / count_BHL1.clamp(min=1)

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self._check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        (B, L, H, K), V = q_BLHK.shape, v_BMHV.shape[-1]
        k_BMHK, v_BMHV = share_heads(k_BMHK, H), share_heads(v_BMHV, H)
        i_BHCW, j_BHCW = self._drawn(q_BLHK, pattern), self._drawn(k_BMHK, pattern)
        q_NWK, k_NWK, v_NWV = (take(x, at).flatten(0, 2) for x, at in ((q_BLHK, i_BHCW), (k_BMHK, j_BHCW), (v_BMHV, j_BHCW)))
        first_BH11 = torch.arange(B * H, device=q_BLHK.device).view(B, H, 1, 1) * L
        i_NW, j_NW = ((first_BH11 + at).flatten(0, 2) for at in (i_BHCW, j_BHCW))
        precise = torch.promote_types(q_BLHK.dtype, torch.float32)
        out_NWV, some_NW = many(q_NWK, k_NWK, v_NWV, self._hidden(i_NW, j_NW, pattern, H, L, precise), K**-0.5)

        to_X = i_NW.flatten()
        out_XV = out_NWV.new_zeros(B * H * L, V, dtype=precise).scatter_add(
            0, to_X[:, None].expand(-1, V), out_NWV.to(precise).flatten(0, 1)
        )
        count_X = out_XV.new_zeros(B * H * L).scatter_add(0, to_X, some_NW.flatten().to(precise))
        return (out_XV / count_X.clamp(min=1)[:, None]).to(v_BMHV.dtype).view(B, H, L, V).transpose(1, 2)

    def _hidden(self, i_NW: Tensor, j_NW: Tensor, pattern: Pattern, heads: int, length: int, dtype: torch.dtype) -> Hidden | None:
        """Which pairs of some clusters do not count: 0 or less than zero; None if all of them do."""
        if isinstance(pattern, Full):
            return None
        if isinstance(pattern, Causal):
            at_i, at_j = ((x % length).to(dtype) for x in (i_NW, j_NW))
            return lambda part: (at_i[part].unsqueeze(-1) - at_j[part].unsqueeze(-2)).clamp_max_(0)
        fit, real_B = pattern.fit(length, length), real(pattern, length, i_NW.device)

        def hidden(part: slice) -> Tensor:
            i, j = i_NW[part].unsqueeze(-1), j_NW[part].unsqueeze(-2)
            padding = i % length >= real_B[i // (heads * length) if len(real_B) > 1 else i * 0]  # belongs to no cluster
            return (allowed(fit, i, j, heads, length) & ~padding).to(dtype) - 1

        return hidden

    @torch.no_grad()
    def tally(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full) -> tuple[Tensor, Tensor]:
        """The sum and the number of the queries and keys nearest to each centroid: sum_HCK, count_HC. Padding is left out."""
        self._check(q_BLHK, k_BMHK, None, pattern)
        H = q_BLHK.shape[2]
        shorter_HC1 = self._centroids().square().sum(-1, keepdim=True) / 2  # nearest in distance, not in product
        sum_HCK, count_HC = torch.zeros_like(self._centroids()), torch.zeros_like(shorter_HC1[..., 0])
        for x_BLHK in (q_BLHK, share_heads(k_BMHK, H)):
            near_BHCL = self._nearness(x_BLHK, pattern)
            mine_BHCL = (near_BHCL - shorter_HC1).argmax(2, keepdim=True) == torch.arange(self.clusters, device=near_BHCL.device)[:, None]
            mine_BHCL = (mine_BHCL & (near_BHCL > -torch.inf)).to(near_BHCL.dtype)
            sum_HCK += torch.einsum("bhcl,blhk->hck", mine_BHCL, _normed(x_BLHK))
            count_HC += mine_BHCL.sum((0, 3))
        return sum_HCK, count_HC

    @torch.no_grad()
    def update(self, sum_HCK: Tensor, count_HC: Tensor, decay: float | None = None) -> None:
        """Move each centroid that drew anything towards its mean: μ ← λμ + (1 − λ)·mean. With `decay=0`, a step of k-means."""
        keep = self.decay if decay is None else decay
        moved_HCK = keep * self._centroids() + (1 - keep) * sum_HCK / count_HC.clamp(min=1).unsqueeze(-1)
        self.centroid_HCK.copy_(torch.where(count_HC.unsqueeze(-1) > 0, moved_HCK, self._centroids()))

    def _check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)

    def _centroids(self) -> Tensor:
        return self.centroid_HCK.to(torch.promote_types(self.centroid_HCK.dtype, torch.float32))

    @unmixed
    def _nearness(self, x_BLHK: Tensor, pattern: Pattern) -> Tensor:
        """near_BHCL, the product of normed vectors and centroids; −inf for padding."""
        L, x_BLHK = x_BLHK.shape[1], _normed(x_BLHK.detach())
        near_BHCL = torch.einsum("blhk,hck->bhcl", x_BLHK, self._centroids().to(x_BLHK.dtype))
        padding_BL = torch.arange(L, device=x_BLHK.device) >= real(pattern, L, x_BLHK.device)[:, None]
        return near_BHCL.masked_fill(padding_BL[:, None, None], -torch.inf)

    def _drawn(self, x_BLHK: Tensor, pattern: Pattern) -> Tensor:
        """The positions each cluster draws, at_BHCW, in their order; padding only where there is nothing else."""
        near_BHCL, size = self._nearness(x_BLHK, pattern), min(self.size, x_BLHK.shape[1])
        least = near_BHCL.topk(size, sorted=False).values.amin(-1, keepdim=True)
        above, level = near_BHCL > least, near_BHCL == least
        drawn_BHCL = above | level & (level.cumsum(-1) <= size - above.sum(-1, keepdim=True))  # the first of equals
        return drawn_BHCL.nonzero()[:, -1].view(*near_BHCL.shape[:-1], size)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, clusters={self.clusters}, size={self.size}"


def _normed(x_BLHK: Tensor) -> Tensor:
    return F.layer_norm(x_BLHK.to(torch.promote_types(x_BLHK.dtype, torch.float32)), x_BLHK.shape[-1:])
