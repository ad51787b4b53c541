"""Softmax attention along listed pairs, such as the edges of a graph, in time and memory linear in their number.

    s_e = scale · q_i·k_j + bias_e        p_e = exp(s_e) / Σ of the edges of i        out_i = Σ_e p_e v_j        for each edge e = (i, j)

Two operations do all the work, and each is the gradient of the other: the **dots** of the queries and keys that edges join, and the **sums** of
values along the edges of each row, weighted. Edges are sorted by query, so that the edges of a query are a segment; a permutation sorts them by key
for the gradients of keys and values.

On a CPU, sums are `embedding_bag` with a weight per sample, one bag per head and query, and dots are gathered a few thousand edges at a time into
buffers that stay in cache. 20,000 nodes, 200,000 edges, 4 heads of 16, one thread (Zen 4): sums 1.2 ms (gather, multiply and `scatter_add`: 46),
dots 7 ms (gather, multiply and sum: 67), where fresh memory takes most of the time. The plain form is a gather and an `index_add`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...patterns import Pairs, Pattern, is_static
from ..numerics import LOG2E, accumulation_dtype, first_derivatives_only, no_autocast
from ..random_masks import dropout as drop
from ..scratch import Scratch
from .bias import Bias, Matrix
from .contents import Kept
from .paths import forced
from .plan import DENSE_PAIRS

SPARSE = 12  # tiles are at least as fast where more than one pair in 12 is allowed (random pairs of 512 and 2,048 nodes, 4 heads of 16)
AT_ONCE = 2**18  # numbers that are gathered at a time on a CPU: 1 MiB in float32
INFINITY = float("inf")


@dataclass(eq=False, slots=True)
class Segments:
    """Edges sorted by row: those of row n are `first[n]` … `first[n + 1]`."""

    rows_E: Tensor
    columns_E: Tensor
    first: Tensor
    flat: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows, with and without edges."""
        return len(self.first) - 1

    def bags(self, heads: int) -> tuple[Tensor, Tensor]:
        """Edges of all heads as bags of `embedding_bag`, head by head: (index of column and head, first of each bag and the end)."""
        if heads not in self.flat:
            h = torch.arange(heads, device=self.first.device)[:, None]
            first = torch.cat([(self.first[:-1] + h * len(self.rows_E)).flatten(), h.new_full((1,), heads * len(self.rows_E))])
            self.flat[heads] = (self.columns_E * heads + h).flatten(), first
        return self.flat[heads]


