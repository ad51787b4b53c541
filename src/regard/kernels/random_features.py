"""Attention by exponential features, φ(x)_f = exp(ω_f·x' − ‖x'‖²/2) with x' = x / K^¼, forward and backward.

    o_i = Σ_j (φ(q_i)·φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j)        over all keys, or those up to i

The F features of a token are many times larger than the token, and writing them to fresh memory takes longer than computing them. So
they are computed a few rows at a time, used, and computed again in the backward pass; only sums are stored.

Exponents are not bounded below, so each feature has a reference c that is subtracted from the keys and added to the queries, and every
query subtracts its largest exponent from all features: both cancel, and have no gradient. Over all keys c is the largest exponent. Along
a sequence every piece has its own, the largest exponent up to its first key. Later keys have no part in it, and a key that every query
of the piece attends to attains it: denominators are at least one. From piece to piece c decays the sums. Within a piece exponents may
exceed it; where they do by more than half the range of a float, `causal_favor` returns None (use `scan` with a decay per token).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .chunks import CHUNK, from_chunks, to_chunks
from .numerics import LOG2E, accumulation_dtype, first_derivatives_only, no_autocast
from .scratch import Scratch

ROWS = 2048  # tokens, counted in every head, whose features are computed at a time: 2 MiB for 256 features in float32


@no_autocast
def favor(
    q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, omega_FK: Tensor, allowed_BM: Tensor | None, sums_BHFV: Tensor, top_BHF: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend by random features to all keys where `allowed_BM`, on top of earlier ones: out_BLHV, and sums_BHFV and top_BHF including these keys.

    The sums are Σ φ(k) [v; 1]ᵀ / exp(top), top the largest exponent of each feature, −inf where there is no key.

    Args:
        q_BLHK: queries.
        k_BMHK: keys.
        v_BMHV: values.
        omega_FK: random vectors.
        allowed_BM: keys that are attended to; None: all.
        sums_BHFV: sums over earlier keys.
        top_BHF: largest exponent of each feature over earlier keys.

    Shape: → out_BLHV, sums_BHFV, top_BHF; sums have V + 1 columns.
    """
    return Whole.apply(q_BLHK, k_BMHK, v_BMHV, omega_FK, allowed_BM, sums_BHFV, top_BHF)  # type: ignore[no-untyped-call]


