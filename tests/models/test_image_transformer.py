"""The Image Transformer: densities that sum to one, causality, neighbourhoods, sampling step by step."""

import itertools
import math

import pytest
import torch
from torch.distributions import AffineTransform, SigmoidTransform, TransformedDistribution, Uniform

from regard import capture
from regard.errors import BadConfig, DtypeError, NotSupported, ShapeError, UnknownName
from regard.models import build, config_of
from regard.models.pixels import CategoricalOutput, LogisticOutput, Ordinals, log_discretised, to_unit

SMALL = {"width": 16, "heads": 2, "depth": 2, "hidden": 24, "encoder_depth": 1, "mixtures": 3}
ATTENTIONS = ("image_1d(block=4, memory=5)", "image_2d", ("image_1d", "image_2d"), "softmax", "linear", "local")
OUTPUTS = ("categorical", "logistics")


def small(output="categorical", channels=1, attention="image_1d", size=(4, 6), levels=7, source=False, **more):
    torch.manual_seed(3)
    settings = {**SMALL, "image_size": size, "channels": channels, "levels": levels, "output": output, "attention": attention, **more}
    if source:
        settings["source_size"] = (size[0] // 2, size[1] // 2)
    return build("image_transformer", settings).double().eval()


def images(model, batch=2):
    c = model.config
    source = None if c.source_size is None else torch.randint(c.levels, (batch, *c.source_size, c.channels))
    return torch.randint(c.levels, (batch, *c.image_size, c.channels)), source


# -- densities ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_scale", [-7.0, -3.0, 0.0, 2.0])
@pytest.mark.parametrize("mean", [-3.0, -1.0, 0.123, 1.0, 40.0])
def test_discretised_logistics_sum_to_one_over_256_values(mean, log_scale):
    v = to_unit(torch.arange(256), 256, torch.float64)
    p = log_discretised(v, torch.tensor(mean, dtype=torch.float64), torch.tensor(log_scale, dtype=torch.float64), 256).exp()
    assert p.sum() == pytest.approx(1, abs=1e-12) and bool((p >= 0).all())


def test_discretised_logistics_are_differences_of_the_logistic_distribution():
    """PyTorch's own logistic distribution as oracle; the open ends take what is outside."""
    mean, scale = 0.3, 0.05
    one, zero = (torch.tensor(x, dtype=torch.float64) for x in (1.0, 0.0))
    logistic = TransformedDistribution(Uniform(zero, one), [SigmoidTransform().inv, AffineTransform(mean, scale)])
    v, half = to_unit(torch.arange(256), 256, torch.float64), 1 / 255
    expected = logistic.cdf(v + half) - logistic.cdf(v - half)
    expected[0], expected[-1] = logistic.cdf(v[0] + half), 1 - logistic.cdf(v[-1] - half)
    found = log_discretised(v, one * mean, (one * scale).log(), 256).exp()
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-6)


def test_tiny_probabilities_have_finite_logarithms_and_gradients():
    mean = torch.tensor(-1.0, requires_grad=True)
    log_p = log_discretised(torch.tensor(1.0), mean, torch.tensor(-7.0), 256)
    log_p.backward()
    assert -3000 < float(log_p.detach()) < -1000 and bool(torch.isfinite(mean.grad))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", [CategoricalOutput, LogisticOutput])