@dataclass(eq=False, slots=True)
class EdgePlan:
    """The pairs of a pattern for given sizes, as edges between nodes: batch rows (and heads, where the pattern differs by head) follow each other."""

    pairs: Pairs  # batch row, head and positions of each edge
    by_head: bool  # heads are nodes of their own
    by_query: Segments  # edges sorted by query
    by_key: Segments  # edges sorted by key
    order_E: Tensor  # edges in the order of `by_key`
    groups: int = 1  # heads that are nodes

    def nodes(self, x_BLHK: Tensor, heads: int) -> Tensor:
        """Queries, keys or values as nodes, x_NHK; shared heads are repeated."""
        if x_BLHK.shape[2] != heads:
            x_BLHK = x_BLHK.repeat_interleave(heads // x_BLHK.shape[2], 2)
        return x_BLHK.transpose(1, 2).flatten(0, 2).unsqueeze(1) if self.by_head else x_BLHK.flatten(0, 1)

    def output(self, out_NHV: Tensor, batch: int) -> Tensor:
        """The inverse of `nodes`, out_BLHV."""
        if self.by_head:
            B, V = batch, out_NHV.shape[-1]
            return out_NHV.view(B, self.groups, -1, V).transpose(1, 2)
        return out_NHV.unflatten(0, (batch, -1))

    def added(self, bias: Tensor | Bias, queries: int, keys: int, heads: int) -> Tensor | None:
        """A bias at the edges, which broadcasts to (H, E), or (1, E) where heads are nodes; None if it is known by tiles only.

        Args:
            bias: what is added to the scores.
            queries: number of queries L.
            keys: number of keys M.
            heads: number of heads H.
        """
        b, h, i, j = self.pairs
        bias = Matrix(bias, queries, keys) if isinstance(bias, Tensor) else bias
        return bias.of(b, h if self.by_head else torch.arange(heads, device=i.device)[:, None], i, j, *bias.tensors)


def edge_plan(pattern: Pattern, q_BLHK: Tensor, k_BMHK: Tensor) -> EdgePlan | None:
    """The edges of a pattern, if that is a list of pairs and so sparse that edges are faster than tiles; else None. The last plans are kept.

    Args:
        pattern: pattern of the call.
        q_BLHK: queries, for their sizes.
        k_BMHK: keys, for theirs.
    """
    (B, L, H), M, path = q_BLHK.shape[:3], k_BMHK.shape[1], forced()
    if (
        path not in (None, "edges")
        or not q_BLHK.numel()
        or not k_BMHK.numel()
        or (path is None and (is_static(pattern) or L * M <= DENSE_PAIRS))
    ):
        return None
    return _PLANS.get(pattern, (B, L, H, M, q_BLHK.device, path), lambda: _make(pattern, B, L, H, M, q_BLHK.device))


_PLANS = Kept[EdgePlan | None](8)


def _make(pattern: Pattern, batch: int, queries: int, heads: int, keys: int, device: torch.device) -> EdgePlan | None:
    pattern = pattern.fit(queries, keys)
    pairs = pattern.listed(queries, keys)
    if forced() == "edges" and pairs is None:  # any pattern: for tests
        b, h, i, j = pattern.mask(queries, keys, device).nonzero(as_tuple=True)
        pairs = Pairs(b, h, i + (keys - queries), j)
    if pairs is None or (forced() is None and SPARSE * len(pairs.i) > pattern.batch * pattern.heads * queries * keys):
        return None
    with torch.inference_mode(False):  # it outlives the call, and training may use it
        b, h, i, j = (x.to(device) for x in pairs)
        by_head = pattern.heads > 1
        if pattern.batch < batch:  # the same edges in each batch row
            b = torch.arange(batch, device=device).repeat_interleave(len(i))
            h, i, j = h.repeat(batch), i.repeat(batch), j.repeat(batch)
        group = b * heads + h if by_head else b
        rows_E, columns_E = group * queries + i - (keys - queries), group * keys + j
        rows_E, order_E = torch.sort(rows_E, stable=True)
        b, h, i, j, columns_E = (x[order_E] for x in (b, h, i, j, columns_E))
        groups = batch * heads if by_head else batch
        by_query = Segments(rows_E, columns_E, _first(rows_E, groups * queries))
        sorted_E, order_E = torch.sort(columns_E, stable=True)
        by_key = Segments(sorted_E, rows_E[order_E], _first(sorted_E, groups * keys))
    return EdgePlan(Pairs(b, h, i, j), by_head, by_query, by_key, order_E, heads if by_head else 1)


def _first(rows_E: Tensor, rows: int) -> Tensor:
    """Where the segment of each row begins, and where the last one ends."""
    return torch.searchsorted(rows_E, torch.arange(rows + 1, device=rows_E.device))


@no_autocast
def attend_by_edges(
    q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, plan: EdgePlan, scale: float, bias: Bias | None, softcap: float | None,
    sink_H: Tensor | None, dropout: float, generator: torch.Generator | None,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """Attend along the edges of a plan: out_BLHV and lse_BHL, or None for a bias that is known by tiles only. Arguments are those of `attend`."""
    (B, L, H, _), precise = q_BLHK.shape, accumulation_dtype(q_BLHK)
    added = None if bias is None else plan.added(bias, L, k_BMHK.shape[1], H)
    if bias is not None and added is None:
        return None
    q, k = (plan.nodes(x.to(precise), H) for x in (q_BLHK, k_BMHK))
    s_HE: Tensor = _Dots.apply(plan, q * (scale if softcap is None else scale / softcap), k)  # type: ignore[no-untyped-call]
    if softcap is not None:
        s_HE = softcap * torch.tanh(s_HE)
    return _average(s_HE if added is None else s_HE + added, v_BMHV, plan, B, H, q_BLHK.dtype, sink_H, dropout, generator)


@no_autocast
def average_by_edges(scores_HE: Tensor, v_BMHV: Tensor, plan: EdgePlan, batch: int, dropout: float = 0.0) -> Tensor:
    """The average of values, weighted by the softmax of a score per head and edge.

    Args:
        scores_HE: score of each edge of the plan, per head.
        v_BMHV: values.
        plan: edges, the same for all heads.
        batch: number of batch rows B.
        dropout: probability of dropping an attention weight.

    Shape: scores_HE, v_BMHV → out_BLHV.
    """
    s_HE = scores_HE.to(accumulation_dtype(scores_HE))
    return _average(s_HE, v_BMHV, plan, batch, len(s_HE), v_BMHV.dtype, None, dropout, None)[0]


def _average(
    s_HE: Tensor, v_BMHV: Tensor, plan: EdgePlan, batch: int, heads: int, dtype: torch.dtype, sink_H: Tensor | None, dropout: float,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    p_HE, lse_HN = _Softmax.apply(plan, s_HE)  # type: ignore[no-untyped-call]
    if dropout:
        p_HE = drop(p_HE, dropout, generator)
    out_NHV = _Sums.apply(plan, p_HE, plan.nodes(v_BMHV.to(s_HE.dtype), heads))  # type: ignore[no-untyped-call]
    out_BLHV = plan.output(out_NHV, batch)
    lse_BHL = lse_HN.view(batch, heads, -1) if plan.by_head else lse_HN.unflatten(1, (batch, -1)).transpose(0, 1)
    if sink_H is not None:
        whole_BHL = torch.logaddexp(lse_BHL, sink_H.to(lse_BHL.dtype)[:, None])
        out_BLHV, lse_BHL = out_BLHV * (lse_BHL - whole_BHL).exp().transpose(1, 2).unsqueeze(-1), whole_BHL
    return out_BLHV.to(dtype), lse_BHL


class _Dots(torch.autograd.Function):
    """s_HE, the dot product of the query and the key of each edge."""

    @staticmethod
    def forward(ctx: Any, plan: EdgePlan, q_NHK: Tensor, k_MHK: Tensor) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(q_NHK, k_MHK)
        return dots(plan.by_query, q_NHK, k_MHK)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, ds_HE: Tensor) -> tuple[Tensor | None, ...]:
        plan, (q_NHK, k_MHK) = ctx.plan, ctx.saved_tensors
        _, wants_q, wants_k = ctx.needs_input_grad
        dq = sums(plan.by_query, ds_HE, k_MHK) if wants_q else None
        return None, dq, sums(plan.by_key, ds_HE.index_select(1, plan.order_E), q_NHK) if wants_k else None


class _Sums(torch.autograd.Function):
    """out_NHV, the sum of the values along the edges of each row, times a weight per edge and head."""

    @staticmethod
    def forward(ctx: Any, plan: EdgePlan, p_HE: Tensor, v_MHV: Tensor) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(p_HE, v_MHV)
        return sums(plan.by_query, p_HE, v_MHV)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, d_out_NHV: Tensor) -> tuple[Tensor | None, ...]:
        plan, (p_HE, v_MHV) = ctx.plan, ctx.saved_tensors
        _, wants_p, wants_v = ctx.needs_input_grad
        dp = dots(plan.by_query, d_out_NHV, v_MHV) if wants_p else None
        return None, dp, sums(plan.by_key, p_HE.index_select(1, plan.order_E), d_out_NHV) if wants_v else None


class _Softmax(torch.autograd.Function):
    """p_HE, the softmax over the edges of each row, and its log-sum-exp lse_HN; −inf for a row without edges."""

    @staticmethod
    def forward(ctx: Any, plan: EdgePlan, s_HE: Tensor) -> tuple[Tensor, Tensor]:
        edges = plan.by_query
        top_HN = segment_max(edges, s_HE)
        top_HN = top_HN.masked_fill_(top_HN == -INFINITY, 0)
        p_HE = (s_HE - top_HN.index_select(1, edges.rows_E)).mul_(LOG2E).exp2_()
        z_HN = segment_sum(edges, p_HE)
        p_HE.div_(z_HN.masked_fill(z_HN == 0, 1).index_select(1, edges.rows_E))
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p_HE)
        return p_HE, top_HN + z_HN.log()

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, dp_HE: Tensor | None, d_lse_HN: Tensor | None) -> tuple[Tensor | None, ...]:
        (p_HE,), edges = ctx.saved_tensors, ctx.plan.by_query
        ds_HE = torch.zeros_like(p_HE) if dp_HE is None else p_HE * dp_HE
        row_HN = -segment_sum(edges, ds_HE)
        if d_lse_HN is not None:
            row_HN = row_HN + d_lse_HN
        return None, ds_HE.addcmul_(p_HE, row_HN.index_select(1, edges.rows_E))


