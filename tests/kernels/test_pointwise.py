"""Attention with weights that are a function of single scores: tiles against the definition, gradients of everything."""

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.shapes import patterns
from torch import Tensor

import regard.patterns as P
from regard.kernels import RELU, SIGMOID, SQUARED_RELU, Bias, ScoreActivation, attend_pointwise, force
from regard.kernels.exact.plan import make_plan

B, L, M, H, G, K, V = 3, 300, 333, 4, 2, 7, 11

ACTIVATIONS = {
    "sigmoid": (SIGMOID, torch.sigmoid),
    "relu": (RELU, torch.relu),
    "squared relu": (SQUARED_RELU, lambda s: s.relu().square()),
    "silu": (ScoreActivation(F.silu, lambda s, w: s.sigmoid() * (1 + s * (1 - s.sigmoid()))), F.silu),  # NaN at −inf
    "shifted tanh": (
        ScoreActivation(lambda s: s.tanh_().add_(0.5), lambda s, w: 1 - (w - 0.5).square()),
        lambda s: s.tanh() + 0.5,
    ),  # not 0 at −inf
}
PATTERNS = [
    *patterns(L, M),
    ~P.full,
]


def reference(q, k, v, pattern, function, scale=K**-0.5, bias=0.0, row_bias=None):
    """The definition; nothing of the code under test but the mask."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    s = torch.einsum("blhk,bmhk->bhlm", q, k) * scale + bias
    s = s if row_bias is None else s + row_bias[..., None]
    allowed = pattern.mask(q.shape[1], k.shape[1]).expand(s.shape) & (s > -torch.inf)
    weights = torch.where(allowed, function(s.masked_fill(~allowed, 0.0)), 0.0)
    return torch.einsum("bhlm,bmhv->blhv", weights, v)


def inputs(queries=L, keys=M, batch=B, value=V, dtype=torch.float64):
    shapes = (batch, queries, H, K), (batch, keys, G, K), (batch, keys, G, value)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def same(out, expected, wanted, tolerance=1e-10):
    cotangent = torch.randn_like(out)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    grads = (torch.autograd.grad(x, wanted, cotangent) for x in (out, expected))
    torch.testing.assert_close(*grads, atol=tolerance, rtol=tolerance)


class Slopes(Bias):
    by_distance = True

    def __init__(self, slopes_H: Tensor):
        self.tensors = (slopes_H,)

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        return -tensors[0][:, None, None] * (i[:, None] - j).abs()


@pytest.fixture(params=["dense", "tiles"])
def path(request):
    with force(request.param):
        yield


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_definition(name, pattern, path):
    activation, function = ACTIVATIONS[name]
    q, k, v = inputs()
    same(attend_pointwise(q, k, v, pattern, activation), reference(q, k, v, pattern, function), (q, k, v))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_learned_biases(name, pattern, path):
    """Matrices and objects, added to pairs and to rows; every pattern meets every shape, with one of two activations."""
    (activation, function), (q, k, v) = ACTIVATIONS[name], inputs()
    shapes = [((B, H, L, M), (B, H, L)), ((B, 1, 1, M), (B, 1, L))] if name == "sigmoid" else [((1, H, L, M), (H, 1)), ((L, M), ())]
    for shape, row_shape in shapes:
        bias, row_bias = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (shape, row_shape))
        options = {"bias": bias, "row_bias": row_bias, "scale": 0.3}
        same(
            attend_pointwise(q, k, v, pattern, activation, **options),
            reference(q, k, v, pattern, function, **options),
            (q, k, v, bias, row_bias),
        )
    slopes = torch.rand(H, dtype=torch.float64, requires_grad=True)
    out = attend_pointwise(q, k, v, pattern, activation, bias=Slopes(slopes))
    same(out, reference(q, k, v, pattern, function, bias=Slopes(slopes).whole(L, M, q.device)), (q, k, v, slopes))


@pytest.mark.parametrize(
    "pattern", [P.causal & P.window(40), P.window(70), P.per_head(P.window(9), P.causal, P.window(50), P.block(32))], ids=str
)
@pytest.mark.parametrize("bias", ["none", "slopes"])
def test_runs_of_tiles_in_one_batch_row(pattern, bias):
    """Tiles that follow each other evenly are views that overlap; gradients must add up all the same. No path is forced."""
    q, k, v = inputs(700, 700, batch=1)
    slopes, row_bias = (torch.rand(H, *more, dtype=torch.float64, requires_grad=True) for more in ((), (700,)))
    options = {"row_bias": row_bias} | ({"bias": Slopes(slopes)} if bias == "slopes" else {})
    out = attend_pointwise(q, k, v, pattern, SIGMOID, **options)
    whole = {"bias": Slopes(slopes).whole(700, 700, q.device)} if bias == "slopes" else {}
    wanted = (q, k, v, row_bias, *([slopes] if bias == "slopes" else []))
    same(out, reference(q, k, v, pattern, torch.sigmoid, row_bias=row_bias, **whole), wanted)


def test_rows_with_more_keys_than_a_tile_takes():
    pattern, (q, k, v) = P.causal & P.stride(2), inputs(100, 4200)
    assert any(tile.split for group in make_plan(pattern, 100, 4200).groups for tile in group.tiles)
    same(attend_pointwise(q, k, v, pattern, SIGMOID), reference(q, k, v, pattern, torch.sigmoid), (q, k, v))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bias_of_minus_infinity_excludes(name, path):
    (activation, function), (q, k, v) = ACTIVATIONS[name], inputs()
    bias = torch.randn(L, M, dtype=torch.float64).masked_fill(torch.rand(L, M) < 0.5, -torch.inf)
    bias[7] = -torch.inf
    out = attend_pointwise(q, k, v, P.causal, activation, bias=bias)
    assert (out[:, 7] == 0).all()
    same(out, reference(q, k, v, P.causal, function, bias=bias), (q, k, v))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rows_that_see_nothing_and_huge_scores_stay_finite(name, path):
    """Scores of excluded pairs are as large as those of others; an exponential of them would overflow."""
    activations = {**ACTIVATIONS, "exp": (ScoreActivation(torch.exp, lambda s, w: w), torch.exp)}
    pattern = P.window(3) & ~P.to_tokens(*range(150, 170))
    for activation in (activations[name][0], activations["exp"][0]):
        q, k, v = inputs(dtype=torch.float32)
        far = (k.detach() * (1 + 1e4 * (torch.arange(M) == 160)[:, None, None])).requires_grad_()
        out = attend_pointwise(q, far, v, pattern, activation)
        grads = torch.autograd.grad(out.sum(), (q, far, v))
        assert out.isfinite().all() and all(x.isfinite().all() for x in grads)
        assert (grads[1][:, 160] == 0).all() and (grads[2][:, 160] == 0).all()


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (1, 1), (1, 40)])
def test_few_or_no_tokens(queries, keys, path):
    q, k, v = inputs(queries, keys)
    out = attend_pointwise(q, k, v, P.causal, SIGMOID, row_bias=torch.zeros(queries, dtype=torch.float64))
    same(out, reference(q, k, v, P.causal, torch.sigmoid), (q, k, v))


def test_low_precision_sums_in_single_also_under_autocast():
    q, k, v = inputs(1024, 1024, batch=1, dtype=torch.float32)
    low = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    wide = [x.detach().float().requires_grad_() for x in low]
    pattern = P.window(10) | P.to_tokens(0)
    whole = reference(*wide, pattern, torch.sigmoid)
    expected = torch.autograd.grad(whole.sum(), wide)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend_pointwise(*low, pattern, SIGMOID)
        grads = torch.autograd.grad(out.float().sum(), low)
        single = attend_pointwise(*wide, pattern, SIGMOID)
        torch.testing.assert_close(torch.autograd.grad(single.sum(), wide), expected, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(single, whole, atol=1e-4, rtol=1e-4)
    assert out.dtype == torch.bfloat16
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02)


def test_gradcheck():
    q, k, v = (torch.randn(1, n, 2, 3, dtype=torch.float64, requires_grad=True) for n in (6, 9, 9))
    row_bias = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *x: attend_pointwise(*x[:3], P.causal & P.window(3), SIGMOID, row_bias=x[3]), (q, k, v, row_bias)
    )
