"""Exact attention in tiles: every option against the definition, both forms of a tile, gradients of everything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.shapes import patterns
from torch import Tensor

import regard.patterns as P
from regard.kernels import Bias, add_bias, attend, force, merge
from regard.kernels.exact import tiled_softmax
from regard.kernels.exact.plan import make_plan, width

B, L, M, H, G, K, V = 3, 150, 333, 4, 2, 7, 11


def reference(q, k, v, pattern, *, scale=None, bias=0.0, softcap=None, sink_H=None):
    """Nothing of the code under test but the mask."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    s = torch.einsum("blhk,bmhk->bhlm", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = (s + bias).masked_fill(~pattern.mask(q.shape[1], k.shape[1]), -torch.inf)
    if sink_H is not None:
        s = torch.cat([s, sink_H[:, None, None].expand(*s.shape[:3], 1)], -1)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    w = s.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)[..., : k.shape[1]]
    return torch.einsum("bhlm,bmhv->blhv", w, v)


def inputs(value=K, keys=M, heads=G, dtype=torch.float64):
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in ((B, L, H, K), (B, keys, heads, K), (B, keys, heads, value))]


def same(out, expected, wanted, tolerance=1e-10):
    cotangent = torch.randn_like(out)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        torch.autograd.grad(out, wanted, cotangent), torch.autograd.grad(expected, wanted, cotangent), atol=tolerance, rtol=tolerance
    )


PATTERNS = [
    *patterns(L, M),
    P.window(10) | P.tokens(0, -1),
    P.segments(torch.arange(M).expand(3, M) // 40),
    P.block_window(64, 1) | P.tokens(0, -1) | P.random_blocks(1, 64, seed=1, per_head=4),
    P.window(3) | P.per_head(*(P.from_tokens(200 + 12 * h) for h in range(H))),  # alike in blocks, not in rows
]


@pytest.fixture(params=["fused", "plain"])
def form(request):
    """Both forms of a tile, and no way around the tiles."""
    if request.param == "fused" and not tiled_softmax.HAS_FUSED:
        pytest.skip("this build of PyTorch has no CPU flash kernel")
    with force("plain" if request.param == "plain" else "tiles"):
        yield request.param


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
class TestOptions:
    def test_patterns(self, pattern, form):
        q, k, v = inputs()
        same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))

    def test_values_wider_than_keys(self, pattern, form):
        q, k, v = inputs(value=V)
        same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))

    def test_learned_bias_matrix(self, pattern, form):
        """Every pattern meets every shape, in one of the two forms; and each form every shape, under half of the patterns."""
        q, k, v = inputs()
        turn = (PATTERNS.index(pattern) + (form == "fused")) % 2
        for shape in ((B, H, L, M), (1, H, L, M), (B, 1, 1, M), (L, M))[turn::2]:
            bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            same(attend(q, k, v, pattern, bias=bias), reference(q, k, v, pattern, bias=bias), (q, k, v, bias))

    def test_constant_bias(self, pattern, form):
        q, k, v = inputs()
        bias = torch.randn(1, H, L, M, dtype=torch.float64)
        same(attend(q, k, v, pattern, bias=bias), reference(q, k, v, pattern, bias=bias), (q, k, v))

    def test_softcap_sink_and_scale_together(self, pattern, form):
        q, k, v = inputs()
        sink = torch.randn(H, dtype=torch.float64, requires_grad=True)
        options = {"softcap": 2.0, "sink_H": sink, "scale": 0.9}
        same(attend(q, k, v, pattern, **options), reference(q, k, v, pattern, **options), (q, k, v, sink))

    def test_sink_alone_uses_the_fast_form(self, pattern, form):
        q, k, v = inputs()
        sink = torch.randn(H, dtype=torch.float64, requires_grad=True)
        same(attend(q, k, v, pattern, sink_H=sink), reference(q, k, v, pattern, sink_H=sink), (q, k, v, sink))

    def test_log_sum_exp_has_gradients(self, pattern, form):
        q, k, v = inputs(heads=H)
        out, lse = attend(q, k, v, pattern, with_lse=True)
        s = torch.einsum("blhk,bmhk->bhlm", q, k) * K**-0.5
        expected = s.masked_fill(~pattern.mask(L, M), -torch.inf).logsumexp(-1)
        alive = expected > -torch.inf
        assert (lse[~alive] == -torch.inf).all()
        same(lse[alive] + out.sum(), expected[alive] + reference(q, k, v, pattern).sum(), (q, k, v))


