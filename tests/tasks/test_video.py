"""Clips: files of all kinds, odd lengths, a model of images as beginning, and attention per frame."""

import numpy as np
import pytest
import torch
from PIL import Image

from regard import capture
from regard.cli import main
from regard.errors import BadConfig
from regard.models import build
from regard.tasks import Images, ImagesOptions, Video, VideoOptions, attention_maps, load_run, predict, train
from regard.tasks.video import film_strip, received, shuffled
from regard.train import TrainOptions

SMALL = {"width": 16, "heads": 2, "depth": 1, "hidden": 16, "temporal_depth": 1}
STEPS = TrainOptions(steps=2, schedule="constant", warmup_steps=0, average=0)
FACTORISATIONS = ("joint", "encoder", "self_attention", "dot_product")


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Two classes of GIFs of 3 to 9 frames."""
    folder, generator = tmp_path_factory.mktemp("data") / "clips", np.random.default_rng(0)
    for label, step in (("left", -1), ("right", 1)):
        (folder / label).mkdir(parents=True)
        for n in range(12):
            frame = generator.integers(0, 4, (8, 8)).astype(np.uint8) * 85
            frames = [Image.fromarray(np.roll(frame, step * t, 1)) for t in range(3 + n % 7)]
            frames[0].save(folder / label / f"{n}.gif", save_all=True, append_images=frames[1:])
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run of a ViT."""
    folder, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    np.savez(folder / "train.npz", x=generator.integers(0, 255, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2)
    settings = {name: value for name, value in SMALL.items() if name != "temporal_depth"}
    options = ImagesOptions(data=str(folder / "train.npz"), batch_size=8, shares=(0.1, 0.1))
    train(Images, options, STEPS.replace(ema=0.0), folder / "run", settings=settings, progress=False)
    return folder / "run"


@pytest.mark.parametrize("factorisation", FACTORISATIONS)
def test_every_factorisation_trains_predicts_and_looks(factorisation, clips, tmp_path):
    options = VideoOptions(data=str(clips), frames=4, factorisation=factorisation, batch_size=8, shares=(0.1, 0.1))
    train(Video, options, STEPS, tmp_path / "run", settings=SMALL, progress=False)
    run = load_run(tmp_path / "run")
    paths = [str(path) for path in sorted((clips / "left").iterdir())]
    assert len(predict(run, paths)) == 12
    text, maps = attention_maps(run, paths[0], "*")
    m = maps.view()
    kinds = {"joint": 1, "encoder": 2, "self_attention": 2, "dot_product": 2}[factorisation]
    assert (
        len(m.rows) == kinds
        and m.layout.rows == 2
        and (m.layout.columns, m.layout.frames) == (2, 2)
        and text.split("\t")[0] in ("left", "right")
    )
    total = m.weights_BHLM.sum(-1)[0, 0]
    expected = {"joint": [1], "encoder": [2, 1], "self_attention": [2, 4], "dot_product": [2, 4]}[factorisation]
    torch.testing.assert_close(total, torch.tensor(expected, dtype=total.dtype))  # per step, per clip, or per place
    assert maps.image.shape == (96, 2 * 96)


@pytest.mark.parametrize("factorisation", FACTORISATIONS)
def test_a_model_of_images_is_the_beginning(factorisation, clips, images, tmp_path):
    options = VideoOptions(data=str(clips), frames=4, factorisation=factorisation, batch_size=8, shares=(0.1, 0.1))
    train(Video, options, STEPS.replace(steps=1, lr=1e-9), tmp_path / "run", init_from=images, progress=False)
    run, vit = load_run(tmp_path / "run"), load_run(images)
    assert run.config.model == "vivit" and run.processor.labels == ("left", "right") and run.processor.mean == vit.processor.mean
    grid = run.model.embedding.position.weight[-16:].detach()
    torch.testing.assert_close(grid, vit.model.embedding.position.weight[-16:].detach(), atol=1e-6, rtol=0)
    path = str(clips / "left" / "0.gif")
    assert predict(run, [path]) and main(["evaluate", str(tmp_path / "run")]) == 0


def test_another_number_of_frames_is_refused(clips, tmp_path):
    options = VideoOptions(data=str(clips), frames=4, batch_size=8, shares=(0.1, 0.1))
    train(Video, options, STEPS, tmp_path / "run", settings=SMALL, progress=False)
    with pytest.raises(BadConfig, match="choose --frames 4"):
        train(Video, VideoOptions(data=str(clips), frames=2), STEPS, tmp_path / "more", init_from=tmp_path / "run", progress=False)
    with pytest.raises(BadConfig, match="tubelet=3, expected a divisor of frames=8"):
        VideoOptions(tubelet=3)


def test_attention_per_frame_by_hand():
    """The mean over queries and heads of what capture sees, step by step and place by place."""
    model = build(
        "vivit",
        image_size=(4, 6),
        patch_size=(2, 2),
        channels=1,
        classes=2,
        frames=6,
        factorisation="self_attention",
        **{**SMALL, "depth": 1},
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), capture(model) as maps:
        model(torch.randn(1, 6, 1, 4, 6))
    space, time = maps.all
    assert space.weights_BHLM.shape == (3, 2, 6, 6) and time.weights_BHLM.shape == (6, 2, 3, 3)
    for step in range(3):
        for place in range(6):
            assert float(received(space, model)[step, place]) == pytest.approx(float(space.weights_BHLM[step, :, :, place].mean()))
            assert float(received(time, model)[step, place]) == pytest.approx(float(time.weights_BHLM[place, :, :, step].mean()))


def test_frames_side_by_side():
    strip = film_strip(np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((3, 48, 40), dtype=np.uint8))
    assert strip.shape == (96, 240) and strip[0, [0, 79, 80, 159, 239]].tolist() == [0, 255, 1, 255, 2]


def test_frames_out_of_order():
    pixels = np.arange(40).reshape(5, 8).astype(np.uint8)
    mixed = shuffled(pixels)
    assert not np.array_equal(mixed, pixels) and np.array_equal(np.sort(mixed, 1), pixels) and np.array_equal(mixed, shuffled(pixels))
