"""Nyström attention: where it is exact, how near it is otherwise, its segments and its pseudo-inverse."""

from functools import partial

import pytest
import torch

from regard.attention import NystromAttention, SoftmaxAttention
from regard.attention.nystrom import _segments, pseudo_inverse
from regard.errors import BadConfig
from regard.patterns import full, lengths
from regard.testing import assert_law

B, L, H, K, V = 3, 24, 2, 7, 4
close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-12)


def qkv(length=L, scale=1.0):
    torch.manual_seed(0)
    return [(scale * torch.randn(B, length, H, size, dtype=torch.float64)).requires_grad_() for size in (K, K, V)]


def test_as_many_landmarks_as_tokens_is_softmax_attention():
    q, k, v = qkv()
    for landmarks in (L, L + 9):
        attention = NystromAttention(landmarks=landmarks, kernel=0)
        close(attention(q, k, v), SoftmaxAttention()(q, k, v))
        close(attention.weights(q, k), SoftmaxAttention().weights(q, k))


def test_short_rows_of_a_batch_are_exact_and_long_ones_are_not():
    q, k, v = qkv()
    out, exact = (a(q, k, v, lengths([L, 8, 5])) for a in (NystromAttention(landmarks=8, kernel=0), SoftmaxAttention()))
    close(out[1:], exact[1:])
    assert (out[0] - exact[0]).abs().max() > 0.01


def test_tokens_alike_within_each_segment_are_exact():
    """Rank m, then: m different queries and keys, each `r` times in a row, lose nothing; given time, the inverse is exact."""
    m, r = 6, 4
    q, k, v = qkv(m * r)
    q, k = (3 * x.detach()[:, :m].repeat_interleave(r, 1) for x in (q, k))
    close(NystromAttention(landmarks=m, kernel=0, iterations=25)(q, k, v), SoftmaxAttention()(q, k, v), atol=1e-6)


def test_more_landmarks_are_nearer():
    """Random tokens of 64, relative error of the output: 0.51, 0.65, 0.80 at 32, 16, 8 landmarks for transformers' layer."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 64, 8, 16, dtype=torch.float64)
    exact = SoftmaxAttention()(q, k, v)
    errors = [float((NystromAttention(landmarks=m, kernel=0)(q, k, v) - exact).norm() / exact.norm()) for m in (64, 32, 16, 8)]
    assert errors == sorted(errors) and errors[0] < 1e-12 and 0.3 < errors[1] < 0.7 and errors[3] < 1


def test_segments():
    """Even to within one, as many as there are tokens for, padding in none."""
    kept = torch.arange(7) < torch.tensor([[7], [6], [2], [0]])
    mean, used = _segments(kept, 3, torch.float64)
    assert used.tolist() == [3, 3, 2, 0]
    sizes = (mean > 0).sum(-1)
    assert sizes.tolist() == [[3, 2, 2], [2, 2, 2], [1, 1, 0], [0, 0, 0]]
    close(mean.sum(-1), (sizes > 0).to(mean.dtype))


def test_pseudo_inverse():
    a = (3 * torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).softmax(-1)
    close(pseudo_inverse(a, 30), torch.linalg.pinv(a), atol=1e-7, rtol=1e-7)
    z = torch.zeros(1, 1, 4, 4)
    z[..., :2, :2] = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    close(pseudo_inverse(z, 6)[..., :2, :2], pseudo_inverse(z[..., :2, :2], 6), atol=1e-6, rtol=1e-6)
    assert (pseudo_inverse(z, 6)[..., 2:, :] == 0).all() and (pseudo_inverse(torch.zeros(1, 1, 2, 2), 6) == 0).all()


def test_the_convolution_is_a_band():
    """Weights that differ by c at each distance; on padding nothing."""
    q, k, _ = (x.detach() for x in qkv())
    with_, without = NystromAttention(heads=H, landmarks=4, kernel=5).double(), NystromAttention(landmarks=4, kernel=0)
    for pattern, n in ((full, [L] * B), (lengths([L, 9, 3]), [L, 9, 3])):
        band = (with_.weights(q, k, pattern) - without.weights(q, k, pattern)).detach()
        for b, h, i, j in ((0, 0, 0, 0), (0, 1, 5, 7), (1, 0, 8, 8), (1, 1, 8, 9), (2, 0, 2, 1), (2, 0, 4, 3), (0, 0, 10, 13)):
            wanted = with_.c_HT[h, j - i + 2].item() if abs(j - i) <= 2 and j < n[b] else 0.0
            close(band[b, h, i, j].item(), wanted, atol=1e-10)


def test_long_in_tiles_and_a_row_of_no_tokens():
    attention = NystromAttention(heads=H, landmarks=5, kernel=3).double()
    assert_law(attention, qkv(1500, 0.5), lengths([1500, 700, 3]))
    q, k, v = qkv()
    out = attention(q, k, v, lengths([L, 0, 1]))
    assert (out[1] == 0).all() and all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_the_inverse_stays_precise_under_autocast():
    q, k, v = (x.detach().bfloat16() for x in qkv(scale=2.0))
    attention = NystromAttention(heads=H, landmarks=6, kernel=3)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, attention(q.float(), k.float(), v.float()).bfloat16())


def test_wrong_settings_are_named():
    for wrong in ({"landmarks": 0, "kernel": 0}, {"heads": 2, "kernel": 4}, {"kernel": 33}, {"heads": 2, "kernel": 0}):
        with pytest.raises(BadConfig, match=r"NystromAttention: (landmarks|kernel)="):
            NystromAttention(**wrong)