@pytest.mark.parametrize(
    "pattern", [P.causal & P.window(40), P.window(70), P.block(64), P.per_head(P.window(9), P.causal, P.window(50), P.block(32))], ids=str
)
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"bias": True}], ids=str)
def test_runs_of_tiles_in_one_batch_row(pattern, options, form):
    """Tiles that follow each other evenly are views that overlap; gradients must add up all the same."""
    q, k, v = (torch.randn(1, 700, heads, K, dtype=torch.float64, requires_grad=True) for heads in (H, G, G))
    bias = torch.randn(H, 700, 700, dtype=torch.float64, requires_grad=True)
    options = {"bias": bias} if "bias" in options else options
    same(attend(q, k, v, pattern, **options), reference(q, k, v, pattern, **options), (q, k, v, *([bias] if "bias" in options else [])))


class Slopes(Bias):
    """A learned slope a head: what a bias object looks like."""

    def __init__(self, slopes_H: Tensor):
        self.tensors = (slopes_H,)

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        return -tensors[0][:, None, None] * (i[:, None] - j).abs()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_learned_bias_object_never_stands_as_a_whole(pattern, form, monkeypatch):
    q, k, v = inputs()
    slopes = torch.rand(H, dtype=torch.float64, requires_grad=True)
    whole = Slopes(slopes).whole(L, M, q.device)
    expected = reference(q, k, v, pattern, bias=whole)
    monkeypatch.delattr(Bias, "whole")
    same(attend(q, k, v, pattern, bias=Slopes(slopes)), expected, (q, k, v, slopes))


