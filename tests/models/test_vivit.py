"""ViViT: four factorisations against joint attention under patterns and against ViT; tubelets against PyTorch's 3-D convolution."""

import pytest
import torch

from regard import capture, per_head, same_column, same_row
from regard.errors import BadConfig, NotSupported, PatternNotSupported, ShapeError, StateNotSupported
from regard.layers import MultiHead, PatchEmbedding
from regard.layers.space_time import SpaceTimeHeads
from regard.layers.tubelets import TubeletEmbedding, tubelets
from regard.models import ViViT, build, config_of

FACTORISATIONS = ("joint", "encoder", "self_attention", "dot_product")
SMALL = {"image_size": (6, 4), "patch_size": (3, 2), "channels": 2, "classes": 5, "width": 12, "heads": 4, "depth": 2, "hidden": 20}
CLIPS = {"frames": 6, "tubelet": 2, "temporal_depth": 1}


def randomize(model, std=0.3):
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model.double().eval()


def clip_model(factorisation="joint", **more):
    return randomize(build("vivit", {**SMALL, **CLIPS, "factorisation": factorisation, **more}))


def image_model(**more):
    return randomize(build("vit", {**SMALL, **more}))


def clip(batch=2):
    return torch.randn(batch, 6, 2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


every = pytest.mark.parametrize("factorisation", FACTORISATIONS)


# -- tubelets ------------------------------------------------------------------------------------------------------------


def test_tubelets_are_a_3d_convolution():
    embedding = TubeletEmbedding(2, (2, 3, 2), 12).double()
    weight_DCTPQ = embedding.project.weight.view(12, 2, 2, 3, 2)
    found = torch.nn.functional.conv3d(clip().transpose(1, 2), weight_DCTPQ, embedding.project.bias, stride=(2, 3, 2))
    torch.testing.assert_close(embedding(clip()), found.flatten(2).transpose(1, 2))


def test_tubelets_by_hand():
    x = torch.arange(2 * 1 * 2 * 2).view(1, 2, 1, 2, 2)
    assert tubelets(x, (2, 1, 1)).tolist() == [[[0, 4], [1, 5], [2, 6], [3, 7]]]
    assert tubelets(x, (1, 2, 2)).tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_inflated_filters_begin_as_those_of_images(frames):
    patch = PatchEmbedding(2, (3, 2), 12).double()
    x = torch.randn(2, frames, 2, 6, 4, dtype=torch.float64)
    for how, image in (("central", x[:, frames // 2]), ("average", x.mean(1))):
        embedding = TubeletEmbedding(2, (frames, 3, 2), 12).double()
        embedding.inflate(patch, how)
        torch.testing.assert_close(embedding(x), patch(image))


# -- factorisations ------------------------------------------------------------------------------------------------------


def test_factorised_dot_product_is_joint_attention_under_patterns():
    """Half of the heads within a frame, half within a place: the same as one MultiHead whose pattern says so, of the same parameters."""
    frames, places, width, heads = 3, 4, 12, 4
    joint = MultiHead(width, heads, within=per_head(*[same_row(places)] * 2, *[same_column(places)] * 2)).double()
    space, time = MultiHead(width, 2, head_dim=3).double(), MultiHead(width, 2, head_dim=3, bias=False, qkv_bias=True).double()
    from regard.models.vivit import _split_heads

    with torch.no_grad():
        _split_heads(joint, space, time)
    x = torch.randn(2, frames * places, width, dtype=torch.float64)
    torch.testing.assert_close(SpaceTimeHeads(space, time, frames)(x), joint(x))


def test_attention_in_space_then_in_time_is_attention_under_patterns():
    model = clip_model("self_attention", depth=1)
    x = model.embedding(clip())
    block, (n_t, n_s) = model.blocks[0], (3, 4)
    y = x + block.space.mixer(block.space.around_mixer.before(x), pattern=same_row(n_s))
    y = y + block.time.mixer(block.time.around_mixer.before(y), pattern=same_column(n_s))
    y = y + block.time.feedforward(block.time.around_feedforward.before(y))
    torch.testing.assert_close(block(x), y)
    assert x.shape[1] == n_t * n_s


def test_the_factorised_encoder_reads_frames_apart():
    """A change in one step changes the vector of that step only, before the temporal encoder."""
    model = clip_model("encoder")
    seen = []
    model.temporal.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    other = clip()
    other[:, 2:4] += 1
    model(clip()), model(other)
    changed = (seen[0] - seen[1]).abs().amax((0, 2)) > 1e-9
    assert changed.tolist() == [False, True, False]


@every
def test_the_order_of_frames_matters(factorisation):
    model = clip_model(factorisation)
    assert float((model(clip()) - model(clip().flip(1))).detach().abs().max()) > 1e-3


@every
def test_every_tubelet_matters(factorisation):
    x = clip(1).requires_grad_()
    clip_model(factorisation)(x)[0, 0].backward()
    assert bool((x.grad.abs().amax((0, 2)) > 0).all())


def test_without_positions_and_time_the_order_is_lost():
    """The ablation: the mean over frames of a model without positions cannot tell a clip from its reverse, if tubelets hold one frame."""
    model = clip_model("encoder", tubelet=1, positions=False)
    torch.testing.assert_close(model(clip()), model(clip().flip(1)))


@every
def test_mechanisms_drop_in_and_weights_are_captured(factorisation):
    model = clip_model(factorisation).with_attention("linear")
    assert model(clip()).shape == (2, 5) and {part.attention.facts.name for part in model.attentions().values()} == {"linear"}
    again = build(*config_of(model)).double().eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(clip()), model(clip()))
    model = clip_model(factorisation)
    with torch.no_grad(), capture(model) as maps:
        model(clip())
    assert len(maps.layers) == len(model.attentions())
    for m in maps.all:
        torch.testing.assert_close(m.weights_BHLM.sum(-1), torch.ones(m.weights_BHLM.shape[:3]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("factorisation", ["joint", "encoder"])
def test_what_is_pooled(factorisation, pool):
    model = clip_model(factorisation, pool=pool)
    x = model.features(clip())
    steps = 3 if factorisation == "encoder" else 12
    assert x.shape == (2, steps + (pool == "class"), 12)
    torch.testing.assert_close(model.pooled(x), x[:, 0] if pool == "class" else x.mean(1))


# -- from a model of images ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_factorised_encoder_begins_as_the_vit_of_each_frame(pool):
    vit = image_model(pool=pool)
    model = ViViT.from_vit(vit, frames=6, tubelet=2, factorisation="encoder", temporal_depth=1).double().eval()
    seen = []
    model.temporal.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.features(clip())
    for step, frame in enumerate((1, 3, 5)):
        torch.testing.assert_close(seen[0][:, step], vit.pooled(vit.features(clip()[:, frame])))


def test_factorised_self_attention_begins_as_the_vit_of_each_frame():
    vit = image_model(pool="mean")
    model = ViViT.from_vit(vit, frames=6, tubelet=3, factorisation="self_attention", inflation="average").double().eval()
    x = model.features(clip()).view(2, 2, 4, 12)
    for step, frames in enumerate((slice(0, 3), slice(3, 6))):
        torch.testing.assert_close(x[:, step], vit.features(clip()[:, frames].mean(1)))
    model.features(clip()).square().sum().backward()
    assert all(float(block.time.mixer.out.weight.grad.abs().max()) > 0 for block in model.blocks)  # and attention in time can be learned


def test_joint_attention_begins_as_the_vit_if_all_frames_are_alike():
    """With one step there is nothing else; the class token and its position are the ViT's."""
    vit = image_model()
    model = ViViT.from_vit(vit, frames=2, tubelet=2, factorisation="joint").double().eval()
    torch.testing.assert_close(model.features(clip()[:, :2]), vit.features(clip()[:, 1]))


def test_positions_are_repeated_in_time():
    vit = image_model()
    joint, dot = (ViViT.from_vit(vit, frames=6, tubelet=2, factorisation=f) for f in ("joint", "dot_product"))
    first, grid = vit.embedding.position.weight.detach().float().split([1, 4])
    torch.testing.assert_close(joint.embedding.position.weight.detach(), torch.cat([first, grid, grid, grid]))
    torch.testing.assert_close(dot.embedding.position.weight.detach(), torch.cat([grid, grid, grid]))
    assert joint.output is None and joint.with_classes(3).output.out_features == 3


def test_a_changed_vit_is_refused_where_layers_differ():
    vit = image_model().with_attention("linear")
    assert ViViT.from_vit(vit, frames=4, factorisation="joint").blocks[0].mixer.attention.facts.name == "linear"
    with pytest.raises(NotSupported, match="replace it afterwards"):
        ViViT.from_vit(vit, frames=4, factorisation="dot_product")


# -- sizes, and what is refused ------------------------------------------------------------------------------------------


def test_the_published_size():
    with torch.device("meta"):
        assert sum(p.numel() for p in build("vivit-base-16x2").parameters()) == 88_954_000


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"frames": 5}, "multiple of tubelet=2"),
        ({"pool": "class", "factorisation": "dot_product"}, "no class token"),
        ({"factorisation": "dot_product", "heads": 3}, "an even number"),
        ({"factorisation": "both"}, "factorisation"),
        ({"embedding_norm": True}, "no norm"),
    ],
)
def test_what_cannot_be_built(settings, says):
    with pytest.raises(BadConfig, match=says):
        build("vivit", {**SMALL, **CLIPS, **settings})


def test_what_is_refused():
    model = clip_model()
    with pytest.raises(ShapeError, match=r"\(…, 6, 2, 6, 4\), got \(2, 5, 2, 6, 4\)"):
        model(clip()[:, :5])
    with pytest.raises(ShapeError, match="multiples of"):
        model.embedding.tubelet(clip()[:, :5])
    heads = clip_model("dot_product").blocks[0].mixer
    with pytest.raises(PatternNotSupported, match="all of a frame"):
        heads(torch.zeros(1, 12, 12, dtype=torch.float64), pattern=same_row(4))
    with pytest.raises(StateNotSupported, match="whole clips"):
        heads(torch.zeros(1, 12, 12, dtype=torch.float64), state=heads.space.start(1))
