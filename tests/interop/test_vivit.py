"""ViViT of transformers in our model and back: the same numbers, the same tensors, the same preprocessing."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.interop.conftest import edit_config, randomize

from regard.cli import main
from regard.errors import BadConfig, NotSupported
from regard.interop import export, import_checkpoint, load_run
from regard.models import ViViT, build
from regard.tasks import predict

transformers = pytest.importorskip("transformers", reason="the oracle")

TINY = {"image_size": [12, 8], "num_frames": 6, "tubelet_size": [2, 4, 4], "num_channels": 3, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 3, "intermediate_size": 20, "num_labels": 5}  # fmt: skip


def saved(folder, head="ForVideoClassification", **more):
    model = randomize(getattr(transformers, f"Vivit{head}")(transformers.VivitConfig(**TINY, **more)))
    model.save_pretrained(folder)
    return model.eval()


def clips():
    return torch.randn(2, 6, 3, 12, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("more", [{}, {"qkv_bias": False}, {"hidden_act": "gelu", "layer_norm_eps": 0.1}])
def test_logits_and_tensors(tmp_path, more):
    theirs = saved(tmp_path / "hf", **more)
    run = load_run(tmp_path / "hf")
    assert isinstance(run.model, ViViT) and run.task == "video" and run.processor.labels == tuple(f"LABEL_{n}" for n in range(5))
    with torch.no_grad():
        expected = theirs(clips(), output_hidden_states=True)
        torch.testing.assert_close(run.model(clips()), expected.logits, atol=1e-5, rtol=0)
        hidden = theirs.vivit(clips()).last_hidden_state
        torch.testing.assert_close(run.model.features(clips()), hidden, atol=1e-5, rtol=0)
    export(run, tmp_path / "back")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "back"))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    again = transformers.VivitForVideoClassification.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(clips()).logits, expected.logits, atol=1e-6, rtol=0)


def test_each_quirk_counts(tmp_path):
    """Another activation or epsilon in config.json gives other logits, so the comparison above can fail."""
    theirs = saved(tmp_path / "hf")
    expected = theirs(clips()).logits.detach()
    for change in ({"hidden_act": "gelu"}, {"layer_norm_eps": 1e-1}):
        edit_config(tmp_path / "hf", **change)
        assert float((load_run(tmp_path / "hf").model(clips()) - expected).detach().abs().max()) > 1e-5


def test_a_model_without_a_head(tmp_path):
    theirs = saved(tmp_path / "hf", "Model")
    run = load_run(tmp_path / "hf")
    with torch.no_grad():
        found, expected = run.model.features(clips()), theirs(clips())
        torch.testing.assert_close(found, expected.last_hidden_state, atol=1e-5, rtol=0)
        torch.testing.assert_close(run.model.pooled(found), expected.pooler_output, atol=1e-5, rtol=0)
    export(run.model, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["VivitModel"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"do_center_crop": False, "size": {"height": 12, "width": 8}},
        {"do_normalize": False},
        {"offset": False, "rescale_factor": 1 / 255},
    ],
)
def test_preprocessing(tmp_path, given):
    """What transformers' processor makes of a clip, ours does: resized, cropped, rescaled and normalised."""
    saved(tmp_path / "hf")
    settings = {
        "size": {"shortest_edge": 14},
        "crop_size": {"height": 12, "width": 8},
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.4],
    }
    processor = transformers.VivitImageProcessor(**settings | given)
    processor.save_pretrained(tmp_path / "hf")
    clip = np.random.default_rng(0).integers(0, 256, (6, 20, 17, 3), dtype=np.uint8)
    run = load_run(tmp_path / "hf")
    expected = processor(list(clip), return_tensors="pt")["pixel_values"]
    found = run.processor.encode(np.stack([run.processor.fit(frame) for frame in clip])[None])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    export(run, tmp_path / "back")
    again = transformers.VivitImageProcessor.from_pretrained(tmp_path / "back")(list(clip), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(again, expected, atol=2e-5, rtol=0)


def test_a_directory_is_used_like_a_run(tmp_path, capsys):
    saved(tmp_path / "hf")
    np.save(tmp_path / "clip.npy", np.random.default_rng(0).integers(0, 256, (9, 20, 17, 3), dtype=np.uint8))
    run = import_checkpoint(tmp_path / "hf", tmp_path / "run")
    assert predict(run, [str(tmp_path / "clip.npy")])[0].values["labels"][0]["label"].startswith("LABEL_")
    for folder in ("hf", "run"):
        assert main(["look", str(tmp_path / folder), str(tmp_path / "clip.npy"), "--png", str(tmp_path / f"{folder}.png")]) == 0
        assert "layer 1" in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "clip.npy")]) == 0


def test_what_is_refused(tmp_path):
    saved(tmp_path / "hf")
    edit_config(tmp_path / "hf", pooler_act="relu")
    with pytest.raises(BadConfig, match="only pooler_act='tanh'"):
        load_run(tmp_path / "hf")
    small = {"image_size": (4, 4), "patch_size": (2, 2), "width": 8, "heads": 2, "depth": 1, "hidden": 8, "frames": 2, "classes": 2}
    with pytest.raises(NotSupported, match="factorisation='encoder'"):
        export(build("vivit", small, pool="class", factorisation="encoder"), tmp_path / "out")
    with pytest.raises(NotSupported, match="pool='mean'"):
        export(build("vivit", small), tmp_path / "out")
