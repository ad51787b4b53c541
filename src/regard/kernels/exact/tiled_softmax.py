"""Exact softmax attention over any pattern: softmax(scale · q kᵀ + bias, where allowed) v, in memory linear in the length.

The one call is `attend`. Dense work goes to PyTorch's `scaled_dot_product_attention`; everything else is done tile by tile along a
plan, forward and backward, with partial results of a row merged by their log-sum-exp. On a CPU nothing of size L × M is stored from
`DENSE_PAIRS` pairs on, whatever the options: a pattern, a learned bias, dropout, a soft cap, values wider than keys. (On a GPU a bias
is handed to FlexAttention as a whole matrix: see `gpu.py`.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from ...patterns import Causal, Full, Pattern, full
from ..numerics import LOG2E, accumulation_dtype, first_derivatives_only
from ..random_masks import keep_mask
from .bias import Bias, Matrix
from .by_edges import attend_by_edges, edge_plan
from .contents import Kept
from .gpu import attend_on_gpu
from .merging import merge_into
from .paths import forced
from .plan import additive, is_small, make_plan
from .stack import LONG, RUN, Work, allocate, group_part, group_stacks, to_head_major, wants_gradient

INFINITY = float("inf")


@overload
def attend(
    q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern = full, *, scale: float | None = None,
    bias: Tensor | Bias | None = None, softcap: float | None = None, sink_H: Tensor | None = None, dropout: float = 0.0,
    generator: torch.Generator | None = None, with_lse: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def attend(
    q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern = full, *, scale: float | None = None,
    bias: Tensor | Bias | None = None, softcap: float | None = None, sink_H: Tensor | None = None, dropout: float = 0.0,
    generator: torch.Generator | None = None, with_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attend(
    q_BLHK: Tensor,
    k_BMHK: Tensor,
    v_BMHV: Tensor,
    pattern: Pattern = full,
    *,
    scale: float | None = None,
    bias: Tensor | Bias | None = None,
    softcap: float | None = None,
    sink_H: Tensor | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    with_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The attention output out_BLHV and, `with_lse`, the log-sum-exp lse_BHL of the scores; both have gradients.

    A row that may attend to nothing gives zeros, and −inf as its log-sum-exp.

    Args:
        q_BLHK: queries.
        k_BMHK: keys; their number of heads G divides that of the queries, and head h reads head ⌊h·G/H⌋.
        v_BMHV: values, with the heads of k.
        pattern: pairs that are allowed.
        scale: factor of the dot products; 1/√K if not given.
        bias: a tensor that broadcasts to (B, H, L, M), or a `Bias`, added to scores; None: none.
        softcap: bound of the scores, cap·tanh(s/cap); None: unbounded.
        sink_H: a logit per head that takes part in the softmax and has no value; None: none.
        dropout: probability of dropping an attention weight.
        generator: random number generator of the dropout; None: PyTorch's global one.
        with_lse: return the log-sum-exp of the scores, too.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV, or (out_BLHV, lse_BHL).
    """
    B, L, H, K = q_BLHK.shape
    M = k_BMHK.shape[1]
    # the flash kernel assumes, without checking, that features are contiguous
    q_BLHK, k_BMHK, v_BMHV = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BLHK, k_BMHK, v_BMHV))
    scale = K**-0.5 if scale is None else scale
    if isinstance(pattern, Causal) and L == 1:
        pattern = full  # the newest query attends to all keys
    if isinstance(bias, Tensor):
        bias = Matrix(bias, L, M)
    if q_BLHK.is_cuda and not with_lse and sink_H is None and dropout == 0:
        return attend_on_gpu(q_BLHK, k_BMHK, v_BMHV, pattern, scale, bias, softcap)
    learned = wants_gradient(bias)
    if (
        not (with_lse or softcap or dropout or learned or sink_H is not None)
        and v_BMHV.shape[-1] == K
        and M > 0
        and forced() in (None, "dense")
    ):
        dense = _dense(q_BLHK, k_BMHK, v_BMHV, pattern, scale, bias)
        if dense is not None:
            return dense
    edges = edge_plan(pattern, q_BLHK, k_BMHK)
    if edges is not None:
        found = attend_by_edges(q_BLHK, k_BMHK, v_BMHV, edges, scale, bias, softcap, sink_H, dropout, generator)
        if found is not None:
            return found if with_lse else found[0]
    seed = int(torch.randint(2**62, (), generator=generator)) if dropout else 0
    options = ScoreOptions(scale, softcap, dropout, seed)
    plan = make_plan(pattern, L, M, H // k_BMHK.shape[2] if k_BMHK.shape[2] else 1)
    work = SoftmaxWork(plan, bias, learned, options, options.plain and not learned and fusible(q_BLHK, v_BMHV))
    out, lse = TiledSoftmax.apply(  # type: ignore[no-untyped-call]
        work, q_BLHK, k_BMHK, v_BMHV, sink_H, *(bias.tensors if bias else ())
    )
    return (out, lse) if with_lse else out


def _dense(q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, scale: float, bias: Bias | None) -> Tensor | None:
    """PyTorch's own kernel, where it is at least as fast as tiles: no pattern, plain causal, or a mask that is small."""
    (B, L, H, _), (M, G) = q_BLHK.shape, k_BMHK.shape[1:3]
    aligned = isinstance(pattern, Causal) and L == M and bias is None  # SDPA's is_causal is aligned at the start
    mask = None
    if not aligned and (bias is not None or not isinstance(pattern, Full)):
        if not is_small(L, M):
            return None
        if not isinstance(pattern, Full):
            mask = _known_mask(pattern, L, M, q_BLHK.dtype, q_BLHK.device)
        if bias is not None:
            whole = bias.whole(L, M, q_BLHK.device).to(q_BLHK.dtype)
            mask = whole if mask is None else mask + whole
        assert mask is not None
    same_mask = mask is None or (L == 1 and mask.shape[1] == 1)  # all heads have the same mask: some may become further queries of others
    q, k, v = q_BLHK.transpose(1, 2), k_BMHK.transpose(1, 2), v_BMHV.transpose(1, 2)
    if G != H and not aligned and same_mask:
        # heads that share a key head become further queries of it: the cache is not copied
        mask = None if mask is None else mask.expand(B, G, H // G, M)
        out = F.scaled_dot_product_attention(q.reshape(B, G, H // G * L, -1), k, v, mask, scale=scale).reshape(B, H, L, -1)
    else:
        mask = None if mask is None else mask.expand(B, H, L, M)
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=aligned, scale=scale, enable_gqa=G != H)
    return out.transpose(1, 2)


def _known_mask(pattern: Pattern, queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The whole rule as an additive mask; computed once for all layers of a batch."""

    def make() -> Tensor:
        with torch.inference_mode(False):  # it outlives the call, and training may use it
            return additive(pattern.mask(queries, keys, device), dtype)

    return _MASKS.get(pattern, (queries, keys, dtype, device), make)


_MASKS = Kept[Tensor](8)


@dataclass(slots=True)
class SoftmaxWork(Work):
    """State that the forward and the backward pass share."""

    options: ScoreOptions
    fused: bool  # by the flash kernel inside PyTorch's CPU build

    def tile_options(self, number: int) -> ScoreOptions:
        """The options of call `number`: each has its own dropout."""
        if not self.options.dropout:
            return self.options
        return replace(self.options, seed=(self.options.seed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63)


class TiledSoftmax(torch.autograd.Function):
    """Attention tile by tile. The backward pass starts from the merged output and log-sum-exp, one stack at a time."""

    @staticmethod
    def forward(
        ctx: Any, work: SoftmaxWork, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        B, L, H, K = q.shape
        precise = accumulation_dtype(q)
        fused = work.fused
        head_major = work.by_head or not fused  # PyTorch's matmul would copy each tile
        out = allocate(torch.empty, (B, L, H, v.shape[-1]), precise, q.device, head_major)
        lse = torch.empty(B, L, H, dtype=precise, device=q.device)
        if not work.plan.covered:
            out.zero_()
            lse.fill_(-INFINITY)
        if head_major:
            q, k, v = (to_head_major(x) for x in (q, k, v))
        number = 0
        for group in work.plan.groups:
            q_, k_, v_, out_, lse_ = (group_part(x, group, H) for x in (q, k, v, out, lse))
            b, _, heads = q_.shape[:3]
            written = None
            for stack in group_stacks(group, q_, k_, LONG if fused else RUN):
                qt, kt, vt = stack.take_rows(q_), stack.take_columns(k_, heads), stack.take_columns(v_, heads)
                added = work.added(group, stack, qt if fused else out, b, tensors)
                if fused:
                    o, s = fused_forward(qt, kt, vt, work.options.scale, added)
                    if added is not None and stack.has_empty_rows(
                        work.bias is not None
                    ):  # the kernel gives 0 where a row attends to nothing
                        s = s.masked_fill((added == -INFINITY).all(-1), -INFINITY)
                else:
                    o, s = plain_forward(qt.to(precise), kt.to(precise), vt.to(precise), work.tile_options(number), added)
                if group.later or (isinstance(stack.rows, slice) and stack.rows == written):
                    merge_into(o, s, stack.take_rows(out_), stack.take_rows(lse_))
                stack.put_rows(out_, o)
                stack.put_rows(lse_, s)
                written, number = stack.rows if isinstance(stack.rows, slice) else None, number + 1
        if sink is not None:
            whole = torch.logaddexp(lse, sink.to(precise))
            out *= (lse - whole).exp().unsqueeze(-1)
            lse = whole
        result, lse_BHL = out.to(q.dtype), lse.transpose(1, 2)
        ctx.work = work
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, sink, result, lse, *tensors)
        return result, lse_BHL

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, d_out: Tensor | None, d_lse_BHL: Tensor | None) -> tuple[Tensor | None, ...]:
        work: SoftmaxWork = ctx.work
        q, k, v, sink, out, lse, *tensors = ctx.saved_tensors
        H, precise = q.shape[2], lse.dtype
        d_out = torch.zeros_like(out) if d_out is None else d_out
        fused = work.fused and d_lse_BHL is None  # the fused form has no gradient of the log-sum-exp
        delta = (d_out.to(precise) * out.to(precise)).sum(-1)
        if d_lse_BHL is not None:
            delta = delta - d_lse_BHL.transpose(1, 2).masked_fill(lse == -INFINITY, 0)
        head_major = work.by_head or not fused
        dk, dv = (allocate(torch.zeros, x.shape, precise, x.device, head_major) for x in (k, v))
        dq = allocate(torch.empty if work.plan.covered else torch.zeros, q.shape, precise, q.device, head_major)
        d_tensors = [torch.zeros_like(t, dtype=precise) for t in tensors] if work.learned else []
        safe, number = lse.masked_fill(lse == -INFINITY, 0), 0
        if head_major:
            d_out = to_head_major(d_out)
        for group in work.plan.groups:
            q_, k_, v_, g_, o_, lse_, delta_ = (group_part(x, group, H) for x in (q, k, v, d_out, out, safe, delta))
            dq_, dk_, dv_ = (group_part(x, group, H) for x in (dq, dk, dv))
            b, _, heads = q_.shape[:3]
            for stack in group_stacks(group, q_, k_):
                qt, gt, ot, lt, dt = (stack.take_rows(x) for x in (q_, g_, o_, lse_, delta_))
                kt, vt = stack.take_columns(k_, heads), stack.take_columns(v_, heads)
                added = work.added(group, stack, qt if fused else safe, b, tuple(tensors))
                if fused:
                    dqt, dkt, dvt = fused_backward(gt, qt, kt, vt, ot, lt, work.options.scale, added)
                else:
                    dqt, dkt, dvt, ds = plain_backward(
                        gt.to(precise), qt.to(precise), kt.to(precise), vt.to(precise), lt, dt, work.tile_options(number), added
                    )
                    if work.learned:
                        work.add_bias_gradients(group, stack, ds, tensors, d_tensors)
                number += 1
                (stack.put_rows if work.plan.covered else stack.add_rows)(dq_, dqt)
                stack.add_columns(dk_, dkt)
                stack.add_columns(dv_, dvt)
        d_sink = None
        if sink is not None:
            d_sink = -((sink.to(precise) - lse).exp() * delta).sum((0, 1)).to(sink.dtype)
        biases = [t.to(like.dtype) for t, like in zip(d_tensors, tensors, strict=True)] if work.learned else [None] * len(tensors)
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_sink, *biases


# -- one tile: the innermost loop --------------------------------------------------------------------------------------
#
#     s = scale · q kᵀ        (soft-capped: s ← cap · tanh(s / cap))        + bias + mask
#     p = exp(s − max)        z = Σ p        out = (p ∘ dropout) v / z        lse = max + log z
#
#     backward, from the merged out and lse of all tiles of a row, with δ = Σ d_out ∘ out − d_lse:
#     p = exp(s − lse)        dv = (p ∘ dropout)ᵀ d_out        dp = (d_out vᵀ) ∘ dropout        ds = p ∘ (dp − δ)
#
# Exponentials are powers of two, which cost half as much: scores are multiplied by log2 e, and lse is divided by it again.
#
# There are two forms: `plain` uses ordinary PyTorch operators; `fused` calls the flash kernel inside PyTorch's CPU build, and is used
# where there is nothing but a mask and a constant bias (10–20 % faster on window(128), 4,096 tokens, 8 heads of 64, AVX2; the plain form
# is its oracle).


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Options besides q·k that determine scores and weights."""

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    seed: int = 0  # seed of this tile's dropout

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.dropout == 0


def scores(q_BHLK: Tensor, k_BHMK: Tensor, options: ScoreOptions, added: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The scores times log2 e and, if they are capped, the tanh that the backward pass needs."""
    if options.softcap is None:
        s, tanh = torch.matmul(q_BHLK * (options.scale * LOG2E), k_BHMK.transpose(-1, -2)), None
    else:
        tanh = torch.matmul(q_BHLK * (options.scale / options.softcap), k_BHMK.transpose(-1, -2)).tanh_()
        s = tanh * (options.softcap * LOG2E)
    if added is None:
        return s, tanh
    return (s.add_(added, alpha=LOG2E) if s.shape == torch.broadcast_shapes(s.shape, added.shape) else s + added * LOG2E), tanh


def dropout_mask(shape: torch.Size, options: ScoreOptions, like: Tensor) -> tuple[Tensor, float]:
    """Draw the pairs of a tile that dropout keeps, 0 or 1, the same at each call; and their factor 1/(1 − p)."""
    generator = torch.Generator(like.device).manual_seed(options.seed)
    if like.is_cpu and 0 < (level := round(options.dropout * 65536)) < 65536:
        return keep_mask(shape, level, generator), 65536 / (65536 - level)
    left = torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - options.dropout, generator=generator)
    return left, 1 / (1 - options.dropout)


def plain_forward(q: Tensor, k: Tensor, v: Tensor, options: ScoreOptions, added: Tensor | None) -> tuple[Tensor, Tensor]:
    s, _ = scores(q, k, options, added)
    top = s.amax(-1, keepdim=True)
    top = top.masked_fill_(top == -INFINITY, 0)
    p, factor = s.sub_(top).exp2_(), 1.0
    z = p.sum(-1, keepdim=True)
    if options.dropout:
        left, factor = dropout_mask(p.shape, options, p)
        p.mul_(left)
    out = torch.matmul(p, v).div_(z.masked_fill(z == 0, 1).div_(factor))
    return out, (top + z.log2()).div_(LOG2E).squeeze(-1)


def plain_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, options: ScoreOptions, added: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of what is added to the scores."""
    s, tanh = scores(q, k, options, added)
    p = s.sub_(lse.masked_fill(lse == -INFINITY, 0).unsqueeze(-1) * LOG2E).exp2_()
    if options.dropout:
        left, factor = dropout_mask(p.shape, options, p)
        d_out = d_out * factor
        dp = torch.matmul(d_out, v.transpose(-1, -2)).mul_(left)
        ds = dp.sub_(delta.unsqueeze(-1)).mul_(p)
        dv = torch.matmul(p.mul_(left).transpose(-1, -2), d_out)
    else:
        ds = torch.matmul(d_out, v.transpose(-1, -2)).sub_(delta.unsqueeze(-1)).mul_(p)
        dv = torch.matmul(p.transpose(-1, -2), d_out)
    inner = ds if tanh is None else ds * (1 - tanh.square())
    return torch.matmul(inner, k).mul_(options.scale), torch.matmul(inner.transpose(-1, -2), q).mul_(options.scale), dv, ds


def _fused_works() -> bool:
    """Return whether PyTorch's CPU flash kernel, a private operator, exists, takes these arguments and gives what the plain form gives."""
    x, mask = torch.linspace(-1, 1, 24).view(1, 1, 3, 8), torch.zeros(1, 1, 3, 3)
    mask[..., 0, 1:] = -INFINITY
    s = torch.matmul(0.5 * x, x.mT) + mask
    p, lse = s.softmax(-1), s.logsumexp(-1)  # written out: `plain_forward` would import sympy, which takes half a second
    out = torch.matmul(p, x)
    ds = p * (torch.matmul(x, x.mT) - (x * out).sum(-1, keepdim=True))
    expected = out, lse, 0.5 * torch.matmul(ds, x), 0.5 * torch.matmul(ds.mT, x), torch.matmul(p.mT, x)
    try:
        found = *fused_forward(x, x, x, 0.5, mask), *fused_backward(x, x, x, x, out, lse, 0.5, mask)
        return all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in zip(found, expected, strict=True))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False


def fused_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=added, scale=scale)
    return out, lse


def fused_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, added: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, lse, 0.0, False, attn_mask=added, scale=scale
    )
    return dq, dk, dv


HAS_FUSED = _fused_works()


def attend_tile(q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """out_BHLV and lse_BHL of one batch of tiles with nothing but an additive mask, by the faster form available.

    For autograd functions that cut their blocks themselves.

    Args:
        q: queries, q_BHLK, with contiguous features.
        k: keys, k_BHMK, with contiguous features.
        v: values, v_BHMV, with contiguous features.
        scale: factor of the dot products.
        added: mask or bias added to the scores, which broadcasts to (B, H, L, M); None: none.

    Shape: q_BHLK, k_BHMK, v_BHMV → out_BHLV, lse_BHL.
    """
    return fused_forward(q, k, v, scale, added) if fusible(q, v) else plain_forward(q, k, v, ScoreOptions(scale), added)


def attend_tile_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, added: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, from the results of `attend_tile`.

    Args:
        d_out: gradient of the output, d_out_BHLV.
        q: queries, q_BHLK.
        k: keys, k_BHMK.
        v: values, v_BHMV.
        out: output of `attend_tile`, out_BHLV.
        lse: log-sum-exp of `attend_tile`, lse_BHL.
        scale: factor of the dot products.
        added: mask or bias added to the scores; None: none.

    Shape: as `attend_tile` → d_q_BHLK, d_k_BHMK, d_v_BHMV.
    """
    if fusible(q, v):
        return fused_backward(d_out, q, k, v, out, lse, scale, added)
    return plain_backward(d_out, q, k, v, lse, (d_out * out).sum(-1), ScoreOptions(scale), added)[:3]


def fusible(q: Tensor, v: Tensor) -> bool:
    """Return whether the flash kernel works and takes tensors like these. It assumes that features are contiguous."""
    return HAS_FUSED and q.is_cpu and v.shape[-1] == q.shape[-1] and forced() != "plain"
