"""Image classification: sizes, labels and channels that follow from the data, --init-from, and what is drawn."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.cli import main
from regard.errors import BadConfig, NotSupported
from regard.tasks import Images, ImagesOptions, evaluate, load_run, predict, train
from regard.tasks.image_processor import ImageProcessor
from regard.tasks.images import default_patch
from regard.train import TrainOptions

TINY = {"width": 16, "heads": 2, "depth": 2, "hidden": 16}
RNG = np.random.default_rng(0)


def run_on(data, out, **more):
    options = {key: more.pop(key) for key in list(more) if key in ImagesOptions.__dataclass_fields__}
    training = TrainOptions(steps=more.pop("steps", 2), schedule="constant", warmup_steps=0, average=0)
    settings = more.pop("settings", {} if "init_from" in more else TINY)
    train(Images, ImagesOptions(data=str(data), batch_size=8, **options), training, out, settings=settings, progress=False, **more)
    return load_run(out)


def write(folder, sizes, labels=("a", "b", "c"), count=8, mode="RGB"):
    for n in range(count * len(labels)):
        label, (height, width) = labels[n % len(labels)], sizes[n % len(sizes)]
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 255, (height, width, 3), dtype=np.uint8)).convert(mode).save(folder / label / f"{n}.png")
    return folder


@pytest.mark.parametrize(
    ("sizes", "mode", "expected"),
    [
        ([(8, 8)], "L", ((8, 8), 1, (2, 2))),
        ([(28, 20)], "RGB", ((28, 20), 3, (4, 4))),
        ([(29, 30)], "RGB", ((32, 32), 3, (4, 4))),
        ([(40, 90), (60, 30)], "L", ((64, 64), 1, (8, 8))),
    ],
)
def test_size_channels_and_patches_follow_from_the_images(tmp_path, sizes, mode, expected):
    run = run_on(write(tmp_path / "data", sizes, mode=mode), tmp_path / "run", shares=(0.2, 0.2))
    c = run.model.config
    assert (run.processor.size, run.processor.channels, c.patch_size) == expected
    assert (c.image_size, c.channels, c.classes) == (run.processor.size, run.processor.channels, 3)
    assert default_patch((224, 224)) == (16, 16) and default_patch((30, 45)) == (3, 3)


def test_another_run_begins_with_other_classes_and_another_size(tmp_path):
    first = run_on(write(tmp_path / "one", [(16, 16)]), tmp_path / "first", shares=(0.2, 0.2))
    other = write(tmp_path / "two", [(40, 30)], labels=("x", "y", "z", "w"), mode="L")
    run = run_on(other, tmp_path / "second", init_from=tmp_path / "first", shares=(0.2, 0.2), image_size=(24, 16), steps=1)
    assert run.model.config.image_size == (24, 16) and run.processor.labels == ("w", "x", "y", "z")
    assert run.processor.channels == 3 and run.processor.mean == first.processor.mean
    assert run.model.output.out_features == 4 and run.model.embedding.position.weight.shape == (1 + 12 * 8, 16)
    near = run.model.blocks[0].mixer.qkv.weight - first.model.blocks[0].mixer.qkv.weight
    assert float(near.detach().abs().max()) < 0.01
    same = run_on(other, tmp_path / "third", init_from=tmp_path / "second", shares=(0.2, 0.2), steps=1)
    assert same.model.config.image_size == (24, 16)
    with pytest.raises(NotSupported, match="the label 'w' does not occur"):
        evaluate(first, str(other))


def test_mixer_trains_and_cannot_be_looked_at(tmp_path, capsys):
    data = write(tmp_path / "data", [(8, 8)])
    settings = {"width": 16, "depth": 1, "hidden": 16, "token_hidden": 8}
    run = run_on(data, tmp_path / "run", model="mlp_mixer", settings=settings, shares=(0.2, 0.2))
    assert predict(run, [str(data / "a" / "0.png")])[0].text.split("\t")[0] in "abc"
    assert main(["look", str(tmp_path / "run"), str(data / "a" / "0.png")]) == 2
    assert "TokenMixer" in capsys.readouterr().err


def test_predict_look_and_evaluate(tmp_path, capsys):
    data = write(tmp_path / "data", [(16, 12)])
    run_on(data, tmp_path / "run", shares=(0.2, 0.2))
    photo = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RNG.integers(0, 255, (30, 50, 3), dtype=np.uint8)).convert("CMYK").save(photo, exif=exif)
    assert main(["predict", str(tmp_path / "run"), str(photo), "--nbest", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["labels"]) == 3 and abs(sum(one["probability"] for one in found["labels"]) - 1) < 1e-5
    for more in ([], ["--layer", "rollout"], ["--layer", "0", "--head", "1"]):
        assert main(["look", str(tmp_path / "run"), str(photo), "--png", str(tmp_path / "look.png"), *more]) == 0
        shown = capsys.readouterr().out
        assert "8 × 6 patches" in shown and sum(line.startswith("│") for line in shown.splitlines()) == 8
    assert main(["look", str(tmp_path / "run"), str(photo), "--html", str(tmp_path / "look.html")]) == 0
    assert (tmp_path / "look.html").stat().st_size > 10_000
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["confusion"]) == 3 and sum(map(sum, report["confusion"])) == report["images"]


def test_a_loaded_model_is_saved_with_its_processor(tmp_path):
    run = run_on(write(tmp_path / "data", [(8, 8)]), tmp_path / "run", shares=(0.2, 0.2))
    model = regard.load(tmp_path / "run").with_attention("linear")
    assert model.processor == run.processor and model.labels == ("a", "b", "c")
    regard.save(model, tmp_path / "swapped")
    assert load_run(tmp_path / "swapped").processor == run.processor
    model.processor = None
    with pytest.raises(BadConfig, match="processor="):
        regard.save(model, tmp_path / "no")


def test_files_that_are_no_images(tmp_path, capsys):
    data = write(tmp_path / "data", [(8, 8)])
    (data / "a" / "notes.png").write_text("text")
    command = [
        "train",
        "images",
        "--data",
        str(data),
        "--shares",
        "0.2",
        "0.2",
        "--steps",
        "1",
        "--quiet",
        "--set",
        "width=16",
        "--set",
        "depth=1",
    ]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2 and "notes.png: not an image" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "run"), "--on-error", "skip"]) == 0
    assert "1 files skipped" in capsys.readouterr().err
    one = write(tmp_path / "one", [(8, 8)], labels=("only",))
    assert (
        main(["train", "images", "--data", str(one), "--out", str(tmp_path / "no")]) == 2
        and "at least two classes" in capsys.readouterr().err
    )


@pytest.mark.parametrize("wrong", [{"image_size": (2,)}, {"mixup": -1.0}, {"erase": 2.0}, {"label_smoothing": 1.0}, {"crop": -1}])
def test_options_out_of_bounds(wrong):
    with pytest.raises(BadConfig, match=f"{next(iter(wrong))}="):
        ImagesOptions(**wrong)


def test_digits_are_learned(tmp_path):
    settings = {"width": 48, "heads": 4, "depth": 2, "hidden": 96}
    options, training = ImagesOptions(batch_size=64), TrainOptions(epochs=4, lr=3e-3, schedule="cosine", average=0)
    train(Images, options, training, tmp_path / "run", settings=settings, progress=False)
    assert evaluate(load_run(tmp_path / "run")).metrics["accuracy"] > 0.6  # chance is 0.1


# -- the processor against transformers ----------------------------------------------------------------------------------


def photograph():
    """A picture with edges and gradients, of odd size."""
    y, x = np.mgrid[0:67, 0:91]
    channels = [127 + 120 * np.sin(x / 7 + y / 11), 255 * (x > 40) * (y / 67), 255 * ((x // 9 + y // 9) % 2)]
    return np.stack(channels, -1).astype(np.uint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["ViTImageProcessorPil", "CLIPImageProcessorPil"])
@pytest.mark.parametrize("resample", [0, 2, 3])
def test_preprocessing_is_that_of_transformers(tmp_path, kind, resample):
    transformers = pytest.importorskip("transformers", reason="the oracle; pip install 'regard[interop]'")
    size = {"height": 32, "width": 24} if kind.startswith("ViT") else {"shortest_edge": 40}
    theirs = getattr(transformers, kind)(size=size, crop_size={"height": 32, "width": 36}, resample=resample, image_mean=[0.4, 0.5, 0.6])
    theirs.save_pretrained(tmp_path)
    mine, image = ImageProcessor.load(tmp_path), photograph()
    expected = theirs(Image.fromarray(image), return_tensors="np")["pixel_values"][0]
    found = mine.encode(mine.fit(image))
    assert found.shape == expected.shape and float((found - torch.from_numpy(np.asarray(expected))).abs().max()) < 1e-5
    mine.save(tmp_path)
    again = getattr(transformers, kind).from_pretrained(tmp_path)
    assert (np.asarray(again(Image.fromarray(image), return_tensors="np")["pixel_values"][0]) == expected).all()
    assert ImageProcessor.load(tmp_path) == mine


def test_a_processor_and_its_pixels_come_back(tmp_path):
    processor = ImageProcessor.of_pixels([photograph()], labels=("a", "b"), size=(16, 20))
    processor.save(tmp_path)
    assert ImageProcessor.load(tmp_path) == processor
    pixels = processor.fit(photograph())
    assert (processor.decode(processor.encode(pixels)) == pixels).all()
