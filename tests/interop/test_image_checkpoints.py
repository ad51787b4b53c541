"""ViT checkpoints of transformers: inspected, fine-tuned and written, with their preprocessing."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.interop.conftest import edit_config, randomize

import regard
from regard.cli import main
from regard.errors import BadConfig, BadFile, Misfit, NotSupported
from regard.interop import export
from regard.models import ViT, build

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = {
    "image_size": [12, 20],
    "patch_size": [4, 5],
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
}


def checkpoint(folder, kind="ViTForImageClassification", **more):
    model = randomize(getattr(transformers, kind)(transformers.ViTConfig(**SIZES, num_labels=5, **more)))
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 12, "width": 20}, resample=3, image_std=[0.2, 0.3, 0.4]).save_pretrained(folder)
    return model


def picture(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)).save(path)
    return path


@torch.no_grad()
def test_a_picture_gets_the_same_probabilities(tmp_path, capsys):
    theirs, image = checkpoint(tmp_path / "vit", qkv_bias=False), picture(tmp_path / "image.png")
    processor = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "vit")
    expected = theirs(torch.tensor(np.array(processor(Image.open(image))["pixel_values"]))).logits.softmax(-1)[0]
    assert main(["predict", str(tmp_path / "vit"), str(image), "--nbest", "5", "--json"]) == 0
    found = {one["label"]: one["probability"] for one in json.loads(capsys.readouterr().out)["labels"]}
    assert max(abs(found[f"LABEL_{n}"] - float(p)) for n, p in enumerate(expected)) < 1e-5
    assert main(["look", str(tmp_path / "vit"), str(image), "--png", str(tmp_path / "look.png")]) == 0
    assert "3 × 4 patches" in capsys.readouterr().out


@torch.no_grad()
def test_the_base_model_has_features_and_a_pooler(tmp_path):
    theirs, x = checkpoint(tmp_path / "vit", "ViTModel"), torch.randn(2, 3, 12, 20)
    mine = regard.load(tmp_path / "vit")
    assert isinstance(mine, ViT) and mine.config.pooler and not mine.config.classes
    out, features = theirs(x, output_hidden_states=True), mine.features(x)
    assert (out.last_hidden_state - features).abs().max() < 1e-5 and (out.pooler_output - mine.pooled(features)).abs().max() < 1e-5
    export(regard.load_run(tmp_path / "vit"), tmp_path / "out")
    again = transformers.ViTModel.from_pretrained(tmp_path / "out").eval()
    assert again(x).pooler_output.equal(out.pooler_output)


def test_fine_tuning_and_back(tmp_path):
    checkpoint(tmp_path / "vit", "ViTModel")
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for n in range(12):
            pixels = np.random.default_rng(n).integers(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / label / f"{n}{label}.png")
    command = ["train", "images", "--data", str(tmp_path / "data"), "--shares", "0.2", "0.2", "--init-from", str(tmp_path / "vit")]
    assert main([*command, "--image-size", "24", "20", "--steps", "2", "--quiet", "--out", str(tmp_path / "run")]) == 0
    run = regard.load_run(tmp_path / "run")
    assert run.model.config.image_size == (24, 20) and run.processor.resample == "bicubic" and run.processor.std == (0.2, 0.3, 0.4)
    export(run, tmp_path / "out")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out").eval()
    x = torch.randn(2, 3, 24, 20)
    with torch.no_grad():
        assert (again(x).logits - run.model(x)).abs().max() < 1e-5
    assert again.config.id2label == {0: "cat", 1: "dog"} and again.config.image_size == [24, 20]
    loaded = regard.load_run(tmp_path / "out")
    assert loaded.processor == run.processor and loaded.model(x).equal(run.model(x))
    processor = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "out")
    assert processor.size["height"] == 24 and list(processor.image_std) == [0.2, 0.3, 0.4]


def test_what_does_not_fit_is_refused(tmp_path):
    checkpoint(tmp_path / "vit")
    original = (tmp_path / "vit" / "config.json").read_text()
    for changes, error in (
        ({"image_size": 40}, Misfit),
        ({"patch_size": 2}, Misfit),
        ({"num_channels": 1}, Misfit),
        ({"pooler_act": "relu"}, BadConfig),
        ({"image_size": "large"}, BadConfig),
        ({"id2label": {"0": "a"}}, Misfit),
    ):
        edit_config(tmp_path / "vit", **changes)
        with pytest.raises(error):
            regard.load_run(tmp_path / "vit")
        (tmp_path / "vit" / "config.json").write_text(original)
    edit_config(tmp_path / "vit")
    path = tmp_path / "vit" / "preprocessor_config.json"
    for changes in ({"rescale_factor": 1.0}, {"image_mean": [0.5]}, {"image_mean": "x"}, {"size": {"width": 3}}, {"image_std": [0, 1, 1]}):
        path.write_text(json.dumps({"size": 20, "image_mean": [0.5] * 3, "image_std": [0.5] * 3} | changes))
        with pytest.raises(BadFile, match="preprocessor_config"):
            regard.load_run(tmp_path / "vit")
    for settings in ({"pool": "mean"}, {"stem": (4,)}, {"positions": False}, {"pooler": True}, {"attention": ("linear",)}):
        model = build("vit", image_size=8, patch_size=4, width=8, heads=2, depth=1, hidden=8, classes=2, **settings)
        with pytest.raises(NotSupported):
            regard.interop.export(model, tmp_path / "no")
