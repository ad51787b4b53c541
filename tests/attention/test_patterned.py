"""Mechanisms that are a pattern with a name: which pattern, by every way of computing it, and at what cost."""

import pytest
import torch

from regard import capture
from regard.attention import (
    BigBirdAttention,
    ColumnAttention,
    DilatedAttention,
    Image1DAttention,
    Image2DAttention,
    LocalAttention,
    LongformerAttention,
    RowAttention,
    SoftmaxAttention,
    SparseFixedAttention,
    SparseStridedAttention,
    StreamingAttention,
    StridedAttention,
    axial,
    find_mechanism,
)
from regard.attention.helpers import average
from regard.errors import BadConfig, ShapeError, StateNotSupported
from regard.kernels.exact import plan, tiled_softmax
from regard.patterns import causal, full, keep, lengths

B, H, G, K = 2, 4, 2, 6

EVERY = {
    "local": LocalAttention(3),
    "strided": StridedAttention(5),
    "dilated": DilatedAttention(2, 3),
    "dilated by head": DilatedAttention(2, (1, 1, 2, 5)),
    "longformer": LongformerAttention(2, (0, 7)),
    "bigbird": BigBirdAttention(heads=H, block=3, random=1, seed=2),
    "bigbird without random blocks": BigBirdAttention(heads=H, block=3, random=0),
    "sparse strided, merged": SparseStridedAttention(5),
    "sparse strided, by head": SparseStridedAttention(5, heads=H),
    "sparse strided, first factor": SparseStridedAttention(5, factor=0),
    "sparse strided, second factor": SparseStridedAttention(5, factor=1),
    "sparse fixed, merged": SparseFixedAttention(5, 2),
    "sparse fixed, by head": SparseFixedAttention(5, 2, heads=H),
    "sparse fixed, second factor": SparseFixedAttention(5, 2, factor=1),
    "image 1d": Image1DAttention(4, 6),
    "image 2d": Image2DAttention(5, (2, 2), up=1, side=1),
    "rows": RowAttention(5),
    "columns": ColumnAttention(5),
    "streaming": StreamingAttention(4, 2),
    "with a soft cap and sinks": StridedAttention(5, softcap=2.0, sinks=H),
}


FORGETFUL = {
    "local",
    "dilated",
    "dilated by head",
    "longformer",
    "image 1d",
    "image 2d",
    "rows",
    "streaming",
    "sparse strided, first factor",
}


def qkv(length: int, heads: int = H, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(B, length, n, K, dtype=dtype, requires_grad=True) for n in (H, heads, heads)]


