"""Adaptive span: the ramp, its limits, its gradient, the cut of keys, and what training needs."""

import pytest
import torch

from regard import AdaptiveSpanAttention, SoftmaxAttention, capture, causal, full, keep, local_causal, tokens, window
from regard.attention.helpers import average
from regard.errors import BadConfig, ShapeError
from regard.kernels.exact.plan import make_plan
from regard.layers import ALiBi, MultiHead

B, L, H, K, V = 2, 201, 3, 5, 7


def spanned(*spans: float, ramp: float = 4.0, longest: int = 256) -> AdaptiveSpanAttention:
    attention = AdaptiveSpanAttention(heads=len(spans), longest=longest, ramp=ramp).double()
    with torch.no_grad():
        attention.share_H.copy_(torch.tensor(spans, dtype=torch.float64) / longest)
    return attention


def qkv(length: int = L, queries: int | None = None, heads: int = H):
    torch.manual_seed(0)
    sizes = (queries or length, K), (length, K), (length, V)
    return [torch.randn(B, n, heads, size, dtype=torch.float64, requires_grad=True) for n, size in sizes]


def test_by_hand():
    """z = 1, R = 2, equal scores: distances 0, 1, 2, 3 weigh 1, 1, 1/2, 0."""
    attention = spanned(1.0, ramp=2.0)
    q = torch.zeros(1, 5, 1, 2, dtype=torch.float64)
    expected = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0], dtype=torch.float64) / 2.5
    torch.testing.assert_close(attention.weights(q, q, causal)[0, 0, -1], expected)
    expected = torch.tensor([0.5, 1.0, 1.0, 1.0, 0.5], dtype=torch.float64) / 4  # both sides: |i − j|
    torch.testing.assert_close(attention.weights(q, q)[0, 0, 2], expected)


def test_the_papers_formula_in_two_loops():
    attention, (q, k, _) = spanned(1.5, 0.0, 9.25), qkv(14)
    weights = attention.weights(q, k, causal)
    z, R = attention.span(), attention.ramp
    for h in range(H):
        for i in range(14):
            raw = [min(max((R + z[h] - (i - j)) / R, 0), 1) * torch.exp(q[1, i, h] @ k[1, j, h] / K**0.5) for j in range(i + 1)]
            torch.testing.assert_close(weights[1, h, i, : i + 1], torch.stack([torch.as_tensor(x) for x in raw]) / sum(raw))


def test_a_span_of_everything_is_dense():
    attention, (q, k, v) = spanned(L, L, L), qkv()
    torch.testing.assert_close(attention(q, k, v, causal), SoftmaxAttention()(q, k, v, causal))


def test_no_ramp_is_a_window():
    attention, (q, k, v) = spanned(6, 6, 6, ramp=1e-6), qkv()
    torch.testing.assert_close(attention(q, k, v, causal), SoftmaxAttention()(q, k, v, local_causal(6)))
    torch.testing.assert_close(attention(q, k, v), SoftmaxAttention()(q, k, v, window(6)))


@pytest.mark.parametrize("queries", [L, 70])
@pytest.mark.parametrize("pattern", [causal, full, causal & (window(9) | tokens(0)), "keep"], ids=str)
def test_the_law_where_keys_are_cut(pattern, queries, kernel_path):
    """Spans far below the length, whole ones at which the ramp ends exactly on a key among them."""
    if pattern == "keep":  # some rows may see far keys only, which no head reaches
        pattern = keep(torch.rand(B, 1, queries, L, generator=torch.Generator().manual_seed(3)) < 0.05)
    attention, (q, k, v) = spanned(2.5, 60.0, 130.0), qkv(queries=queries)
    slopes = ALiBi(H).encode(q, k, 0, 0)[2]
    for bias in (None, torch.randn(H, queries, L, dtype=torch.float64, requires_grad=True), slopes):
        fast, slow = attention(q, k, v, pattern, bias), average(attention.weights(q, k, pattern, bias), v)
        torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
        wanted = [q, k, v, attention.share_H, *([bias] if isinstance(bias, torch.Tensor) else [])]
        cotangent = torch.randn_like(fast)
        for one, two in zip(*(torch.autograd.grad(out, wanted, cotangent) for out in (fast, slow)), strict=True):
            torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(attention(q, k, v, pattern, slopes), slow, atol=1e-10, rtol=1e-10)