# -- what runs along edges: a form for CPUs, and a plain one that is its oracle --------------------------------------------


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and forced() != "plain"


def dots(edges: Segments, q_NHK: Tensor, k_MHK: Tensor) -> Tensor:
    """The dot products of row and column of each edge, s_HE.

    Args:
        edges: edges.
        q_NHK: vectors of the rows.
        k_MHK: vectors of the columns.
    """
    H, K = q_NHK.shape[1:]
    if not _on_cpu(q_NHK):
        return torch.einsum("ehk,ehk->he", q_NHK.index_select(0, edges.rows_E), k_MHK.index_select(0, edges.columns_E))
    s_HE, buffer = q_NHK.new_empty(H, len(edges.rows_E)), Scratch(q_NHK)
    q, k, at_once = q_NHK.reshape(len(q_NHK), -1), k_MHK.reshape(len(k_MHK), -1), max(1, AT_ONCE // max(1, H * K))
    for first in range(0, s_HE.shape[1], at_once):
        rows, columns = (x[first : first + at_once] for x in (edges.rows_E, edges.columns_E))
        q_nHK = torch.index_select(q, 0, rows, out=buffer("q", len(rows), H * K)).view(-1, 1, K)
        k_nHK = torch.index_select(k, 0, columns, out=buffer("k", len(rows), H * K)).view(-1, K, 1)
        s_HE[:, first : first + at_once] = torch.bmm(q_nHK, k_nHK, out=buffer("s", len(rows) * H, 1, 1)).view(-1, H).t()
    return s_HE


def sums(edges: Segments, w_HE: Tensor, v_MHV: Tensor) -> Tensor:
    """The weighted sum of the columns of each row's edges, out_NHV.

    Args:
        edges: edges.
        w_HE: weight of each edge, per head.
        v_MHV: vectors of the columns.
    """
    (H, E), V = w_HE.shape, v_MHV.shape[-1]
    if not E or not _on_cpu(v_MHV):
        parts_EHV = v_MHV.index_select(0, edges.columns_E) * w_HE.t().unsqueeze(-1)
        return v_MHV.new_zeros(edges.rows, H, V).index_add_(0, edges.rows_E, parts_EHV)
    index, first = edges.bags(H)
    out = F.embedding_bag(index, v_MHV.reshape(-1, V), first, mode="sum", per_sample_weights=w_HE.reshape(-1), include_last_offset=True)
    return out.view(H, edges.rows, V).transpose(0, 1)


def segment_max(edges: Segments, x_HE: Tensor) -> Tensor:
    """The largest number of each row's edges, (H, N); −inf where there are none."""
    return _segments(edges, x_HE, "max", -INFINITY)


def segment_sum(edges: Segments, x_HE: Tensor) -> Tensor:
    """The sum over each row's edges, (H, N)."""
    return _segments(edges, x_HE, "sum", 0.0)


def _segments(edges: Segments, x_HE: Tensor, reduction: str, initial: float) -> Tensor:
    H, E = x_HE.shape
    if not E or not _on_cpu(x_HE):
        start = x_HE.new_full((H, edges.rows), initial)
        return start.scatter_reduce_(1, edges.rows_E.expand(H, -1), x_HE, {"max": "amax"}.get(reduction, reduction))
    offsets = edges.bags(H)[1]
    return torch.segment_reduce(x_HE.reshape(-1), reduction, offsets=offsets, axis=0, unsafe=True, initial=initial).view(H, edges.rows)
