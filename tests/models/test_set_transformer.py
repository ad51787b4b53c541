"""The Set Transformer: torch_geometric's with the same parameters, sets without order, sets of one and of none, ablations."""

import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from regard import capture
from regard.errors import BadConfig, NotSupported, ShapeError
from regard.models import SetTransformer, build

B, L, D, H, C, N = 3, 7, 12, 3, 4, 2
INPUTS = 5
SIZES = torch.tensor([L, 1, 4])
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
KINDS = [
    {"head": head, "encoder": encoder, "pool": pool, "norm": norm}
    for head, encoder, pool, norm in (
        ("set", "sab", "attention", True),
        ("set", "isab", "attention", False),
        ("set", "rff", "mean", False),
        ("set", "sab", "max", True),
        ("seed", "isab", "attention", True),
        ("seed", "sab", "mean", False),
        ("item", "sab", "attention", True),
        ("item", "isab", "attention", False),
    )
]


def sets(seed: int = 0, width: int = INPUTS) -> Tensor:
    return torch.randn(B, L, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(**settings) -> SetTransformer:
    """A model whose parameters are large, so that nothing hides."""
    torch.manual_seed(0)
    model = build("set_transformer", {"inputs": INPUTS, "outputs": N, "width": D, "heads": H, "points": 3, "seeds": C, **settings})
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    return model.double().eval()


# -- torch_geometric's ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric", reason="the oracle of these tests; pip install torch_geometric")
        from torch_geometric.nn import aggr
    return aggr


def copy_mab(mab: nn.Module, block: nn.Module, mixer: str, across: str) -> None:
    """Copy the parameters of one of our blocks into their MultiheadAttentionBlock."""
    heads, around = getattr(block, mixer), getattr(block, across)
    found = {
        "attn.in_proj_weight": heads.qkv.weight,
        "attn.in_proj_bias": heads.qkv.bias,
        "attn.out_proj.weight": heads.out.weight,
        "attn.out_proj.bias": heads.out.bias,
        "lin.weight": block.feedforward[0].weight,
        "lin.bias": block.feedforward[0].bias,
    }
    for n, one in enumerate((around, block.around_feedforward), 1) if mab.layer_norm1 is not None else ():
        found |= {f"layer_norm{n}.weight": one.over.weight, f"layer_norm{n}.bias": one.over.bias}
    mab.load_state_dict(found)


@pytest.mark.parametrize("norm", [True, False])
def test_it_is_torch_geometrics(theirs, norm):
    """Encoder, pooling and decoder, on sets of different sizes; their interface takes all items of a batch in one tensor."""
    model = made(norm=norm, depth=2, decoder_depth=1)
    aggregation = theirs.SetTransformerAggregation(D, C, 2, 1, H, concat=True, layer_norm=norm).double().eval()
    for mine, other in zip((*model.encoder, *model.decoder), (*aggregation.encoders, *aggregation.decoders), strict=True):
        copy_mab(other.mab, mine, "mixer", "around_mixer")
    copy_mab(aggregation.pma.mab, model.pool.cross, "cross", "around_cross")
    aggregation.pma.lin.load_state_dict(model.pool.feedforward[0].state_dict())
    aggregation.pma.seed.data = model.pool.seeds_CD.data[None]
    x_BLI = sets()
    items_TD = model.input(torch.cat([x_LI[:n] for x_LI, n in zip(x_BLI, SIZES.tolist(), strict=True)]))
    expected_BX = aggregation(items_TD, torch.arange(B).repeat_interleave(SIZES))
    close(model(x_BLI, SIZES), model.output(expected_BX))


def test_inducing_points_are_torch_geometrics(theirs):
    from torch_geometric.nn.aggr.utils import InducedSetAttentionBlock

    model = made(encoder="isab", depth=1, head="item", norm=True)
    (block,) = model.encoder
    isab = InducedSetAttentionBlock(D, 3, H, layer_norm=True).double().eval()
    isab.ind.data = block.points_CD.data[None]
    copy_mab(isab.mab1, block.gather, "cross", "around_cross")
    copy_mab(isab.mab2, block.spread, "cross", "around_cross")
    mask_BL = torch.arange(L) < SIZES[:, None]
    close(model.features(x_BLI := sets(), SIZES)[mask_BL], isab(model.input(x_BLI), mask_BL)[mask_BL])


# -- sets ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_the_order_of_the_items_makes_no_difference(kind):
    model, x_BLI = made(**kind), sets()
    order = torch.randperm(L, generator=torch.Generator().manual_seed(1))
    every = torch.full((B,), L)
    one, other = model(x_BLI, every), model(x_BLI[:, order], every)
    close(other, one[:, order] if kind["head"] == "item" else one)
    assert one.shape == {"set": (B, N), "item": (B, L, N), "seed": (B, C, N)}[kind["head"]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_padding_has_no_influence_and_each_set_is_alone(kind):
    model, x_BLI = made(**kind), sets()
    for row, n in enumerate(SIZES.tolist()):
        x_BLI[row, n:] = 1e3
    found = model(x_BLI, SIZES)
    for row, n in enumerate(SIZES.tolist()):
        alone = model(x_BLI[row : row + 1, :n], SIZES[row : row + 1])
        close(found[row : row + 1, :n] if kind["head"] == "item" else found[row : row + 1], alone)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_an_empty_set_is_defined(kind):
    """What it gives does not depend on the other sets or on padding, and gradients are finite."""
    model, x_BLI = made(**kind), sets()
    some, none = torch.tensor([0, 3, 0]), torch.tensor([0])
    found = model(x_BLI, some)
    found[1:2, :3].sum().backward() if kind["head"] == "item" else found.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if kind["head"] != "item":
        assert found.isfinite().all()
        close(found[0], found[2])
        close(model(x_BLI[:1, :0], none)[0], found[0])


def test_attention_to_the_one_item_is_one():
    model = made(encoder="isab")
    with capture(model, dtype=torch.float64) as maps:
        model(sets(), SIZES)
    assert "pool.cross.cross.attention" in maps and "encoder.0.gather.cross.attention" in maps
    one = maps["pool.cross.cross.attention"][0].weights_BHLM[1]
    close(one[..., 0], torch.ones(H, C, dtype=torch.float64))
    assert not one[..., 1:].any()


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadConfig, match="width=10; expected a multiple of heads=4"):
        build("set_transformer", inputs=1, width=10, heads=4)
    with pytest.raises(ShapeError, match=r"sets \(batch, items, 5\)"):
        made()(sets(width=4), SIZES)
    assert not made(encoder="isab", head="item").attentions()
    with pytest.raises(NotSupported, match="no MultiHead"):
        made(encoder="isab", head="item").with_attention("linear")


def test_another_mechanism_between_items():
    model = made().with_attention("linear")
    assert [heads.attention.facts.name for heads in model.attentions().values()] == ["linear"] * 3  # two blocks and the decoder
    assert model.pool.cross.cross.attention.facts.name == "softmax"  # cross-attention stays
    assert build("set_transformer", inputs=2, attention=("softmax", "cosine")).attentions().keys() == {
        "encoder.0.mixer",
        "encoder.1.mixer",
        "decoder.0.mixer",
    }
