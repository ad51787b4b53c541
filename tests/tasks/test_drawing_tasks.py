"""What the tasks handwriting and draw do beyond the contract of all tasks: files of strokes and canvases, priming, refusals."""

import io
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tasks.examples import write_example

from regard.errors import NotSupported, UnknownName
from regard.tasks import attention_maps, evaluate, load_run, predict, train
from regard.tasks.draw import DrawOptions, DrawTask, RedrawOptions
from regard.tasks.handwriting import HandwritingOptions, HandwritingTask, WriteOptions

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")
SVG = "{http://www.w3.org/2000/svg}"


def trained(task, out, steps=2, **changes):
    example = write_example(task, out)
    options = type(example.options)(**{**vars(example.options), **changes})
    short = task.default_train.replace(steps=steps, schedule="constant", evaluate_every=0)
    train(task, options, short, out / "run", settings=example.settings, progress=False)
    return load_run(out / "run"), example


@pytest.fixture(scope="module")
def hand(tmp_path_factory):
    return trained(HandwritingTask, tmp_path_factory.mktemp("hand"))


@pytest.fixture(scope="module")
def drawer(tmp_path_factory):
    return trained(DrawTask, tmp_path_factory.mktemp("draw"))


# -- handwriting -------------------------------------------------------------------------------------------------------


def test_a_text_becomes_svg_and_png(hand):
    run, example = hand
    (found,) = predict(run, [example.input])
    page = ET.fromstring(found.files[".svg"])
    groups = {group.get("id"): group for group in page.iter(f"{SVG}g")}
    assert len(groups["strokes"]) == found.values["strokes"] and len(found.values["line"]) == found.values["points"]
    assert "".join(text.text for text in groups["window"].iter(f"{SVG}text")) == f"{example.input}⏎"
    assert Image.open(io.BytesIO(found.files[".png"])).format == "PNG"


def test_seed_bias_and_prime_change_the_strokes(hand):
    run, example = hand
    options = (WriteOptions(), WriteOptions(seed=1), WriteOptions(bias=3.0), WriteOptions(prime=example.options.data))
    lines = [predict(run, [example.input], each)[0].values["line"] for each in options]
    assert all(lines[0] != other for other in lines[1:])


def test_characters_that_were_not_learned(hand):
    run, _ = hand
    with pytest.raises(NotSupported, match="has not learned 'É'; it can write"):
        predict(run, ["É"])


def test_the_map_has_a_row_per_point_and_a_column_per_character(hand):
    run, example = hand
    text, maps = attention_maps(run, example.input)
    (found,) = predict(run, [example.input])
    assert maps.layers == ["window"] and text == found.text
    m = maps.all[0]
    assert m.weights_BHLM.shape == (1, 1, found.values["points"], len(example.input) + 1)
    assert m.labels()[1] == [*example.input, "⏎"]


def test_strokes_without_texts(tmp_path):
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.normal(size=(90, 2)), generator.random(90) < 0.2]).astype(np.float32)
    np.savez(tmp_path / "sketches.npz", points=rows, offset=np.arange(0, 91, 9))
    data, settings = str(tmp_path / "sketches.npz"), {"width": 6, "components": 2, "max_length": 15}
    short = HandwritingTask.default_train.replace(steps=2, schedule="constant")
    with pytest.raises(NotSupported, match="--no-text"):
        train("handwriting", HandwritingOptions(data=data, shares=(0.2, 0.2)), short, tmp_path / "run", settings=settings, progress=False)
    options = HandwritingOptions(data=data, shares=(0.2, 0.2), text=False)
    train("handwriting", options, short, tmp_path / "run", settings=settings, progress=False)
    run = load_run(tmp_path / "run")
    assert run.model.window is None
    one, other = predict(run, ["a tree", "a house"])
    assert one.values["line"] != other.values["line"] and "window" not in one.files[".svg"].decode()
    with pytest.raises(NotSupported, match="no window over a text"):
        attention_maps(run, "a tree")