def test_gradient_of_the_span_by_differences():
    attention, (q, k, v) = spanned(2.3, 5.7, 0.4), qkv(12)

    def out(share_H):
        return torch.func.functional_call(attention, {"share_H": share_H}, (q, k, v, causal))

    assert torch.autograd.gradcheck(out, (attention.share_H.detach().clone().requires_grad_(),), eps=1e-7, atol=1e-5)


def test_work_follows_the_span_of_each_head():
    attention = spanned(10, 10, 500, ramp=32, longest=4096)
    pairs = make_plan(causal & attention._near(4096), 4096, 4096).live
    assert pairs < 4096 * (2 * (64 + 128) + 576 + 128)
    assert pairs < 0.15 * 3 * 4096**2 / 2


@pytest.mark.parametrize(
    ("pattern", "step"),
    [
        (causal, 7),
        (causal, 64),
        (local_causal(9), 1),
        (local_causal(9) | causal & tokens(0, 1), 1),
        (local_causal(9) | causal & tokens(0, 1), 64),
    ],
    ids=str,
)
def test_streams_hold_no_more_than_the_span(pattern, step):
    attention, (q, k, v) = spanned(2.5, 20.0, 0.0), [x.detach() for x in qkv()]
    state = attention.start(B, pattern)
    parts = [attention(*(x[:, t : t + step] for x in (q, k, v)), pattern, state=state) for t in range(0, L, step)]
    torch.testing.assert_close(torch.cat(parts, 1), attention(q, k, v, pattern), atol=1e-10, rtol=1e-10)
    positions = state.columns()
    assert len(positions) <= 2 * 24 + step and (positions.diff() == 1).all()


def test_spans_learn_from_steps_as_from_the_whole():
    attention, (q, k, v) = spanned(2.5, 20.0, 0.0), [x.detach() for x in qkv()]
    state = attention.start(B)
    parts = [attention(*(x[:, t : t + 40] for x in (q, k, v)), causal, state=state) for t in range(0, L, 40)]
    whole, cotangent = attention(q, k, v, causal), torch.randn_like(v)
    one, two = (torch.autograd.grad(out, attention.share_H, cotangent)[0] for out in (torch.cat(parts, 1), whole))
    torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)
    assert two.abs().min() > 0


def test_captured_steps_are_rows_of_the_whole():
    layer = MultiHead(6, H, spanned(2.5, 20.0, 0.0)).double()
    x = torch.randn(B, 90, 6, dtype=torch.float64)
    with capture(layer, dtype=torch.float64) as whole:
        layer(x, pattern=causal)
    state = layer.start(B)
    with capture(layer, dtype=torch.float64) as steps:
        for t in range(90):
            layer(x[:, t : t + 1], pattern=causal, state=state)
    last = steps.all[-1]
    torch.testing.assert_close(last.weights_BHLM[:, :, 0], whole.all[0].weights_BHLM[:, :, 89, list(last.columns)])


def test_training_shortens_what_is_not_needed():
    """The value of the token before is asked for: the span shrinks to it, and stays within its bounds."""
    torch.manual_seed(0)
    attention = AdaptiveSpanAttention(heads=1, longest=32, ramp=4.0, begin=32)
    optimiser = torch.optim.SGD(attention.parameters(), lr=0.05)
    for _ in range(60):
        q = k = torch.zeros(4, 32, 1, 2)
        v = torch.randn(4, 32, 1, 1)
        loss = (attention(q, k, v, causal)[:, 1:] - v[:, :-1]).square().mean() + 0.02 * attention.penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        attention.clamp_()
        assert 0 <= attention.share_H.item() <= 1
    assert attention.penalty() < 3 and torch.equal(attention.penalty(), attention.span().mean())


def test_settings_that_cannot_be():
    for wrong in ({"ramp": 0.0}, {"begin": -1.0}, {"longest": 10, "begin": 11.0}, {"longest": 0}):
        with pytest.raises(BadConfig, match=f"AdaptiveSpanAttention: {list(wrong)[-1]}="):
            AdaptiveSpanAttention(**wrong)
    with pytest.raises(ShapeError, match="made for 3 heads"):
        spanned(1, 2, 3)(*qkv(5, heads=2))
