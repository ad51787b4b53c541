"""Memory tokens: put before, seen as they should be, taken off again."""

import pytest
import torch

from regard import causal, full, keep, lengths, window
from regard.errors import RegardError, ShapeError
from regard.layers import Block, FeedForward, MemoryTokens, MultiHead
from regard.patterns import behind, block, block_summary, parse, segments, stride

B, L, D, C = 2, 7, 12, 3


def test_put_and_take():
    memory, x = MemoryTokens(D, C), torch.randn(B, L, D)
    both = memory.put(x)
    assert both.shape == (B, C + L, D) and both[1, :C].equal(memory.rows_CD)
    again, rows = memory.take(both)
    assert again.equal(x) and rows.shape == (B, C, D)
    with pytest.raises(ShapeError, match="width 12"):
        memory.put(torch.randn(B, L, D + 1))
    with pytest.raises(ShapeError, match="-1"):
        MemoryTokens(D, -1)


def test_patterns_drawn():
    memory = MemoryTokens(D, 2)
    assert memory.both_ways(window(1)).draw(6) == "\n".join(["■■■■■■", "■■■■■■", "■■■■··", "■■■■■·", "■■·■■■", "■■··■■"])
    assert memory.read_only(causal).draw(6) == "\n".join(["■■····", "■■····", "■■■···", "■■■■··", "■■■■■·", "■■■■■■"])
    assert memory.both_ways() is full
    padded = memory.both_ways(window(1), torch.tensor([4, 2])).mask(6, 6)
    assert padded[0].all() == memory.both_ways(window(1)).mask(6, 6).all() and not padded[1, ..., 4:].any() and padded[1, 0, 0, :4].all()


@pytest.mark.parametrize(
    "rule",
    [causal, window(2), block(3), stride(2), lengths([6, 2]), keep(torch.rand(B, 1, L, L) < 0.5), segments(torch.arange(L) // 3)],
    ids=str,
)
def test_behind_is_the_rule_further_on(rule):
    shifted = behind(rule, C)
    mask = shifted.mask(C + L, C + L)
    assert mask[..., C:, C:].equal(rule.mask(L, L)) and not mask[..., :C, :].any() and not mask[..., :C].any()
    for size in (1, 2, 4):  # bounds err on the safe side only
        blocks = block_summary(shifted, C + L, C + L, size)
        for n in range(blocks.shape[-2]):
            for m in range(blocks.shape[-1]):
                part = mask[..., n * size : (n + 1) * size, m * size : (m + 1) * size].flatten(2)
                known = blocks[..., n, m].expand(part.shape[:2])
                assert (part.any(-1) <= (known > 0)).all() and ((known == 2) <= part.all(-1)).all()


def test_behind_is_typed_back():
    for pattern in (MemoryTokens(D, 2).read_only(causal & (window(3) | block(2))), behind(stride(2), 4)):
        assert parse(str(pattern)) == pattern
    for wrong in ("behind(3, 4)", "behind(causal)", "behind(4, causal)", "behind(causal, -1)"):
        with pytest.raises(RegardError):
            parse(wrong)


def test_behind_in_a_stream():
    assert behind(window(4), 3).reach() == (4, 3) and behind(causal, 3).reach() is None
    assert behind(causal, 3).mask(2, 9).equal(behind(causal, 3).mask(9, 9)[..., -2:, :])


def test_nothing_of_the_future_comes_back_through_a_read_only_memory():
    torch.manual_seed(0)
    memory, x = MemoryTokens(D, C).double(), torch.randn(B, L, D, dtype=torch.float64)
    blocks = [Block(D, MultiHead(D, 2), FeedForward(D, 16)).double() for _ in range(3)]

    def run(x, pattern):
        x = memory.put(x)
        for layer in blocks:
            x = layer(x, pattern)
        return memory.take(x)[0]

    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(run(x, memory.read_only(causal))[:, :4], run(changed, memory.read_only(causal))[:, :4])
    assert not torch.equal(run(x, memory.both_ways(causal))[:, :4], run(changed, memory.both_ways(causal))[:, :4])
    # far tokens meet by way of the memory: two layers suffice, one does not
    last = x.clone()
    last[:, -1] += 1
    star = memory.both_ways(window(0))
    assert not torch.equal(run(x, star)[:, 0], run(last, star)[:, 0])
    del blocks[1:]
    assert torch.equal(run(x, star)[:, 0], run(last, star)[:, 0])


def test_padding_is_not_read():
    memory, x = MemoryTokens(D, C).double(), torch.randn(B, L, D, dtype=torch.float64)
    layer = Block(D, MultiHead(D, 2), None).double()
    sizes = torch.tensor([L, 4])
    out = layer(memory.put(x), memory.both_ways(window(1), sizes))
    alone = layer(memory.put(x[1:, :4]), memory.both_ways(window(1)))
    torch.testing.assert_close(out[1, : C + 4], alone[0])