@pytest.mark.skipif(not (DATA / "sketches" / "omniglot.npz").is_file(), reason="no sketches: set REGARD_DATA to the folder that holds them")
def test_real_sketches(tmp_path):
    options = HandwritingOptions(data=str(DATA / "sketches" / "omniglot.npz"), text=False, batch_size=16)
    short = HandwritingTask.default_train.replace(steps=40, lr=1e-2, schedule="constant", evaluate_every=40)
    train("handwriting", options, short, tmp_path / "run", settings={"width": 24, "components": 5}, progress=False)
    assert evaluate(load_run(tmp_path / "run"), f"{options.data}#test").metrics["loss"] < 3.0  # 3.5 before the first step


@pytest.mark.skipif(not (DATA / "pendigits" / "train.csv.gz").is_file(), reason="no pendigits: set REGARD_DATA to the folder that holds it")
def test_real_digits_are_more_likely_if_one_knows_which(tmp_path):
    """Eight points each, by 30 people; the text is the digit."""
    rows = np.loadtxt(DATA / "pendigits" / "train.csv.gz", delimiter=",")[:1200]
    points = np.zeros((len(rows), 8, 3), np.float32)
    points[:, 1:, :2], points[:, -1, 2] = np.diff(rows[:, :16].reshape(-1, 8, 2), axis=1) * (1, -1), 1
    np.savez(tmp_path / "digits.npz", points=points.reshape(-1, 3), offset=np.arange(0, 8 * len(rows) + 1, 8))
    (tmp_path / "digits.txt").write_text("".join(f"{n:.0f}\n" for n in rows[:, 16]))
    short, loss = HandwritingTask.default_train.replace(steps=80, lr=1e-2, schedule="constant", evaluate_every=80), {}
    for text in (True, False):
        options = HandwritingOptions(data=str(tmp_path / "digits.npz"), text=text, shares=(0.1, 0.1))
        settings = {"width": 24, "components": 5, "window_components": 2}
        train("handwriting", options, short, tmp_path / str(text), settings=settings, progress=False)
        loss[text] = evaluate(load_run(tmp_path / str(text))).metrics["loss"]
    assert loss[True] < loss[False] - 0.1


# -- DRAW --------------------------------------------------------------------------------------------------------------


def test_an_image_is_drawn_again_as_strip_and_animation(drawer):
    run, example = drawer
    (found,) = predict(run, [example.input], RedrawOptions(samples=2))
    strip, film = (Image.open(io.BytesIO(found.files[suffix])) for suffix in (".png", ".gif"))
    glimpses, side, gap = run.model.config.glimpses, 112, 6
    assert strip.size == ((glimpses + 1) * (side + gap) + gap, 3 * (side + gap) + gap)
    assert film.n_frames == glimpses + 1 and film.size == (3 * (side + gap) + gap, side + 2 * gap)
    assert found.values["loss"] == pytest.approx(found.values["kl"] + found.values["reconstruction"])
    assert list(predict(run, [example.input], RedrawOptions(samples=0))[0].files) == [".png", ".gif"]


def test_maps_of_what_is_read_and_written(drawer):
    run, example = drawer
    _, maps = attention_maps(run, example.input)
    assert maps.layers == ["read", "write"] and maps.image.shape == (8, 8)
    for m in maps.all:
        torch.testing.assert_close(m.weights_BHLM.sum(-1), torch.ones(1, 1, 2))
    assert attention_maps(run, example.input, "write")[1].layers == ["write"]
    with pytest.raises(UnknownName, match="'write'"):
        attention_maps(run, example.input, "wrte")


def test_without_attention_there_is_nothing_to_show(tmp_path):
    example = write_example(DrawTask, tmp_path)
    short = DrawTask.default_train.replace(steps=1, schedule="constant")
    train("draw", example.options, short, tmp_path / "run", settings={**example.settings, "attention": "none"}, progress=False)
    run = load_run(tmp_path / "run")
    assert predict(run, [example.input])[0].files
    with pytest.raises(NotSupported, match="reads and writes whole images"):
        attention_maps(run, example.input)


def test_the_terms_add_up_and_are_repeatable(drawer):
    run, example = drawer
    one, two = evaluate(run, example.options.data).metrics, evaluate(run, example.options.data).metrics
    assert one == two and one["loss"] == pytest.approx(one["kl"] + one["reconstruction"])


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no mnist: set REGARD_DATA to the folder that holds it")
def test_mnist_is_read(tmp_path):
    task = DrawTask(DrawOptions(data=str(DATA / "mnist")))
    raw = task.read()
    assert len(raw.test) == 10_000 and task.make_processor(raw, None).size == (28, 28)