@pytest.mark.parametrize("pattern", [P.causal & P.window(40), P.per_head(P.window(9), P.causal, P.window(50), P.block(32))], ids=str)
@pytest.mark.parametrize("extra", [False, True])
def test_a_bias_by_distance_is_made_once_a_run(pattern, extra, form):
    """Alone, and added to a matrix, which is not the same for all tiles of a run."""

    class Counted(Slopes):
        by_distance = True
        made = 0

        def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
            Counted.made += 1
            return super().tile(i, j, *tensors)

    q, k, v = (torch.randn(1, 700, heads, K, dtype=torch.float64, requires_grad=True) for heads in (H, G, G))
    slopes = torch.rand(H, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(H, 700, 700, dtype=torch.float64, requires_grad=True) if extra else None
    bias = add_bias(Counted(slopes), matrix, 700, 700)
    out = attend(q, k, v, pattern, bias=bias)
    tiles = sum(len(group.tiles) for group in make_plan(pattern, 700, 700, H // G).groups)
    assert Counted.made == tiles if extra else Counted.made < tiles
    expected = reference(q, k, v, pattern, bias=Slopes(slopes).whole(700, 700, q.device) + (0.0 if matrix is None else matrix))
    same(out, expected, (q, k, v, slopes, *([] if matrix is None else [matrix])))


@given(
    queries=st.integers(1, 300),
    keys=st.integers(1, 300),
    rule=st.sampled_from(
        [P.causal, P.window(7), P.stride(3), P.block(16), P.causal & (P.window(2) | P.tokens(0)), P.summary(9, 2), P.dilated(3, 4)]
    ),
    flip=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_size(queries, keys, rule, flip):
    q, k, v = (torch.randn(1, n, 1, 3, dtype=torch.float64) for n in (queries, keys, keys))
    rule = ~rule if flip else rule
    out, _ = attend(q, k, v, rule, with_lse=True)
    torch.testing.assert_close(out, reference(q, k, v, rule), atol=1e-10, rtol=1e-10)


def test_wide_rows_are_split_and_merged(form):
    """More keys than one tile takes."""
    pattern = P.causal & P.stride(2)
    assert any(tile.split for group in make_plan(pattern, L, 4200).groups for tile in group.tiles)
    q, k, v = inputs(keys=4200)
    same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))


def test_merge_of_two_halves_is_the_whole():
    q, k, v = inputs(heads=H)
    parts = [attend(q, k[:, s], v[:, s], with_lse=True) for s in (slice(0, 100), slice(100, M))]
    out, lse = merge(parts)
    same(out, reference(q, k, v, P.full), (q, k, v))
    torch.testing.assert_close(lse, attend(q, k, v, with_lse=True)[1])
    nothing = attend(q, k, v, ~P.full, with_lse=True)
    assert (merge([nothing, nothing])[0] == 0).all()
    torch.testing.assert_close(merge([parts[0], nothing])[0], parts[0][0])


class TestDropout:
    def test_mean_and_repeat(self):
        q, k, v = inputs()
        draws = [attend(q, k, v, P.window(40), dropout=0.3) for _ in range(200)]
        mean, expected = torch.stack(draws).mean(0), reference(q, k, v, P.window(40))
        spread = torch.stack(draws).std(0) / 200**0.5
        assert ((mean - expected).abs() < 6 * spread + 1e-12).all()
        again = [attend(q, k, v, P.window(40), dropout=0.3, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
        assert again[0].equal(again[1]) and not again[0].equal(draws[0])

    def test_gradients_see_the_same_draw(self):
        """The output is linear in v once the draw is fixed, so its derivative can be had by differences."""
        q, k, v = inputs()

        def f(q, k, v):
            return attend(q, k, v, P.causal & P.window(30), dropout=0.3, generator=torch.Generator().manual_seed(3)).sum()

        def numeric(n: int) -> Tensor:
            x = [t.detach().clone() for t in (q, k, v)]
            step = torch.zeros_like(x[n])
            step.view(-1)[7 * n + 3] = 1e-6
            up, down = ([t + (step if m == n else 0) * sign for m, t in enumerate(x)] for sign in (1, -1))
            return (f(*up) - f(*down)) / 2e-6

        for n, gradient in enumerate(torch.autograd.grad(f(q, k, v), (q, k, v))):
            torch.testing.assert_close(gradient.flatten()[7 * n + 3], numeric(n), atol=1e-6, rtol=1e-6)

    def test_factor_and_rate(self):
        extra = tiled_softmax.ScoreOptions(1.0, dropout=0.25, seed=9)
        left, factor = tiled_softmax.dropout_mask(torch.Size([1000, 100]), extra, torch.empty(0, dtype=torch.float64))
        assert {*left.unique().tolist()} == {0, 1} and factor == 1 / 0.75
        assert abs((left == 0).double().mean().item() - 0.25) < 0.01


def test_gradcheck():
    q, k, v = (torch.randn(1, n, 2, 3, dtype=torch.float64, requires_grad=True) for n in (6, 9, 9))
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda *x: attend(*x[:3], P.causal & P.window(3), sink_H=x[3], softcap=3.0), (q, k, v, sink))


class TestPlan:
    def pairs(self, pattern, queries, keys=None):
        return make_plan(pattern, queries, keys or queries).live

    @pytest.mark.parametrize(
        "pattern",
        [P.causal & P.window(64), P.window(64) | P.tokens(0), P.block(64), P.block_window(64, 1) | P.random_blocks(2, 64)],
        ids=str,
    )
    def test_work_is_linear_in_the_length(self, pattern):
        """Twice the length is twice the pairs visited, not four times."""
        assert self.pairs(pattern, 8192) / self.pairs(pattern, 4096) < 2.2

    def test_work_is_near_what_is_live(self):
        for pattern, slack in [(P.causal & P.window(128), 2.1), (P.block(64), 1.01), (P.window(256) | P.tokens(0), 1.6), (P.causal, 1.1)]:
            live = int(pattern.mask(4096, 4096).sum())
            assert live <= self.pairs(pattern, 4096) <= slack * live, str(pattern)

    def test_heads_and_rows_pay_for_their_own_pattern(self):
        mixed = P.per_head(P.causal, P.window(16), P.window(16), P.window(16))
        assert self.pairs(mixed, 2048) <= self.pairs(P.causal, 2048) + 3 * self.pairs(P.window(16), 2048)
        padded = P.lengths([2048, 128]) & P.causal
        assert self.pairs(padded, 2048) < 1.3 * self.pairs(P.causal, 2048)

    def test_static_plans_are_kept_and_their_masks_shared(self):
        pattern = P.causal & P.window(100)
        made = make_plan(pattern, 4096, 4096)
        assert make_plan(P.causal & P.window(100), 4096, 4096) is made
        masks = {id(t.mask) for g in made.groups for t in g.tiles if t.partial}
        assert len(masks) < 10 and id(None) not in masks  # those at the border, and one for all the rest

    @pytest.mark.parametrize("L, M", [(L, M), (640, 640), (500, 700)])
    def test_tiles_cover_each_live_pair_once(self, L, M):
        for pattern in [p for p in PATTERNS if (L, M) == (150, 333) or not isinstance(p, P.keep | P.segments)]:
            made = make_plan(pattern, L, M)
            covered = torch.zeros(B, H, L, M, dtype=torch.int)
            for group in made.groups:
                for tile in group.tiles:
                    b = torch.arange(B) if group.batch is None else torch.arange(B)[group.batch]
                    h = torch.arange(H) if group.heads is None else torch.arange(H)[group.heads]
                    i, j = made.positions(tile, torch.device("cpu"))
                    mask = made.mask(group, tile, torch.float32, torch.device("cpu"))
                    alive = torch.ones(1, 1, len(i), width(tile), dtype=torch.bool) if mask is None else mask == 0
                    covered[b[:, None, None, None], h[:, None, None], (i - made.start)[:, None], j] += alive.expand(
                        len(b), len(h), -1, -1
                    ).int()
            assert covered.equal(pattern.mask(L, M).expand(B, H, L, M).int()), str(pattern)


@pytest.mark.parametrize("length", [640, 700])
@pytest.mark.parametrize("pattern", [P.full, P.lengths([700, 333]), P.causal], ids=str)
def test_what_all_heads_see_is_done_at_once(pattern, length, form):
    """Band and global tokens for all heads together, merged with the random blocks of each; also a row that sees only the latter."""
    mask = torch.ones(length, length, dtype=torch.bool)
    mask[200] = False
    band = (P.block_window(64, 1) | P.tokens(0, 1, -1)) & P.keep(mask)
    pattern = (band | P.random_blocks(2, 64, seed=1, per_head=4)) & pattern
    later = [group for group in make_plan(pattern, length, length).groups if group.later]
    assert len(later) >= 4 and any(group.tiles for group in later)
    q, k, v = (torch.randn(2, length, heads, K, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))


def test_low_precision_accumulates_in_single(form):
    """Many tiles add to one key's gradient: sums in bf16 would lose them."""
    q, k, v = (torch.randn(1, 1024, 1, 8, requires_grad=True) for _ in range(3))
    low = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    pattern = P.window(10) | P.to_tokens(0)
    grads = torch.autograd.grad(attend(*low, pattern).float().sum(), low)
    expected = torch.autograd.grad(attend(*(x.float().detach().requires_grad_() for x in low), pattern).sum(), low, allow_unused=True)
    exact_in = [x.detach().float().requires_grad_() for x in low]
    expected = torch.autograd.grad(attend(*exact_in, pattern).sum(), exact_in)
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("pattern", [P.full, P.causal, P.causal & P.window(20)], ids=str)
@pytest.mark.parametrize("length", [5, 300])
def test_features_need_not_lie_side_by_side(length, pattern):
    apart = [torch.randn(8, 2, length, 1, dtype=torch.float64).permute(3, 2, 1, 0).requires_grad_() for _ in range(3)]
    beside = [x.detach().contiguous().requires_grad_() for x in apart]
    out, wanted = attend(*apart, pattern), attend(*beside, pattern)
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=1e-12)
    d = torch.randn(8, 2, length, 1, dtype=torch.float64).permute(3, 2, 1, 0)
    grads = (torch.autograd.grad(y, x, d) for y, x in ((out, apart), (wanted, beside)))
    torch.testing.assert_close(*grads, atol=1e-12, rtol=1e-12)
