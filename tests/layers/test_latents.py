"""Inducing points, pooling and latents: the papers' formulas by PyTorch's own modules, sets as sets, and what capture sees."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from regard import capture
from regard.attention import CosineAttention
from regard.errors import ShapeError
from regard.layers import Block, CrossBlock, FeedForward, InducedBlock, Latents, MultiHead, Pooling
from regard.patterns import lengths

B, L, C, H, D = 2, 7, 4, 3, 12
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rff() -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), nn.ReLU())


def mab(attention=None) -> CrossBlock:
    return CrossBlock(D, MultiHead(D, H, attention), rff())


def shaken(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)
    return module.double()


def theirs_mab(block: CrossBlock, x: Tensor, y: Tensor, sizes: Tensor | None = None) -> Tensor:
    """MAB as the Set Transformer's paper has it, by PyTorch's attention and norms."""
    look = nn.MultiheadAttention(D, H, batch_first=True).double()
    look.load_state_dict(
        {
            "in_proj_weight": block.cross.qkv.weight,
            "in_proj_bias": block.cross.qkv.bias,
            "out_proj.weight": block.cross.out.weight,
            "out_proj.bias": block.cross.out.bias,
        }
    )
    padding = None if sizes is None else torch.arange(y.shape[1]) >= sizes[:, None]
    h = block.around_cross.over(x + look(x, y, y, key_padding_mask=padding, need_weights=False)[0])
    return block.around_feedforward.over(h + block.feedforward(h))


@pytest.mark.parametrize("sizes", [None, [L, 3]])
def test_set_transformer_is_the_papers(sizes):
    x = randn(B, L, D)
    sizes = None if sizes is None else torch.tensor(sizes)
    pattern = () if sizes is None else (lengths(sizes),)
    one = shaken(mab())
    close(one(x, x, *pattern), theirs_mab(one, x, x, sizes))
    two = shaken(InducedBlock(D, C, mab(), mab()))
    gathered = theirs_mab(two.gather, two.points_CD.expand(B, -1, -1), x, sizes)
    close(two(x, *pattern), theirs_mab(two.spread, x, gathered))
    three = shaken(Pooling(D, C, mab(), rff()))
    close(three(x, *pattern), theirs_mab(three.cross, three.seeds_CD.expand(B, -1, -1), three.feedforward(x), sizes))


def test_a_set_that_looks_at_itself_is_a_block():
    """SAB: `CrossBlock(x, x)` and a post-norm `Block` with the same parameters are the same."""
    sab, block = shaken(mab()), Block(D, MultiHead(D, H), rff(), placement="post").double()
    block.load_state_dict({name.replace("cross", "mixer"): value for name, value in sab.state_dict().items()})
    close(block(x := randn(B, L, D), lengths([L, 2])), sab(x, x, lengths([L, 2])))


def test_sets_have_no_order():
    x, order = randn(B, L, D), torch.randperm(L, generator=torch.Generator().manual_seed(1))
    induced, pooling = shaken(InducedBlock(D, C, mab(), mab())), shaken(Pooling(D, C, mab(), rff()))
    latents = shaken(Latents(D, C, mab(), [Block(D, MultiHead(D, H), FeedForward(D, D))], rounds=2, again=mab()))
    close(induced(x[:, order]), induced(x)[:, order])
    close(pooling(x[:, order]), pooling(x))
    close(latents(x[:, order]), latents(x))


def test_padding_has_no_influence():
    x, sizes = randn(B, L, D), [L, 3]
    changed = x.clone()
    changed[1, 3:] = 100.0
    for part in (InducedBlock(D, C, mab(), mab()), Pooling(D, C, mab()), Latents(D, C, mab(), rounds=2, again=mab())):
        shaken(part)
        padded, alone = part(changed, lengths(sizes)), part(x[1:, :3])
        close(padded[1:, : alone.shape[1]], alone)


def test_latents_are_read_thought_about_and_asked():
    x, queries = randn(B, L, 5), randn(B, 2, 8, seed=1)
    read, again = (CrossBlock(D, MultiHead(D, H, memory_width=5), FeedForward(D, D), placement="pre") for _ in range(2))
    write = CrossBlock(8, MultiHead(8, 2, memory_width=D), FeedForward(8, 8), placement="pre")
    block = Block(D, MultiHead(D, H), FeedForward(D, D))
    part = shaken(Latents(D, C, read, [block], rounds=3, again=again, write=write))
    z = part.latents_CD.expand(B, -1, -1)
    z = block(again(block(again(block(read(z, x)), x)), x))
    close(part(x, queries_BLD=queries), write(queries, z))
    assert part(x, queries_BLD=queries).shape == (B, 2, 8)
    with pytest.raises(ShapeError, match="was given no queries"):
        part(x)
    with pytest.raises(ShapeError, match="has no `write`"):
        Latents(D, C, mab()).double()(randn(B, L, D), queries_BLD=queries)
    with pytest.raises(ShapeError, match="rounds=1"):
        Latents(D, C, mab(), again=mab())


def test_any_mechanism_and_every_look_is_seen():
    induced = shaken(InducedBlock(D, C, mab(CosineAttention(heads=H)), mab()))
    x = randn(B, L, D)
    with capture(induced, dtype=torch.float64) as maps:
        induced(x, lengths([L, 3]))
    first, second = maps["gather.cross.attention"][0], maps["spread.cross.attention"][0]
    assert first.mechanism == "cosine" and first.weights_BHLM.shape == (B, H, C, L) and second.weights_BHLM.shape == (B, H, L, C)
    whole_BHLL = second.weights_BHLM @ first.weights_BHLM  # tokens over tokens
    close(whole_BHLL.sum(-1), torch.ones(B, H, L, dtype=torch.float64))
    assert (whole_BHLL[1, :, :, 3:] == 0).all()


def test_a_part_called_in_several_rounds_has_several_maps():
    latents = shaken(Latents(D, C, mab(), [Block(D, MultiHead(D, H), None)], rounds=3, again=mab()))
    with capture(latents) as maps:
        latents(randn(B, L, D))
    assert {name: len(maps[name]) for name in maps} == {
        "read.cross.attention": 1,
        "blocks.0.mixer.attention": 3,
        "again.cross.attention": 2,
    }
