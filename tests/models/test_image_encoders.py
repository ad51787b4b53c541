"""ViT and MLP-Mixer: against transformers, by hand, and what they promise about sizes, classes and mechanisms."""

import pytest
import torch
import torch.nn.functional as F

from regard import capture
from regard.errors import BadConfig, NotSupported, ShapeError
from regard.layers import PatchEmbedding, Residual, patches
from regard.models import MODELS, SIZES, ImageEncoder, MLPMixer, ViT, build, config_of, of_size

VIT = {"image_size": (12, 20), "patch_size": (4, 5), "channels": 3, "classes": 7, "width": 24, "heads": 3, "depth": 2, "hidden": 29}
SMALL = {"vit": VIT, "mlp_mixer": {key: value for key, value in VIT.items() if key != "heads"} | {"token_hidden": 11}}


@pytest.fixture(params=SMALL)
def model(request):
    torch.manual_seed(0)
    return build(request.param, SMALL[request.param]).eval()


def images(size=(12, 20), channels=3, seed=0):
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(seed))


def test_every_image_encoder_is_tested_here():
    assert {model.facts.name for model in MODELS if issubclass(model, ImageEncoder)} <= SMALL.keys()


def test_shapes_and_a_config_that_comes_back(model):
    x = images()
    assert model(x).shape == (2, 7) and model.features(x).shape == (2, model.max_length, 24)
    assert model.max_length == 12 + model.class_tokens and model.config.grid == (3, 4)
    again = build(*config_of(model)).eval()
    again.load_state_dict(model.state_dict())
    assert again(x).equal(model(x))


def test_patches_are_a_convolution():
    torch.manual_seed(0)
    embed, x = PatchEmbedding(3, (4, 5), 7).double(), images().double()
    kernel = embed.project.weight.view(7, 3, 4, 5)
    by_hand = F.conv2d(x, kernel, embed.project.bias, stride=(4, 5)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embed(x), by_hand)
    assert patches(x, (4, 5))[1, 5].equal(x[1, :, 4:8, 5:10].flatten())  # the second row of patches, the second column
    with pytest.raises(ShapeError, match="multiples of 4 and 5"):
        embed(images((13, 20)).double())


def test_an_image_of_another_size_is_refused(model):
    with pytest.raises(ShapeError, match=r"with_image_size"):
        model(images((12, 25)))
    with pytest.raises(BadConfig, match="expected multiples of patch_size"):
        build("vit", VIT | {"image_size": (13, 20)})


def test_patches_of_a_mean_pooled_vit_without_positions_are_a_bag():
    torch.manual_seed(0)
    model = build("vit", VIT | {"pool": "mean", "positions": False}).double().eval()
    x = images().double()
    turned = x.roll(10, dims=3)  # two whole patches
    torch.testing.assert_close(model(turned), model(x))
    ordered = build("vit", VIT | {"pool": "mean"}).double().eval()
    assert (ordered(turned) - ordered(x)).abs().max() > 1e-6


def test_positions_are_interpolated_as_in_transformers():
    transformers = pytest.importorskip("transformers", reason="the oracle; pip install 'regard[interop]'")
    torch.manual_seed(0)
    theirs = transformers.ViTModel(
        transformers.ViTConfig(image_size=16, patch_size=4, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8)
    ).eval()
    with torch.no_grad():
        theirs.embeddings.position_embeddings.normal_()
    mine = build("vit", image_size=16, patch_size=4, width=24, heads=3, depth=1, hidden=8)
    table = theirs.embeddings.position_embeddings.detach()[0]
    with torch.no_grad():
        mine.embedding.position.weight.copy_(table)
    for size in ((16, 16), (24, 12), (8, 40)):
        larger = mine.with_image_size(size)
        expected = theirs.embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + size[0] // 4 * (size[1] // 4), 24), *size)[0]
        torch.testing.assert_close(larger.embedding.position.weight, expected, rtol=1e-5, atol=1e-5)
        assert larger.config.image_size == size and larger.features(images(size)).shape[1] == len(expected)
        assert larger.embedding.position.weight.requires_grad
    assert mine.config.image_size == (16, 16)
    with pytest.raises(NotSupported, match="images of"):
        build("mlp_mixer", SMALL["mlp_mixer"]).with_image_size((24, 20))


