"""Exact attention along edges: every option against the definition, under lists of pairs and under any pattern; both forms; chosen by density."""

import pytest
import torch
from tests.kernels.test_exact import PATTERNS, B, H, K, L, M, inputs, reference, same

import regard.patterns as P
from regard.kernels import attend, force
from regard.kernels.exact import by_edges
from regard.kernels.exact.contents import Kept
from regard.layers import ALiBi, Buckets

EDGES = P.edges(
    torch.randint(M, (2, 700), generator=torch.Generator().manual_seed(0))
)  # most rows have some, row 0 to 182 are before the queries
LISTS = [
    EDGES,
    EDGES & P.lengths([M, 100, 0]),
    P.causal & EDGES,
    EDGES | P.window(0),
    P.per_head(EDGES, P.window(2), P.edges([[200], [3]]), EDGES & P.since([0, 40, 300])),
    P.edges(torch.zeros(2, 0, dtype=torch.long)),
]


@pytest.fixture(params=["cpu", "plain"])
def form(request, monkeypatch):
    """Both forms of what runs along edges."""
    if request.param == "plain":
        monkeypatch.setattr(by_edges, "_on_cpu", lambda x: False)
    with force("edges"):
        yield request.param


@pytest.mark.parametrize("pattern", LISTS, ids=str)
def test_listed_pairs_are_the_mask(pattern):
    for queries in (L, M):
        b, h, i, j = pattern.fit(queries, M).listed(queries, M)
        counts = torch.zeros(pattern.batch, pattern.heads, queries, M, dtype=torch.long)
        counts.index_put_((b, h, i - (M - queries), j), torch.ones_like(i), accumulate=True)
        assert torch.equal(counts, pattern.mask(queries, M).long())


@pytest.mark.parametrize("pattern", [*LISTS, *PATTERNS[::3]], ids=str)
class TestOptions:
    def test_patterns(self, pattern, form):
        q, k, v = inputs(value=11)
        same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))

    def test_learned_bias_matrix(self, pattern, form):
        q, k, v = inputs()
        for shape in ((B, H, L, M), (B, 1, 1, M), (L, M)):
            bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            same(attend(q, k, v, pattern, bias=bias), reference(q, k, v, pattern, bias=bias), (q, k, v, bias))

    def test_softcap_sink_and_scale_together(self, pattern, form):
        q, k, v = inputs()
        sink = torch.randn(H, dtype=torch.float64, requires_grad=True)
        options = {"softcap": 2.0, "sink_H": sink, "scale": 0.9}
        same(attend(q, k, v, pattern, **options), reference(q, k, v, pattern, **options), (q, k, v, sink))

    def test_log_sum_exp_has_gradients(self, pattern, form):
        q, k, v = inputs(heads=H)
        out, lse = attend(q, k, v, pattern, with_lse=True)
        s = torch.einsum("blhk,bmhk->bhlm", q, k) * K**-0.5
        expected = s.masked_fill(~pattern.mask(L, M), -torch.inf).logsumexp(-1)
        alive = expected > -torch.inf
        assert (lse[~alive] == -torch.inf).all()
        same(lse[alive].sum() + out.sum(), expected[alive].sum() + reference(q, k, v, pattern).sum(), (q, k, v))


def path_of(out):
    """Along edges, in tiles, or PyTorch's own kernel."""
    seen, names = [out.grad_fn], ""
    while seen:
        node = seen.pop()
        names += node.name() + " "
        seen += [parent for parent, _ in node.next_functions if parent is not None]
    return "edges" if "_Dots" in names else "tiles" if "Tiled" in names else "dense"


def test_sparse_lists_go_by_edges_and_others_do_not():
    q, k, v = (torch.randn(1, 600, 2, 8, requires_grad=True) for _ in "qkv")
    sparse, crowded = (P.edges(torch.randint(600, (2, count))) for count in (2_000, 200_000))
    assert path_of(attend(q, k, v, sparse)) == path_of(attend(q, k, v, sparse & P.lengths([500]), dropout=0.5)) == "edges"
    assert path_of(attend(q, k, v, crowded)) == path_of(attend(q, k, v, P.window(1))) == "tiles"
    with force("tiles"):
        assert path_of(attend(q, k, v, sparse)) == "tiles"
    few = [x[:, :100] for x in (q, k, v)]
    assert path_of(attend(*few, P.edges(torch.randint(100, (2, 50))))) == "dense"


def test_one_plan_for_equal_edges(monkeypatch):
    made, build = [], by_edges._make
    monkeypatch.setattr(by_edges, "_make", lambda *args: made.append(args) or build(*args))
    monkeypatch.setattr(by_edges, "_PLANS", Kept(8))
    pairs = torch.randint(600, (2, 2_000))
    q, k, v = torch.randn(3, 1, 600, 2, 8)
    for _ in range(3):
        attend(q, k, v, P.edges(pairs.clone()))
    assert len(made) == 1
    pairs[0, 0] = (pairs[0, 0] + 1) % 600
    torch.testing.assert_close(attend(q, k, v, P.edges(pairs)), reference(q, k, v, P.edges(pairs)))
    assert len(made) == 2


@pytest.mark.parametrize("position", [ALiBi(H), Buckets(H).double()], ids=lambda p: type(p).__name__)
def test_biases_by_rule(position):
    q, k, v = inputs(heads=H)
    *_, bias = position.encode(q, k, M - L, 0)
    with force("edges"):
        out = attend(q, k, v, EDGES, bias=bias)
    assert path_of(out) == "edges"
    wanted = (q, k, v, *position.parameters())
    same(out, reference(q, k, v, EDGES, bias=bias.whole(L, M, q.device)), wanted, 1e-6)


def test_dropout_keeps_a_share_and_its_mean():
    q, k, v = (torch.randn(1, 600, 2, 8, requires_grad=True) for _ in "qkv")
    pattern, ones = P.edges(torch.randint(600, (2, 20_000))), torch.ones_like(v)
    found = attend(q * 0, k, ones, pattern, dropout=0.25, generator=torch.Generator().manual_seed(0))
    assert path_of(found) == "edges" and found.std() > 0.05
    assert abs(found.mean().item() - 1) < 0.01
    again = attend(q * 0, k, ones, pattern, dropout=0.25, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, again)


def test_half_precision_is_summed_in_single():
    q, k, v = (torch.randn(1, 600, 2, 8) for _ in "qkv")
    pattern = P.edges(torch.randint(600, (2, 5_000)))
    out = attend(*(x.bfloat16() for x in (q, k, v)), pattern)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attend(q, k, v, pattern), atol=0.05, rtol=0.05)


def test_infinite_bias_on_all_edges_of_a_row_gives_zeros():
    q, k, v = inputs()
    bias = torch.zeros(L, M, dtype=torch.float64)
    bias[5] = -torch.inf
    bias.requires_grad_()
    with force("edges"):
        out = attend(q, k, v, EDGES, bias=bias)
    assert (out[:, 5] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v, bias)))


def test_memory_is_linear_in_the_edges():
    """As many nodes as would take 40 GB of booleans."""
    nodes = 200_000
    q = torch.randn(1, nodes, 1, 4, requires_grad=True)
    out = attend(q, q, q, P.edges(torch.randint(nodes, (2, 1000))))
    out.sum().backward()
    assert q.grad.isfinite().all()