@no_autocast
def causal_favor(
    q_BLHK: Tensor, k_BLHK: Tensor, v_BLHV: Tensor, omega_FK: Tensor, allowed_BL: Tensor | None, sums_BHFV: Tensor, top_BHF: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Compute `favor` over the keys up to each query. None where exponents grow too much within a piece.

    Args:
        q_BLHK: queries.
        k_BLHK: keys.
        v_BLHV: values.
        omega_FK: random vectors.
        allowed_BL: keys that are attended to; None: all.
        sums_BHFV: sums over earlier keys.
        top_BHF: largest exponent of each feature over earlier keys.

    Shape: → out_BLHV, sums_BHFV, top_BHF; sums have V + 1 columns.
    """
    found = Causal.apply(q_BLHK, k_BLHK, v_BLHV, omega_FK, allowed_BL, sums_BHFV, top_BHF)  # type: ignore[no-untyped-call]
    return None if found[0] is None else found


class Whole(torch.autograd.Function):
    """The sums of all keys, a few rows at a time, then what queries read from them."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        omega_FK: Tensor,
        allowed_BM: Tensor | None,
        sums_BHFV: Tensor,
        top_BHF: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        omega, out_BLHV, total_BLH1 = _scaled(omega_FK, q_BLHK), *_empty_result(q_BLHK, v_BMHV)
        sums_BHFV, before_BHF, top_BHF = sums_BHFV.to(omega.dtype, copy=True), *(top_BHF.to(omega.dtype) * LOG2E for _ in range(2))
        scratch = Scratch(omega)
        for rows in _batch_slices(q_BLHK):
            sums_nFV, top_nF = (x[rows].flatten(0, 1) for x in (sums_BHFV, top_BHF))
            for span in _token_slices(k_BMHK[rows]):
                k_nCK, v_nCV = _cut_chunks(rows, span, k_BMHK, v_BMHV)
                k_nCF = _keys(k_nCK, omega, _masked(allowed_BM, k_BMHK, rows, span), scratch)
                new_nF = torch.maximum(top_nF, k_nCF.amax(1))
                sums_nFV.mul_(_rescale(top_nF, new_nF)).baddbmm_(_powers(k_nCF, new_nF).mT, _with_ones(v_nCV))
                top_nF.copy_(new_nF)
            for span in _token_slices(q_BLHK[rows]):
                (q_nCK,) = _cut_chunks(rows, span, q_BLHK)
                q_nCF = _queries(q_nCK, omega, top_nF, scratch)
                _write_average(out_BLHV, total_BLH1, rows, span, torch.bmm(q_nCF, sums_nFV))
        ctx.allowed = allowed_BM
        ctx.save_for_backward(q_BLHK, k_BMHK, v_BMHV, omega, out_BLHV, total_BLH1, sums_BHFV, top_BHF, _rescale(before_BHF, top_BHF))
        return _finish(ctx, out_BLHV, sums_BHFV, top_BHF)

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, do_BLHV: Tensor | None, d_sums_BHFV: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        q_BLHK, k_BMHK, v_BMHV, omega, out_BLHV, total_BLH1, sums_BHFV, top_BHF, left_BHF1 = ctx.saved_tensors
        do_BLHV, d_sums_BHFV, scratch = _gradient_or_zeros(do_BLHV, out_BLHV), _gradient_or_zeros(d_sums_BHFV, sums_BHFV), Scratch(omega)
        dq_BLHK, dk_BMHK, dv_BMHV = (torch.empty_like(x) for x in (q_BLHK, k_BMHK, v_BMHV))
        for rows in _batch_slices(q_BLHK):
            sums_nFV, d_sums_nFV, top_nF = (x[rows].flatten(0, 1) for x in (sums_BHFV, d_sums_BHFV, top_BHF))
            for span in _token_slices(q_BLHK[rows]):
                q_nCK, *of_out = _cut_chunks(rows, span, q_BLHK, do_BLHV, out_BLHV, total_BLH1)
                q_nCF, d_nCV = _queries(q_nCK, omega, top_nF, scratch), _d_sums_read(*of_out)
                d_sums_nFV.baddbmm_(q_nCF.mT, d_nCV)
                dq_nCF = torch.bmm(d_nCV, sums_nFV.mT, out=scratch("dq", *q_nCF.shape)).mul_(q_nCF)
                _write(dq_BLHK, rows, span, _d_tokens(dq_nCF, omega))
            for span in _token_slices(k_BMHK[rows]):
                k_nCK, v_nCV = _cut_chunks(rows, span, k_BMHK, v_BMHV)
                k_nCF = _powers(_keys(k_nCK, omega, _masked(ctx.allowed, k_BMHK, rows, span), scratch), top_nF)
                dk_nCF = torch.bmm(_with_ones(v_nCV), d_sums_nFV.mT, out=scratch("dk", *k_nCF.shape)).mul_(k_nCF)
                _write(dk_BMHK, rows, span, _d_tokens(dk_nCF, omega, k_nCK))
                _write(dv_BMHV, rows, span, torch.bmm(k_nCF, d_sums_nFV[..., :-1]))
        return dq_BLHK, dk_BMHK, dv_BMHV, None, None, d_sums_BHFV.mul_(left_BHF1), None


@dataclass(slots=True)
class Past:
    """The keys before a piece, summed up, for n heads."""

    sums_nFV: Tensor  # divided by 2^c
    c_nF: Tensor
    top_nF: Tensor  # the largest exponents


@dataclass(slots=True)
class Piece:
    """T chunks of n heads, N = T·n with the chunks outermost: features, and the sums before each chunk."""

    q_NCF: Tensor
    k_NCF: Tensor
    v_NCV: Tensor  # with a column of ones
    before_NFV: Tensor
    left_nF1: Tensor  # at this reference, of the sums before the piece
    after: Past

    @classmethod
    def of(
        cls, q_NCK: Tensor, k_NCK: Tensor, v_NCV: Tensor, masked_NC1: Tensor | None, omega_FK: Tensor, past: Past, scratch: Scratch
    ) -> Piece | None:
        """None where exponents grow too much."""
        k_NCF, v_NCV, n = _keys(k_NCK, omega_FK, masked_NC1, scratch), _with_ones(v_NCV), len(past.c_nF)
        most_nF = k_NCF.amax(1).unflatten(0, (-1, n)).amax(0)
        c_nF = torch.maximum(past.top_nF, _first_allowed(k_NCF, masked_NC1, n))
        if (most_nF - _finite(c_nF)).amax() > math.log2(torch.finfo(c_nF.dtype).max) / 2 - 4:
            return None
        c_NF, left_nF1 = c_nF.repeat(len(k_NCF) // n, 1), _rescale(past.c_nF, c_nF)
        own_NFV = torch.bmm(_powers(k_NCF, c_NF).mT, v_NCV, out=scratch("own", *c_NF.shape, v_NCV.shape[-1]))
        before_NFV, sums_nFV = scratch("before", *own_NFV.shape), past.sums_nFV * left_nF1
        _add_up(sums_nFV, own_NFV.split(n), before_NFV.split(n))
        after = Past(sums_nFV, c_nF, torch.maximum(past.top_nF, most_nF))
        return cls(_queries(q_NCK, omega_FK, c_NF, scratch), k_NCF, v_NCV, before_NFV, left_nF1, after)

    def scores(self, scratch: Scratch) -> Tensor:
        N, C, _ = self.k_NCF.shape
        return torch.bmm(self.q_NCF, self.k_NCF.mT, out=scratch("scores", N, C, C)).tril_()


class Causal(torch.autograd.Function):
    """One piece after the other; the sums between them are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BLHK: Tensor,
        k_BLHK: Tensor,
        v_BLHV: Tensor,
        omega_FK: Tensor,
        allowed_BL: Tensor | None,
        sums_BHFV: Tensor,
        top_BHF: Tensor,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        omega, out_BLHV, total_BLH1 = _scaled(omega_FK, q_BLHK), *_empty_result(q_BLHK, v_BLHV)
        sums_BHFV, top_BHF, scratch = sums_BHFV.to(omega.dtype, copy=True), top_BHF.to(omega.dtype) * LOG2E, Scratch(omega)
        ctx.allowed, ctx.pasts = allowed_BL, []
        for rows in _batch_slices(q_BLHK):
            sums_nFV, top_nF = (x[rows].flatten(0, 1) for x in (sums_BHFV, top_BHF))
            past = Past(sums_nFV.clone(), top_nF.clone(), top_nF.clone())
            for span in _token_slices(q_BLHK[rows]):
                ctx.pasts.append(past)
                q_NCK, k_NCK, v_NCV = _cut_chunks(rows, span, q_BLHK, k_BLHK, v_BLHV, size=CHUNK)
                piece = Piece.of(q_NCK, k_NCK, v_NCV, _masked(allowed_BL, k_BLHK, rows, span, size=CHUNK), omega, past, scratch)
                if piece is None:
                    return None, None, None
                found_NCV = torch.bmm(piece.scores(scratch), piece.v_NCV).baddbmm_(piece.q_NCF, piece.before_NFV)
                _write_average(out_BLHV, total_BLH1, rows, span, found_NCV)
                past = piece.after
            ctx.pasts.append(past)
            torch.mul(past.sums_nFV, _rescale(past.c_nF, past.top_nF), out=sums_nFV)
            top_nF.copy_(past.top_nF)
        ctx.save_for_backward(q_BLHK, k_BLHK, v_BLHV, omega, out_BLHV, total_BLH1)
        return _finish(ctx, out_BLHV, sums_BHFV, top_BHF)

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, do_BLHV: Tensor | None, d_sums_BHFV: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        q_BLHK, k_BLHK, v_BLHV, omega, out_BLHV, total_BLH1 = ctx.saved_tensors
        B, H, pasts, scratch = len(q_BLHK), q_BLHK.shape[2], list(ctx.pasts), Scratch(omega)
        do_BLHV = _gradient_or_zeros(do_BLHV, out_BLHV)
        d_sums_BHFV = _gradient_or_zeros(d_sums_BHFV, omega.new_empty(B, H, len(omega), v_BLHV.shape[-1] + 1))
        dq_BLHK, dk_BLHK, dv_BLHV = (torch.empty_like(x) for x in (q_BLHK, k_BLHK, v_BLHV))
        for rows in reversed(_batch_slices(q_BLHK)):
            past, d_sums_nFV = pasts.pop(), d_sums_BHFV[rows].flatten(0, 1)
            d_sums_nFV.mul_(_rescale(past.c_nF, past.top_nF))
            for span in reversed(_token_slices(q_BLHK[rows])):
                q_NCK, k_NCK, v_NCV, *of_out = _cut_chunks(rows, span, q_BLHK, k_BLHK, v_BLHV, do_BLHV, out_BLHV, total_BLH1, size=CHUNK)
                piece = Piece.of(q_NCK, k_NCK, v_NCV, _masked(ctx.allowed, k_BLHK, rows, span, size=CHUNK), omega, pasts.pop(), scratch)
                assert piece is not None
                q_NCF, k_NCF, v_NCV, before_NFV, d_NCV = piece.q_NCF, piece.k_NCF, piece.v_NCV, piece.before_NFV, _d_sums_read(*of_out)
                d_before_NFV, d_after_NFV = (scratch(name, *before_NFV.shape) for name in ("own", "after"))
                torch.bmm(q_NCF.mT, d_NCV, out=d_before_NFV)
                _add_up(d_sums_nFV, *(x.split(len(d_sums_nFV))[::-1] for x in (d_before_NFV, d_after_NFV)))
                d_sums_nFV.mul_(piece.left_nF1)
                pairs_NCC = torch.bmm(d_NCV, v_NCV.mT).tril_()
                dq_NCF, dk_NCF = (scratch(name, *q_NCF.shape) for name in ("dq", "dk"))
                torch.bmm(pairs_NCC, k_NCF, out=dq_NCF).baddbmm_(d_NCV, before_NFV.mT).mul_(q_NCF)
                torch.bmm(pairs_NCC.mT, q_NCF, out=dk_NCF).baddbmm_(v_NCV, d_after_NFV.mT).mul_(k_NCF)
                _write(dq_BLHK, rows, span, _d_tokens(dq_NCF, omega))
                _write(dk_BLHK, rows, span, _d_tokens(dk_NCF, omega, k_NCK))
                _write(dv_BLHV, rows, span, torch.bmm(piece.scores(scratch).mT, d_NCV).baddbmm_(k_NCF, d_after_NFV)[..., :-1])
        return dq_BLHK, dk_BLHK, dv_BLHV, None, None, d_sums_BHFV, None


def _add_up(sum_nFV: Tensor, own: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Sums before each chunk, from a first one, which becomes the last."""
    for own_nFV, before_nFV in zip(own, before, strict=True):
        before_nFV.copy_(sum_nFV)
        sum_nFV += own_nFV


def _first_allowed(k_NCF: Tensor, masked_NC1: Tensor | None, n: int) -> Tensor:
    """The first allowed key of a piece."""
    if masked_NC1 is None:
        return k_NCF[:n, 0]
    masked_nX = masked_NC1.unflatten(0, (-1, n)).transpose(0, 1).flatten(1)
    at_n, C = masked_nX.int().argmin(1), k_NCF.shape[1]
    return k_NCF[at_n // C * n + torch.arange(n, device=at_n.device), at_n % C]


# -- features ----------------------------------------------------------------------------------------------------------


def _scaled(omega_FK: Tensor, like: Tensor) -> Tensor:
    scale: float = LOG2E * omega_FK.shape[1] ** -0.25
    return omega_FK.to(accumulation_dtype(like)) * scale


def _keys(k_NCK: Tensor, omega_FK: Tensor, masked_NC1: Tensor | None, scratch: Scratch) -> Tensor:
    """Exponents of two, k_NCF."""
    k_NCF = torch.matmul(k_NCK, omega_FK.mT, out=scratch("k", *k_NCK.shape[:2], len(omega_FK)))
    k_NCF.sub_(k_NCK.square().sum(-1, keepdim=True), alpha=LOG2E / 2 * k_NCK.shape[-1] ** -0.5)
    return k_NCF if masked_NC1 is None else k_NCF.masked_fill_(masked_NC1, -torch.inf)


def _powers(k_NCF: Tensor, c_NF: Tensor) -> Tensor:
    return k_NCF.sub_(_finite(c_NF).unsqueeze(1)).exp2_()


def _queries(q_NCK: Tensor, omega_FK: Tensor, c_NF: Tensor, scratch: Scratch) -> Tensor:
    """Features; the norm of a query is left out: like its largest exponent it is the same in all features, and cancels."""
    q_NCF = torch.matmul(q_NCK, omega_FK.mT, out=scratch("q", *q_NCK.shape[:2], len(omega_FK))).add_(_finite(c_NF).unsqueeze(1))
    return q_NCF.sub_(q_NCF.amax(-1, keepdim=True)).exp2_()


def _rescale(before: Tensor, after: Tensor) -> Tensor:
    """The factor from one reference to another that is not smaller, or to the first one; (…, 1)."""
    return (_finite(before) - _finite(after)).clamp_max_(0).exp2_().unsqueeze(-1)


def _d_sums_read(do_NCV: Tensor, out_NCV: Tensor, total_NC1: Tensor) -> Tensor:
    """Gradients of the weighted sums of values and, last, of the sum of weights."""
    d_NCV = torch.cat([do_NCV, -(do_NCV * out_NCV).sum(-1, keepdim=True)], -1)
    return d_NCV.div_(total_NC1.masked_fill(total_NC1 == 0, 1))  # zero: the padding of a chunk


def _d_tokens(d_NCF: Tensor, omega_FK: Tensor, k_NCK: Tensor | None = None) -> Tensor:
    """Turn gradients of exponents into those of queries, or of keys, whose norms count."""
    d_NCK = torch.matmul(d_NCF, omega_FK).div_(LOG2E)
    return d_NCK if k_NCK is None else d_NCK.addcmul_(k_NCK, d_NCF.sum(-1, keepdim=True), value=-(k_NCK.shape[-1] ** -0.5))


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x == -torch.inf, 0)


def _with_ones(v_NCV: Tensor) -> Tensor:
    return pad(v_NCV, (0, 1), value=1.0)


# -- pieces of tensors -------------------------------------------------------------------------------------------------


def _slices(count: int, size: int) -> list[slice]:
    return [slice(n, min(n + size, count)) for n in range(0, count, max(1, size))]


def _batch_slices(x_BLHK: Tensor) -> list[slice]:
    """Batch rows that are processed together."""
    return _slices(len(x_BLHK), max(1, ROWS // (x_BLHK.shape[2] * CHUNK)))


def _token_slices(x_BLHK: Tensor) -> list[slice]:
    """Tokens that are processed together: whole chunks."""
    B, L, H, _ = x_BLHK.shape
    return _slices(L, max(1, ROWS // max(1, B * H * CHUNK)) * CHUNK)


def _cut_chunks(rows: slice, span: slice, *given: Tensor, size: int | None = None) -> list[Tensor]:
    """Cut into chunks of `size`, or into one, (N, C, …)."""
    return [to_chunks(x_BLHK[rows, span], size or span.stop - span.start) for x_BLHK in given]


def _masked(allowed_BL: Tensor | None, x_BLHK: Tensor, rows: slice, span: slice, size: int | None = None) -> Tensor | None:
    """Mark the keys of a slice that are masked, or padding of a chunk: masked_NC1; None if there are none."""
    length = span.stop - span.start
    if allowed_BL is None and length % (size or length) == 0:
        return None
    shape = len(x_BLHK[rows]), length, x_BLHK.shape[2], 1
    allowed = x_BLHK.new_ones(())
    if allowed_BL is not None:
        allowed = (allowed_BL[rows] if len(allowed_BL) > 1 else allowed_BL)[:, span, None, None].to(x_BLHK.dtype)
    return to_chunks(allowed.expand(shape), size or length) == 0


def _write(x_BLHK: Tensor, rows: slice, span: slice, part_NCK: Tensor) -> None:
    x_BLHK[rows, span] = from_chunks(part_NCK, x_BLHK[rows, span])


def _write_average(out_BLHV: Tensor, total_BLH1: Tensor, rows: slice, span: slice, found_NCV: Tensor) -> None:
    total_NC1 = found_NCV[..., -1:].masked_fill(found_NCV[..., -1:] == 0, 1)  # zero: a query without allowed keys
    _write(out_BLHV, rows, span, found_NCV[..., :-1].div_(total_NC1))
    _write(total_BLH1, rows, span, total_NC1)


def _empty_result(q_BLHK: Tensor, v_BMHV: Tensor) -> tuple[Tensor, Tensor]:
    """Empty tensors for the result and for the sums of weights."""
    return v_BMHV.new_empty(*q_BLHK.shape[:3], v_BMHV.shape[-1]), q_BLHK.new_empty(*q_BLHK.shape[:3], 1, dtype=accumulation_dtype(q_BLHK))


def _gradient_or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient.to(like.dtype, copy=True)


def _finish(ctx: Any, out_BLHV: Tensor, sums_BHFV: Tensor, top_BHF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top_BHF = top_BHF / LOG2E
    ctx.mark_non_differentiable(top_BHF)
    ctx.set_materialize_grads(False)
    return out_BLHV, sums_BHFV, top_BHF