def test_an_output_sums_to_one_over_all_values(kind, channels):
    output = kind(5, channels, 4, 3).double()
    torch.nn.init.normal_(output.linear.weight)
    per_position = 1 if kind is CategoricalOutput else channels
    every = torch.tensor(list(itertools.product(range(4), repeat=per_position)))
    x = torch.randn(2, 1, 5, dtype=torch.float64).expand(2, len(every), 5)
    torch.testing.assert_close(output.log_probs(x, every.expand(2, *every.shape)).exp().sum(-1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(("kind", "channels"), [(CategoricalOutput, 1), (LogisticOutput, 1), (LogisticOutput, 3)])
def test_samples_follow_the_density(kind, channels):
    torch.manual_seed(0)
    output = kind(5, channels, 3, 2)
    torch.nn.init.normal_(output.linear.weight)
    every = torch.tensor(list(itertools.product(range(3), repeat=channels)))
    x = torch.randn(5)
    p = output.log_probs(x.expand(1, len(every), 5), every[None])[0].exp()
    drawn = output.sample(x.expand(20_000, 5), generator=torch.Generator().manual_seed(1))
    found = torch.stack([(drawn == one).all(-1).float().mean() for one in every])
    assert float((found - p).detach().abs().max()) < 4 * 0.5 / math.sqrt(20_000)  # four standard deviations of a share of one half
    assert len(output.sample(x.expand(50, 5), temperature=0).unique(dim=0)) == 1 or kind is LogisticOutput


def test_components_do_not_begin_alike():
    model = small("logistics")
    _, mean, *_ = model.output.components(torch.zeros(1, 16, dtype=torch.float64))
    assert len(mean.unique()) == 3


def test_bits_of_a_known_distribution():
    """An output that ignores its input: p = (1/2, 1/4, 1/8, 1/8), so an image of 0 1 2 3 … takes 1 + 2 + 3 + 3 bits per four pixels."""
    model = small(size=(2, 4), levels=4)
    with torch.no_grad():
        model.output.linear.weight.zero_()
        model.output.linear.bias.copy_(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())
    pixels = torch.arange(4).repeat(2).view(1, 2, 4, 1)
    assert float(model(pixels).sum().detach()) / math.log(2) == pytest.approx(18) and float(model(pixels).mean().detach()) / math.log(
        2
    ) == pytest.approx(2.25)


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "source"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_later_pixels_change_nothing(attention, output, channels, source):
    model = small(output, channels, attention, size=(4, 4) if source else (3, 4), source=source)
    pixels, low = images(model, 1)
    values = model.values.split(pixels)
    before = model(pixels, low).detach()
    for at in range(values.shape[1]):
        other = values.clone()
        other[:, at:] = (other[:, at:] + 1 + torch.randint(model.config.levels - 1, other[:, at:].shape)) % model.config.levels
        after = model(model.values.join(other), low).detach()
        assert torch.equal(after[:, :at], before[:, :at]) or torch.allclose(after[:, :at], before[:, :at], atol=1e-12)
        assert not torch.allclose(after[:, at:], before[:, at:])


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_step_by_step_equals_one_pass(attention, output, source):
    model = small(output, 3, attention, size=(4, 4), source=source)
    pixels, low = images(model)
    values = model.values.split(pixels)
    with torch.no_grad():
        whole = model.features(values[:, :-1], model.encode(low))
        state = model.start(2, low)
        parts = [model.features(values[:, :5], state=state)]
        parts += [model.features(values[:, at : at + 1], state=state) for at in range(5, values.shape[1] - 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=1e-10)


def test_the_source_changes_everything():
    model = small(source=True)
    pixels, low = images(model, 1)
    assert float((model(pixels, low) - model(pixels, (low + 1) % 7)).detach().abs().min()) > 0


def test_pixels_of_low_resolution_stand_in_the_middle_of_their_block():
    low = Ordinals(8, 3, 7, columns=2, step=4)
    assert low.place(torch.arange(4)).tolist() == [2 * 8 + 2, 2 * 8 + 6, 6 * 8 + 2, 6 * 8 + 6]
    model = small("categorical", 3, size=(4, 4), source=True)
    assert model.source.place(torch.arange(6)).tolist() == [12 + 3, 12 + 4, 12 + 5, 12 + 9, 12 + 10, 12 + 11]


# -- neighbourhoods ------------------------------------------------------------------------------------------------------


def neighbours_1d(i, block, memory):
    first = i // block * block
    return {j for j in range(first - memory, i + 1) if j >= 0}


def neighbours_2d(i, columns, block, up, side):
    row, column = divmod(i, columns)
    top, left = row // block[0] * block[0], column // block[1] * block[1]
    rectangle = [(r, c) for r in range(top - up, top + block[0]) for c in range(left - side, left + block[1] + side)]
    return {r * columns + c for r, c in rectangle if r >= 0 and 0 <= c < columns and r * columns + c <= i}


@pytest.mark.parametrize(
    ("attention", "neighbours"),
    [
        ("image_1d(block=4, memory=5)", lambda i: neighbours_1d(i, 4, 5)),
        ("image_2d(columns=6, block=(2, 3), up=1, side=1)", lambda i: neighbours_2d(i, 6, (2, 3), 1, 1)),
        ("image_2d(columns=6, block=(1, 2), up=2, side=0)", lambda i: neighbours_2d(i, 6, (1, 2), 2, 0)),
    ],
)
def test_a_pixel_attends_to_its_neighbourhood(attention, neighbours):
    model = small(attention=attention, size=(5, 6))
    with torch.no_grad(), capture(model, "decoder.0") as maps:
        model(images(model, 1)[0])
    for i, row in enumerate(maps.view().weights_BHLM[0, 0]):
        assert {j for j, weight in enumerate(row.tolist()) if weight > 0} == neighbours(i)


def test_mechanisms_by_name_know_the_columns_of_the_image():
    for output, columns in (("categorical", 18), ("logistics", 6)):
        model = small(output, 3, "image_2d")
        assert model.grid_columns == columns == model.decoder[0].mixer.attention.columns
        assert model.with_attention("axial_row", layers=[0]).decoder[0].mixer.attention.columns == columns
    with pytest.raises(NotSupported, match=r"mechanisms that fit: .*image_1d"):
        small().with_attention("linformer")


# -- sampling, and what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_completion_keeps_what_is_given(output):
    model = small(output, 3, source=True)
    pixels, low = images(model, 3)
    done = []
    found, again = (
        model.complete(pixels, 2, low, generator=torch.Generator().manual_seed(5), progress=lambda *step: done.append(step))
        for _ in range(2)
    )
    assert torch.equal(found[:, :2], pixels[:, :2]) and torch.equal(found, again) and found.shape == pixels.shape
    assert int(found.min()) >= 0 and int(found.max()) < 7 and done[-1][0] == done[-1][1] == model.max_length // 2
    assert not torch.equal(model.complete(pixels, 0, low), pixels) and torch.equal(model.complete(pixels, 4, low), pixels)


def test_the_most_likely_pixels():
    """At temperature 0 each value is the argmax of what one pass predicts."""
    model = small()
    pixels, _ = images(model)
    found = model.complete(pixels, 1, temperature=0)
    logits = model.output.linear(model.features(model.values.split(found)[:, :-1]))
    assert torch.equal(logits.argmax(-1)[:, 6:], found.flatten(1)[:, 6:])


def test_a_config_comes_back():
    model = small("logistics", 3, source=True)
    again = build(*config_of(model))
    assert again.config == model.config and again.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"output": "normal"}, "output"),
        ({"channels": 2}, "1 or 3 channels"),
        ({"width": 18, "heads": 2}, "of 4 for positions"),
        ({"source_size": (2, 2)}, "divided by one whole number"),
        ({"source_size": (3, 3), "image_size": (8, 8)}, "divided by one whole number"),
    ],
)
def test_what_cannot_be_built(settings, says):
    with pytest.raises((BadConfig, UnknownName), match=says):
        build("image_transformer", {**SMALL, "image_size": (4, 6), **settings})


def test_what_is_refused():
    model = small()
    with pytest.raises(ShapeError, match=r"\(batch, 4, 6, 1\), got \(2, 6, 4, 1\)"):
        model(torch.zeros(2, 6, 4, 1, dtype=torch.long))
    with pytest.raises(DtypeError, match="integers"):
        model(torch.zeros(2, 4, 6, 1))
    with pytest.raises(ShapeError, match="without an encoder"):
        model(*images(small(source=True)))
    with pytest.raises(ShapeError, match="needs a source"):
        small(source=True)(images(model)[0])