def test_a_head_for_other_classes_leaves_the_rest(model):
    other = model.with_classes(3)
    x = images()
    assert other(x).shape == (2, 3) and other.config.classes == 3 and other.features(x).equal(model.features(x))
    headless = model.with_classes(0)
    with pytest.raises(NotSupported, match="no classification head"):
        headless(x)
    pretrained = build("vit", VIT | {"pooler": True})
    assert pretrained.with_classes(3).pooler is None  # fine-tuning reads the features themselves


def test_mechanisms_by_name_and_capture():
    model = build("vit", VIT).eval()
    with capture(model) as maps:
        model(images())
    assert maps.layers == ["blocks.0.mixer.attention", "blocks.1.mixer.attention"] and maps.all[0].weights_BHLM.shape[1:] == (3, 13, 13)
    assert model.with_attention(("linear", "softmax"))(images()).shape == (2, 7)
    assert build("vit", VIT | {"attention": ("local(radius=2)",)})(images()).shape == (2, 7)


def test_forward_is_the_head_over_all_features():
    """The last layer computes the class token alone, where its mechanism allows it: outputs and gradients are the same."""
    torch.manual_seed(0)
    for attention in ("softmax", "cosine", "linear", "local(radius=3)"):
        model = build("vit", VIT | {"attention": (attention,)}).double().train()
        x = images().double()
        whole = model.output(model.pooled(model.features(x)))
        torch.testing.assert_close(model(x), whole)
        names, parameters = zip(*model.named_parameters(), strict=True)
        pairs = zip(*(torch.autograd.grad(y.square().sum(), parameters, allow_unused=True) for y in (model(x), whole)), strict=True)
        for name, (a, b) in zip(names, pairs, strict=True):
            torch.testing.assert_close(a, b, msg=name)


def test_stochastic_depth():
    torch.manual_seed(0)
    around, x = Residual(5, drop_path=0.25).train(), torch.randn(4000, 2, 5)
    change = around(x, torch.ones_like) - x
    kept = change[:, 0, 0] > 0
    assert (
        torch.allclose(change[kept], torch.tensor(4 / 3)) and (change[~kept] == 0).all() and abs(float(kept.float().mean()) - 0.75) < 0.03
    )
    assert around.eval()(x, torch.ones_like).equal(x + 1)
    rates = [block.around_mixer.drop_path for block in build("vit", VIT | {"depth": 3, "drop_path": 0.4}).blocks]
    assert rates == [0, 0.2, 0.4]


@pytest.mark.parametrize("name", SMALL)
def test_the_hybrid_cuts_patches_of_a_feature_map(name):
    model = build(name, SMALL[name] | {"patch_size": (4, 4), "stem": (5, 6)})
    (patch,) = (part for part in model.modules() if isinstance(part, PatchEmbedding))
    assert model(images()).shape == (2, 7) and patch.project.weight.shape == (24, 6) and model.max_length == 15 + model.class_tokens
    with pytest.raises(BadConfig, match="multiples of 4"):
        build(name, SMALL[name] | {"patch_size": (2, 2), "stem": (5, 6)})


def test_a_stem_sees_what_is_near():
    patch = PatchEmbedding(1, (4, 4), 8, stem=(5, 6)).eval()
    x = torch.randn(1, 1, 40, 40)
    other = x.clone()
    other[..., 20, 20] += 1
    changed = (patch(x) != patch(other)).any(-1).view(10, 10)
    rows, columns = changed.nonzero(as_tuple=True)
    reach = 1 + 2 + 2 + 4  # pixels to each side of where a patch begins: of each convolution one cell, times the strides before it
    near = [n for n in range(10) if abs(4 * n - 20) <= reach]
    assert set(rows.tolist()) == set(columns.tolist()) == set(near)


PUBLISHED = {  # million parameters, as published: arXiv:2010.11929 and arXiv:2012.12877; arXiv:2105.01601, table 1
    "vit-tiny-16": 5.7, "vit-small-16": 22, "vit-base-16": 86, "vit-base-32": 88, "vit-large-16": 304, "vit-huge-14": 632,
    "mixer-small-32": 19, "mixer-small-16": 18, "mixer-base-32": 60, "mixer-base-16": 59, "mixer-large-32": 206, "mixer-large-16": 207,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in of_size(name).parameters())
    assert abs(count / 1e6 - PUBLISHED[name]) <= max(1.3, 0.01 * PUBLISHED[name])


def test_sizes_build_and_overfit(model):
    assert all(isinstance(SIZES[name], ViT.Config | MLPMixer.Config) for name in SIZES if name.startswith(("vit-", "mixer-")))
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 12, 20), torch.arange(8) % 7
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05
