"""Exact attention over any pattern: softmax(scale · q kᵀ + bias, where allowed) v, in memory linear in the length.

The one call is `attend`. Dense work goes to PyTorch's `scaled_dot_product_attention`; everything else is done tile by
tile along a plan, forward and backward, with partial results of a row merged by their log-sum-exp. Nothing of size
L × M is ever stored, whatever is asked for: a pattern, a learned bias, dropout, a soft cap, values wider than keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..patterns import Causal, Full, Pattern, full
from . import _tile
from ._bias import Bias, Matrix, four
from ._gpu import attend_on_gpu
from ._plan import Group, Plan, Tile, additive, plan
from ._stack import LONG, RUN, Stack, Steps, stacks
from .merge import merge_into

SMALL = 256 * 256  # up to this many pairs a mask as a whole is cheaper than a plan


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
    """The average out_BLHV and, if asked for, the log-sum-exp lse_BHL of the scores; both have gradients.

    k and v may have fewer heads than q, as long as their number divides it: head h reads head ⌊h·G/H⌋ of G.
    `sink_H` is a logit a head that takes part in the softmax and has no value. `scale` is 1/√K unless given.
    A row that may look nowhere gives zeros, and −inf as its log-sum-exp.
    """
    B, L, H, K = q_BLHK.shape
    M = k_BMHK.shape[1]
    # the flash kernel takes for granted, without a word, that features lie side by side
    q_BLHK, k_BMHK, v_BMHV = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BLHK, k_BMHK, v_BMHV))
    scale = K**-0.5 if scale is None else scale
    if isinstance(pattern, Causal) and L == 1:
        pattern = full  # the newest query sees all there is
    if isinstance(bias, Tensor):
        bias = Matrix(bias, L, M)
    if q_BLHK.is_cuda and not with_lse and sink_H is None and dropout == 0:
        return attend_on_gpu(q_BLHK, k_BMHK, v_BMHV, pattern, scale, bias, softcap)
    learned = bias is not None and any(t.requires_grad for t in bias.tensors) and torch.is_grad_enabled()
    if not (with_lse or softcap or dropout or learned or sink_H is not None) and v_BMHV.shape[-1] == K and M > 0:
        dense = _dense(q_BLHK, k_BMHK, v_BMHV, pattern, scale, bias)
        if dense is not None:
            return dense
    seed = int(torch.randint(2**62, (), generator=generator)) if dropout else 0
    work = Work(
        plan(pattern, L, M, H // k_BMHK.shape[2] if k_BMHK.shape[2] else 1), _tile.Extras(scale, softcap, dropout, seed), bias, learned
    )
    out, lse = Exact.apply(  # type: ignore[no-untyped-call]
        work, q_BLHK, k_BMHK, v_BMHV, sink_H, *(bias.tensors if bias else ())
    )
    return (out, lse) if with_lse else out


def _dense(q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, scale: float, bias: Bias | None) -> Tensor | None:
    """PyTorch's own kernel, where it is at least as fast as tiles: no pattern, plain causal, or a mask that is small."""
    (B, L, H, _), (M, G) = q_BLHK.shape, k_BMHK.shape[1:3]
    aligned = isinstance(pattern, Causal) and L == M and bias is None  # SDPA's is_causal is aligned at the start
    mask = None
    if not aligned and (bias is not None or not isinstance(pattern, Full)):
        if L * M > SMALL:
            return None
        if not isinstance(pattern, Full):
            mask = (_kept_mask if pattern.static else _mask)(pattern, L, M, q_BLHK.dtype, q_BLHK.device)
        if bias is not None:
            whole = bias.whole(L, M, q_BLHK.device).to(q_BLHK.dtype)
            mask = whole if mask is None else mask + whole
        assert mask is not None
    alike = mask is None or (L == 1 and mask.shape[1] == 1)  # heads see the same: some may be further queries of others
    q, k, v = q_BLHK.transpose(1, 2), k_BMHK.transpose(1, 2), v_BMHV.transpose(1, 2)
    if G != H and not aligned and alike:
        # heads that share a key head become further queries of it: nothing of the cache is copied
        mask = None if mask is None else mask.expand(B, G, H // G, M)
        out = F.scaled_dot_product_attention(q.reshape(B, G, H // G * L, -1), k, v, mask, scale=scale).reshape(B, H, L, -1)
    else:
        mask = None if mask is None else mask.expand(B, H, L, M)
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=aligned, scale=scale, enable_gqa=G != H)
    return out.transpose(1, 2)


def _mask(pattern: Pattern, queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return additive(pattern.mask(queries, keys, device), dtype)


@lru_cache(maxsize=8)
def _kept_mask(pattern: Pattern, queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once for all layers of a step."""
    with torch.inference_mode(False):  # it outlives the call, and may be trained with
        return _mask(pattern, queries, keys, dtype, device)


@dataclass(slots=True)
class Work:
    """What the two passes share."""

    plan: Plan
    extra: _tile.Extras
    bias: Bias | None
    learned: bool  # the bias wants gradients

    def added(self, group: Group, stack: Stack, like: Tensor, batch: int, tensors: tuple[Tensor, ...]) -> Tensor | None:
        """What is added to the scores: mask and bias."""
        mask = stack.mask(self.plan, group, like.dtype, like.device, batch)
        if self.bias is None:
            return mask
        bias = stack.join([self.bias_of(group, tile, like.device, tensors).to(like.dtype) for tile in self.told_apart(stack)], batch)
        return bias if mask is None else bias + mask

    def told_apart(self, stack: Stack) -> list[Tile]:
        """The tiles that need a bias of their own: those of a run stand alike, so a bias by distance is the same for all."""
        assert self.bias is not None
        return stack.tiles[:1] if self.bias.by_distance and isinstance(stack.columns, Steps) else stack.tiles

    def bias_of(self, group: Group, tile: Tile, device: torch.device, tensors: tuple[Tensor, ...]) -> Tensor:
        """The bias of one tile for the batch rows and heads of its group."""
        assert self.bias is not None
        bias = four(self.bias.tile(*self.plan.positions(tile, device), *tensors))
        if group.batch is not None and bias.shape[0] > 1:
            bias = bias[group.batch]
        if group.heads is not None and bias.shape[1] > 1:
            bias = bias[:, group.heads]
        return bias

    def of(self, number: int) -> _tile.Extras:
        """The extras of tile `number`: each has its own dropout."""
        return replace(self.extra, seed=(self.extra.seed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63) if self.extra.dropout else self.extra

    @property
    def by_head(self) -> bool:
        """Whether heads are worked on one at a time."""
        return any(group.heads is not None for group in self.plan.groups)

    def fused(self, q: Tensor, v: Tensor) -> bool:
        return self.extra.plain and not self.learned and _tile.fusible(q, v)


class Exact(torch.autograd.Function):
    """Attention tile by tile. Gradients come from the merged output and log-sum-exp, one tile at a time."""

    @staticmethod
    def forward(ctx: Any, work: Work, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        B, L, H, K = q.shape
        precise = _precise(q.dtype)
        fused = work.fused(q, v)
        apart = work.by_head or not fused  # PyTorch's products would copy each tile
        out = _new(torch.empty, (B, L, H, v.shape[-1]), precise, q.device, apart)
        lse = torch.empty(B, L, H, dtype=precise, device=q.device)
        if not work.plan.covered:
            out.zero_()
            lse.fill_(-_tile.INFINITY)
        if apart:
            q, k, v = (_head_major(x) for x in (q, k, v))
        number = 0
        for group in work.plan.groups:
            q_, k_, v_, out_, lse_ = (_part(x, group, H) for x in (q, k, v, out, lse))
            b, _, heads = q_.shape[:3]
            written = None
            for stack in stacks(group, q_, k_, LONG if fused else RUN):
                qt, kt, vt = stack.take_rows(q_), stack.take_columns(k_, heads), stack.take_columns(v_, heads)
                added = work.added(group, stack, qt if fused else out, b, tensors)
                if fused:
                    o, s = _tile.fused_forward(qt, kt, vt, work.extra.scale, added)
                    if added is not None and stack.hollow(work.bias is not None):  # the kernel says 0 where a row sees nothing
                        s = s.masked_fill((added == -_tile.INFINITY).all(-1), -_tile.INFINITY)
                else:
                    o, s = _tile.plain_forward(qt.to(precise), kt.to(precise), vt.to(precise), work.of(number), added)
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
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse_BHL: Tensor | None) -> tuple[Tensor | None, ...]:
        work: Work = ctx.work
        q, k, v, sink, out, lse, *tensors = ctx.saved_tensors
        H, precise = q.shape[2], lse.dtype
        d_out = torch.zeros_like(out) if d_out is None else d_out
        fused = work.fused(q, v) and d_lse_BHL is None  # the fused form knows no gradient of the log-sum-exp
        delta = (d_out.to(precise) * out.to(precise)).sum(-1)
        if d_lse_BHL is not None:
            delta = delta - d_lse_BHL.transpose(1, 2).masked_fill(lse == -_tile.INFINITY, 0)
        apart = work.by_head or not fused
        dk, dv = (_new(torch.zeros, x.shape, precise, x.device, apart) for x in (k, v))
        dq = _new(torch.empty if work.plan.covered else torch.zeros, q.shape, precise, q.device, apart)
        d_tensors = [torch.zeros_like(t, dtype=precise) for t in tensors] if work.learned else []
        safe, number = lse.masked_fill(lse == -_tile.INFINITY, 0), 0
        if apart:
            d_out = _head_major(d_out)
        for group in work.plan.groups:
            q_, k_, v_, g_, o_, lse_, delta_ = (_part(x, group, H) for x in (q, k, v, d_out, out, safe, delta))
            dq_, dk_, dv_ = (_part(x, group, H) for x in (dq, dk, dv))
            b, _, heads = q_.shape[:3]
            for stack in stacks(group, q_, k_):
                qt, gt, ot, lt, dt = (stack.take_rows(x) for x in (q_, g_, o_, lse_, delta_))
                kt, vt = stack.take_columns(k_, heads), stack.take_columns(v_, heads)
                added = work.added(group, stack, qt if fused else safe, b, tuple(tensors))
                if fused:
                    dqt, dkt, dvt = _tile.fused_backward(gt, qt, kt, vt, ot, lt, work.extra.scale, added)
                else:
                    dqt, dkt, dvt, ds = _tile.plain_backward(
                        gt.to(precise), qt.to(precise), kt.to(precise), vt.to(precise), lt, dt, work.of(number), added
                    )
                    if work.learned:
                        tiles = work.told_apart(stack)
                        for n, tile in enumerate(tiles):
                            part = ds if len(tiles) < len(stack.tiles) else stack.part(ds, n)
                            _add_bias_gradient(work, group, tile, part, tensors, d_tensors)
                number += 1
                (stack.put_rows if work.plan.covered else stack.add_rows)(dq_, dqt)
                stack.add_columns(dk_, dkt)
                stack.add_columns(dv_, dvt)
        d_sink = None
        if sink is not None:
            d_sink = -((sink.to(precise) - lse).exp() * delta).sum((0, 1)).to(sink.dtype)
        biases = [t.to(like.dtype) for t, like in zip(d_tensors, tensors, strict=True)] if work.learned else [None] * len(tensors)
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_sink, *biases


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _new(make: Callable[..., Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device, apart: bool) -> Tensor:
    """A tensor (B, L, H, …); one head after the other in memory if they are to lie apart."""
    if not apart:
        return make(*shape, dtype=dtype, device=device)
    B, L, H, K = shape
    return make(B, H, L, K, dtype=dtype, device=device).transpose(1, 2)


def _head_major(x: Tensor) -> Tensor:
    """The same tensor, one head after the other in memory: rows of a single head lie together, not a page apart."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _part(x: Tensor, group: Group, heads: int) -> Tensor:
    """The batch rows and heads of a group, from (B, length, heads, …), as a view; fewer heads are shared by neighbours."""
    if group.batch is not None:
        x = x[group.batch]
    if group.heads is not None:
        share = heads // x.shape[2]
        first = group.heads.start // share
        x = x[:, :, first : max(first + 1, group.heads.stop // share)]
    return x


def _add_bias_gradient(work: Work, group: Group, tile: Tile, ds: Tensor, tensors: list[Tensor], d_tensors: list[Tensor]) -> None:
    """Through the tile of the bias to the tensors it is made of."""
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        bias = work.bias_of(group, tile, ds.device, tuple(inputs))
    wanted = [n for n, x in enumerate(inputs) if x.requires_grad]
    grads = torch.autograd.grad(bias, [inputs[n] for n in wanted], ds.sum_to_size(bias.shape).to(bias.dtype))
    for n, gradient in zip(wanted, grads, strict=True):
        d_tensors[n] += gradient
