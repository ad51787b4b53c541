"""Images pixel by pixel: levels, low resolution, completion and super-resolution as PNG, and what a pixel attends to."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli import main
from regard.data.labelled_images import read_digits
from regard.errors import BadConfig, BadFile, NotSupported
from regard.tasks import CompletionOptions, PixelsOptions, PixelsTask, attention_maps, evaluate, load_run, predict, train
from regard.tasks.pixel_processor import PixelProcessor, count_levels
from regard.tasks.pixels import PixelLookOptions, bits_per_dim
from regard.train import TrainOptions

SMALL = {"width": 16, "heads": 2, "depth": 1, "hidden": 16, "encoder_depth": 1}
STEPS = TrainOptions(steps=2, schedule="constant", warmup_steps=0, average=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "plain"
    train(PixelsTask, PixelsOptions(), STEPS, out, settings=SMALL, progress=False)
    return load_run(out)


@pytest.fixture(scope="module")
def sharper(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "sharper"
    train(PixelsTask, PixelsOptions(super_resolution=4), STEPS, out, settings={**SMALL, "output": "logistics"}, progress=False)
    return load_run(out)


@pytest.fixture(scope="module")
def digit(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "five.png"
    Image.fromarray(read_digits()[0][5]).save(path)
    return str(path)


def picture(answer):
    return np.asarray(Image.open(io.BytesIO(answer.files[".png"])))


def test_levels_are_counted():
    assert count_levels(read_digits()[0]) == 17
    assert count_levels(np.array([0, 255], dtype=np.uint8)) == 2
    for other in ([0, 1, 255], [3, 255], [7]):
        assert count_levels(np.array(other, dtype=np.uint8)) == 256


@pytest.mark.parametrize(("levels", "channels"), [(17, 1), (256, 3), (2, 1)])
def test_pixels_come_back(levels, channels):
    processor = PixelProcessor(size=(4, 6), channels=channels, levels=levels)
    values = torch.randint(levels, (3, 4, 6, channels))
    assert torch.equal(processor.encode(processor.decode(values)), values)


def test_low_resolution_is_the_mean_of_blocks():
    processor = PixelProcessor(size=(4, 4), channels=1, levels=256, factor=2)
    image = torch.tensor([[0, 2, 10, 10], [4, 6, 10, 10], [1, 1, 0, 0], [1, 1, 0, 9]]).view(1, 4, 4, 1)
    assert processor.source(image).view(2, 2).tolist() == [[3, 10], [1, 2]] and processor.source_size == (2, 2)


def test_bits_per_dimension_by_hand():
    pixels = torch.zeros(2, 2, 2, 3, dtype=torch.long)
    assert bits_per_dim(torch.full((2, 4), math.log(8)), pixels) == pytest.approx(1)  # 8 pixels of 3 bits, over 24 dimensions


def test_a_completion_is_a_picture(run, digit):
    (answer,) = predict(run, [digit], CompletionOptions(samples=3))
    assert picture(answer).shape == (128 + 12, 5 * (128 + 6) + 6)
    assert answer.values["rows_given"] == 4 and answer.values["samples"] == 3 and answer.text.endswith("3 samples, 4 of 8 rows given")
    shown = [picture(answer)[6 : 6 + 128, at : at + 128] for at in range(6, 5 * 134, 134)]
    assert np.array_equal(shown[0][::16, ::16], read_digits()[0][5]) and (shown[1][64:] == 128).all()
    assert all(np.array_equal(one[:64], shown[0][:64]) for one in shown)
    assert not np.array_equal(shown[2], shown[3])
    (cold, again) = predict(run, [digit] * 2, CompletionOptions(samples=2, temperature=0))
    assert np.array_equal(picture(cold)[:, 274:402], picture(cold)[:, 408:536]) and cold == again
    for keep, rows in ((0, 0), (1, 8), (0.3, 2)):
        assert predict(run, [digit], CompletionOptions(keep=keep, samples=1))[0].values["rows_given"] == rows


def test_super_resolution(sharper, digit, tmp_path):
    assert sharper.model.config.source_size == (2, 2) and sharper.processor.levels == 17
    (answer,) = predict(sharper, [digit], CompletionOptions(samples=2))
    assert answer.values["rows_given"] == 0 and picture(answer).shape[1] == 4 * 134 + 6
    given = picture(answer)[6:134, 140:268]
    assert len(np.unique(given[:64, :64])) == 1 and len(np.unique(given)) <= 4
    Image.fromarray(np.array([[0, 255], [128, 64]], dtype=np.uint8)).save(tmp_path / "low.png")
    (low,) = predict(sharper, [str(tmp_path / "low.png")], CompletionOptions(samples=2))
    assert "bits_per_dim" not in low.values and picture(low).shape[1] == 3 * 134 + 6  # there is no original
    assert evaluate(sharper).metrics["bits_per_dim"] > 0
    _, maps = attention_maps(sharper, digit, "*")
    assert all(m.layer.startswith("decoder.") and "cross" not in m.layer for m in maps.all)


def test_what_a_pixel_attends_to(run, digit, capsys):
    """Weights lie on earlier pixels only: the key at position t is the pixel before t."""
    _, maps = attention_maps(run, digit, options=PixelLookOptions(pixel=(3, 5)))
    m = maps.view()
    assert m.labels()[0] == ["row 3, column 5"] and m.labels()[1][0] == "start" and len(m.labels()[1]) == 65
    weights = m.weights_BHLM[0, 0, 0]
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    on_pixels = weights[1:].view(8, 8)
    assert float(on_pixels[3, 5:].sum() + on_pixels[4:].sum()) == 0 and float(on_pixels[3, 4]) > 0
    assert np.array_equal(maps.image, read_digits()[0][5])
    with pytest.raises(NotSupported, match="--pixel 8 0: the image has 8 rows"):
        attention_maps(run, digit, options=PixelLookOptions(pixel=(8, 0)))
    assert main(["look", str(run.folder), digit, "--pixel", "3", "5", "--layer", "0"]) == 0 and "row 3" in capsys.readouterr().out


def test_colours(tmp_path):
    generator = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", generator.integers(0, 256, (30, 4, 6, 3), dtype=np.uint8))
    for name, options, positions in (("colour", {}, 72), ("grey", {"grey": True}, 24), ("small", {"image_size": (4, 4)}, 48)):
        out = tmp_path / name
        train(PixelsTask, PixelsOptions(data=str(tmp_path / "images.npy"), **options), STEPS, out, settings=SMALL, progress=False)
        assert load_run(out).model.max_length == positions
    Image.fromarray(np.load(tmp_path / "images.npy")[0]).save(tmp_path / "one.png")
    colour = load_run(tmp_path / "colour")
    assert picture(predict(colour, [str(tmp_path / "one.png")])[0]).shape[-1] == 3
    _, maps = attention_maps(colour, str(tmp_path / "one.png"), options=PixelLookOptions(pixel=(1, 2)))
    weights = maps.view().weights_BHLM
    assert weights.shape[-1] == 25  # channels are added up
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"super_resolution": 3}, "--super-resolution 3 of images of 8 × 8"),
        ({"levels": 1}, "levels=1, expected 2 to 256"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_options_that_do_not_fit(options, says, tmp_path):
    with pytest.raises(BadConfig, match=says):
        train(PixelsTask, PixelsOptions(**options), STEPS, tmp_path / "run", settings=SMALL, progress=False)


def test_a_damaged_processor(tmp_path):
    PixelProcessor(size=(8, 8), channels=1, levels=17, factor=4).save(tmp_path)
    assert PixelProcessor.load(tmp_path).factor == 4
    for text in (
        "{}",
        '{"size": [8, 8], "channels": 2, "levels": 17, "factor": 1}',
        '{"size": [8, 8], "channels": 1, "levels": 17, "factor": 3}',
    ):
        (tmp_path / "pixels.json").write_text(text)
        with pytest.raises(BadFile, match=r"pixels\.json"):
            PixelProcessor.load(tmp_path)