@pytest.mark.parametrize("name", EVERY)
def test_every_way_is_the_definition(name, kernel_path):
    """Whole grids and torn ones, shorter than a row, fewer key heads; a direction alone, and what goes to tiles."""
    attention = EVERY[name].double()
    for length, heads in ((0, H), (1, H), (4, H), (5, G), (20, H), (23, H), (23, G), (64, H)):
        q, k, v = qkv(length, heads)
        for pattern in (full, causal, lengths([length, length // 2])):
            fast, slow = attention(q, k, v, pattern), average(attention.weights(q, k, pattern), v)
            torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
            cotangent = torch.randn_like(fast)
            grads = [torch.autograd.grad(out, (q, k, v), cotangent) for out in (fast, slow)]
            torch.testing.assert_close(*grads, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", EVERY)
def test_is_softmax_under_its_pattern(name):
    """The pattern as booleans, written out, in the mechanism that takes any."""
    attention, plain, (q, k, v) = EVERY[name].double(), SoftmaxAttention(softcap=EVERY[name].softmax.softcap).double(), qkv(23)
    if attention.softmax.sink_H is not None:
        plain.sink_H = attention.softmax.sink_H
    mask = attention.own.mask(23, 23)
    assert 0 < mask.sum() < mask.numel()
    torch.testing.assert_close(attention(q, k, v), plain(q, k, v, keep(mask.expand(1, -1, 23, 23))))
    torch.testing.assert_close(attention(q, k, v, causal), plain(q, k, v, keep((mask & causal.mask(23, 23)).expand(1, -1, 23, 23))))


def rows(attention, size, pattern=causal, head=0):
    return attention._within(pattern, size).draw(size).split("\n\n")[head].split("\n")


def test_pictures_by_hand():
    assert rows(LocalAttention(1), 4) == ["■···", "■■··", "·■■·", "··■■"]
    assert rows(LocalAttention(1), 3, full) == ["■■·", "■■■", "·■■"]
    assert rows(StridedAttention(2), 5)[-1] == "■·■·■"
    assert rows(DilatedAttention(1, (1, 3)), 7)[-1] == "·····■■"
    assert rows(DilatedAttention(1, (1, 3)), 7, head=1)[-1] == "···■··■"
    assert rows(LongformerAttention(1, (2,)), 5, full) == ["■■■··", "■■■··", "■■■■■", "··■■■", "··■■■"]
    assert rows(LongformerAttention(1, (2,)), 5) == ["■····", "■■···", "■■■··", "··■■·", "··■■■"]
    assert rows(BigBirdAttention(heads=2, block=2, random=0), 9, full)[4] == "■■■■■■■■■"
    assert rows(BigBirdAttention(heads=2, block=2, random=0), 13, full)[6] == "■■··■■■■■■··■"
    # Child et al., figure 3: the row and the column; the block and the last of every block
    assert rows(SparseStridedAttention(3), 9)[-1] == "··■··■■■■"
    assert rows(SparseStridedAttention(3, factor=0), 9)[-1] == "·····■■■■"
    assert rows(SparseStridedAttention(3, factor=1), 9)[-1] == "··■··■··■"
    assert rows(SparseStridedAttention(3, heads=3), 9, head=1)[-1] == "·····■■■■"
    assert rows(SparseStridedAttention(3, heads=3), 9, head=2)[-1] == "··■··■··■"
    assert rows(SparseFixedAttention(3, 1), 9)[7] == "··■··■■■·"
    assert rows(SparseFixedAttention(4, 2, factor=1), 9)[-1] == "··■■··■■·"
    # Parmar et al., figure 1: own block and what is before it; on a grid of 4, blocks of 1 × 2
    assert rows(Image1DAttention(2, 3), 8)[4:6] == ["·■■■■···", "·■■■■■··"]
    assert rows(Image2DAttention(4, (1, 2), up=1, side=1), 8)[5] == "■■■·" + "■■··"
    assert rows(RowAttention(3), 7)[5:] == ["···■■■·", "······■"]
    assert rows(ColumnAttention(3), 7)[5:] == ["··■··■·", "■··■··■"]
    assert rows(StreamingAttention(1, 2), 6)[2:] == ["■■■···", "■■■■··", "■■·■■·", "■■··■■"]


def test_wide_windows_are_dense():
    q, k, v = qkv(23)
    dense = SoftmaxAttention()(q, k, v, causal)
    for wide in (
        LocalAttention(23),
        StridedAttention(1),
        DilatedAttention(23, 1),
        RowAttention(23),
        ColumnAttention(1),
        StreamingAttention(23),
    ):
        torch.testing.assert_close(wide(q, k, v, causal), dense)


@pytest.mark.parametrize("name", EVERY)
def test_the_future_has_no_influence(name):
    """Global queries too: under `causal` none of them sees ahead."""
    attention, (q, k, v) = EVERY[name].double(), [x.detach() for x in qkv(23)]
    before = attention(q, k, v, causal)
    for t in (0, 7, 21):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, t + 1 :] = 100 * torch.randn_like(x[:, t + 1 :])
        assert attention(*changed, causal)[:, : t + 1].equal(before[:, : t + 1])


@pytest.mark.parametrize("name", [name for name in EVERY if "bigbird" not in name])
@pytest.mark.parametrize("step", [1, 4])
def test_streams_with_what_it_can_still_see(name, step):
    """Steps equal one pass, and where the pattern never looks further back the cache does not grow."""
    attention, (q, k, v) = EVERY[name].double(), [x.detach() for x in qkv(90)]
    state, whole = attention.start(B), attention(q, k, v, causal)
    parts = [attention(*(x[:, t : t + step] for x in (q, k, v)), causal, state=state) for t in range(0, 90, step)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=1e-10)
    held = len(state.columns())
    if name in FORGETFUL:
        back, first = attention.own.reach()
        assert held <= first + 2 * back + step < 90
    else:
        assert held == 90


@pytest.mark.parametrize("name", ["local", "streaming", "image 2d", "strided", "dilated by head"])
def test_a_rolling_cache_is_captured_where_it_stands(name):
    """Keys that were kept stand elsewhere than at 0, 1, 2 …, for the mechanism's own pattern too."""
    attention, (q, k, v) = EVERY[name].double(), [x.detach() for x in qkv(70)]
    whole, state = attention.weights(q, k, causal), attention.start(B)
    for t in range(70):
        with capture(attention, dtype=torch.float64) as maps:
            attention(*(x[:, t : t + 1] for x in (q, k, v)), causal, state=state)
        held = list(maps.all[0].columns)
        assert maps.all[0].pattern == str(causal & attention.own)
        torch.testing.assert_close(maps.all[0].weights_BHLM[:, :, 0], whole[:, :, t, held])
        assert maps.all[0].weights_BHLM.sum() == pytest.approx(B * H)


@pytest.mark.parametrize(
    ("attention", "share"),
    [
        (LocalAttention(64), 0.10),
        (StridedAttention(64), 0.02),
        (DilatedAttention(16, 8), 0.05),
        (LongformerAttention(64, (0, 1)), 0.12),
        (BigBirdAttention(heads=1, block=64, random=3), 0.20),
        (SparseStridedAttention(64), 0.15),
        (SparseFixedAttention(64, 4), 0.15),
        (Image1DAttention(64, 128), 0.12),
        (RowAttention(64), 0.03),
        (ColumnAttention(64), 0.03),
        (StreamingAttention(64), 0.10),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, torch.nn.Module) else "",
)
def test_work_follows_the_pattern(attention, share, monkeypatch):
    """Pairs of query and key that kernels are asked to visit, of all there are; and no plan is made twice."""
    visited = []
    dense, sparse = tiled_softmax._dense, tiled_softmax.TiledSoftmax.apply

    def counted_dense(q, k, v, pattern, scale, bias):
        out = dense(q, k, v, pattern, scale, bias)
        visited.append(0 if out is None else q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1])
        return out

    def counted_sparse(work, q, *rest):
        visited.append(work.plan.live * q.shape[0] * q.shape[2] // (work.plan.pattern.heads * work.plan.pattern.batch))
        return sparse(work, q, *rest)

    monkeypatch.setattr(tiled_softmax, "_dense", counted_dense)
    monkeypatch.setattr(tiled_softmax.TiledSoftmax, "apply", counted_sparse)
    length = 4096
    q = torch.randn(1, length, 1, 8)
    for _ in range(2):
        visited.clear()
        made = plan._cached_plan.cache_info().misses
        attention(q, q, q)
        assert 0 < sum(visited) < share * length**2
    assert plan._cached_plan.cache_info().misses == made


def test_bigbird_draws_once_for_each_head_from_its_seed():
    one, again, other = (BigBirdAttention(heads=3, block=4, random=2, seed=seed).own.mask(96, 96)[0] for seed in (1, 1, 2))
    assert one.equal(again) and not one.equal(other) and not one[0].equal(one[1])
    fixed = BigBirdAttention(heads=3, block=4, random=0).own.mask(96, 96)[0, 0]
    more = (one & ~fixed)[:, ::4, ::4].sum(-1)  # blocks beside those all heads see
    assert more.max() == 2 and (more[:, 2:-2] > 0).float().mean() > 0.8


def test_what_does_not_fit_is_named():
    q, k, v = qkv(12)
    with pytest.raises(ShapeError, match="BigBirdAttention was made for 3 heads"):
        BigBirdAttention(heads=3, block=2)(q, k, v)
    with pytest.raises(ShapeError, match="DilatedAttention was made for 2 heads"):
        DilatedAttention(2, (1, 2))(q, k, v)
    with pytest.raises(BadConfig, match=r"LongformerAttention: at=\(0, -1\); .*counted from the start"):
        LongformerAttention(2, (0, -1))
    with pytest.raises(ShapeError, match="factor=1, heads=4"):
        SparseFixedAttention(5, 2, heads=4, factor=1)
    with pytest.raises(BadConfig, match="radius=-1"):
        LocalAttention(-1)
    with pytest.raises(StateNotSupported, match="BigBirdAttention"):
        BigBirdAttention(heads=H, block=2)(q, k, v, causal, state=LocalAttention(2).start(B))


def test_prints_its_pattern():
    assert str(LongformerAttention(8, (0, 3))) == "LongformerAttention(window(8) | tokens(0, 3))"
    assert str(LocalAttention(8, dropout=0.1)) == "LocalAttention(window(8), dropout=0.1)"


def test_big_bird_sees_all_of_short_sequences():
    attention = BigBirdAttention(heads=2, block=2, random=1, dense=12)
    assert attention.own.mask(12, 12).all() and attention.settings["dense"] == 12
    assert attention.own.mask(13, 13).equal(BigBirdAttention(heads=2, block=2, random=1).own.mask(13, 13))


@pytest.mark.parametrize("name", ["local", "longformer", "streaming", "bigbird"])
def test_windows_are_of_one_size_from_4096_tokens_on(name):
    """A radius that grew with the length would make the cost quadratic."""
    sized = {n: find_mechanism(name).sized(heads=2, head_dim=8, length=n).settings for n in (1024, 4096, 8192, 1_000_000)}
    assert sized[4096] == sized[8192] == sized[1_000_000] != sized[1024]


def test_rows_of_a_grid_are_taken_in_parts(monkeypatch):
    q, k, v = torch.randn(3, 2, 24, 3, 5, dtype=torch.float64).unbind()
    whole = RowAttention(4)(q, k, v, causal)
    monkeypatch.setattr(axial, "PAIRS", 100)  # two rows of 3 x 16 pairs at a time
    torch.testing.assert_close(RowAttention(4)(q, k, v, causal), whole)
