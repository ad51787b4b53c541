"""CLIP directories of transformers: their tokenizer and preprocessor, predictions, maps, fine-tuning, and back."""

import json
import string

import numpy as np
import pytest
import torch
from tests.interop.conftest import randomize

import regard
from regard.cli import main
from regard.data.scenes import scenes
from regard.errors import NotSupported
from regard.interop import export
from regard.models import build
from regard.tasks.clip import image_vectors, text_vectors

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
Image = pytest.importorskip("PIL.Image", reason="reads images; pip install 'regard[data]'")
LETTERS = string.ascii_lowercase
CLASSES = ["red circle", "blue square", "cat"]


@pytest.fixture
def checkpoint(tmp_path):
    """A model, its tokenizer and its preprocessor, written by transformers; and a picture."""
    folder = tmp_path / "clip"
    vocab = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "re", "red</w>", "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizerFast(
        vocab={token: n for n, token in enumerate(vocab)}, merges=[("r", "e"), ("re", "d</w>")], pad_token="<|endoftext|>"
    )
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    text = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
            "max_position_embeddings": 24, "eos_token_id": end, "bos_token_id": end - 1}  # fmt: skip
    vision = {
        "hidden_size": 20,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 12,
        "patch_size": 4,
    }
    model = randomize(transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 14}, crop_size={"height": 12, "width": 12})
    processor.save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 33, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return folder, model.eval(), tokenizer, processor, tmp_path / "image.png"


@torch.no_grad()
def expected(model, tokenizer, processor, image):
    inputs = tokenizer([f"a {name}" for name in CLASSES], padding=True, return_tensors="pt")
    return model(pixel_values=processor(Image.open(image), return_tensors="pt")["pixel_values"], **inputs).logits_per_image[0].softmax(-1)


def test_predictions_maps_and_back(checkpoint, tmp_path, capsys):
    folder, model, tokenizer, processor, image = checkpoint
    wanted = expected(model, tokenizer, processor, image)
    assert main(["predict", str(folder), str(image), "--json", "--classes", *CLASSES]) == 0
    found = {one["class"]: one["probability"] for one in json.loads(capsys.readouterr().out)["classes"]}
    assert [found[name] for name in CLASSES] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert main(["look", str(folder), str(image), "--png", str(tmp_path / "look.png")]) == 0
    assert (tmp_path / "look.png").stat().st_size > 1000

    export(regard.load_run(folder), tmp_path / "out")
    again = transformers.CLIPModel.from_pretrained(tmp_path / "out").eval()
    parts = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "out"),
        transformers.CLIPImageProcessorPil.from_pretrained(tmp_path / "out"),
    )
    torch.testing.assert_close(expected(again, *parts, image), wanted, atol=1e-6, rtol=0)


def test_a_run_on_disk_is_the_same_and_trains_on(checkpoint, tmp_path, capsys):
    folder, model, tokenizer, processor, image = checkpoint
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 0
    mine = regard.load(tmp_path / "run")
    x, ids = torch.randn(2, 3, 12, 12), torch.tensor([[model.config.text_config.bos_token_id, 3, 4, model.config.text_config.eos_token_id]])
    with torch.no_grad():
        torch.testing.assert_close(mine(x, ids), model(input_ids=ids, pixel_values=x).logits_per_image, atol=1e-5, rtol=0)
    command = ["train", "clip", "--data", "scenes:count=20,size=16,objects=1", "--init-from", str(tmp_path / "run"), "--steps", "2"]
    assert main([*command, "--batch-size", "4", "--shares", "0.2", "0.2", "--quiet", "--out", str(tmp_path / "tuned")]) == 0
    assert main(["export", str(tmp_path / "tuned"), "--out", str(tmp_path / "out")]) == 0
    transformers.CLIPModel.from_pretrained(tmp_path / "out")


def test_a_clip_trained_here_is_the_same_in_transformers(tmp_path):
    small = {"width": 8, "heads": 2, "depth": 1, "hidden": 8, "embedding": 8, "patch_size": 8}
    small |= {"image_width": 8, "image_heads": 2, "image_depth": 1, "image_hidden": 8}
    settings = [part for name, value in small.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "clip", "--data", "scenes:count=40,size=16", "--image-size", "16", "--batch-size", "8", "--steps", "2", "--quiet"]
    assert main([*command, "--shares", "0.2", "0.2", "--out", str(tmp_path / "run"), *settings]) == 0
    run = regard.load_run(tmp_path / "run")
    ids = run.processor.ids("a ⟨end⟩ of a red circle", 32)
    assert ids[-1] == max(ids) == run.model.config.vocab_size - 1 == run.model.config.end and ids.count(ids[-1]) == 1

    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    theirs, tokenizer = (kind.from_pretrained(tmp_path / "out") for kind in (transformers.CLIPModel, transformers.AutoTokenizer))
    processors = [
        kind.from_pretrained(tmp_path / "out") for kind in (transformers.CLIPImageProcessorPil, transformers.ViTImageProcessorPil)
    ]
    texts = ["a red circle", "a large blue square and a small red circle", "a ⟨end⟩ of a red circle"]
    assert [tokenizer(text)["input_ids"] for text in texts] == [run.processor.ids(text, 32) for text in texts]
    images = [scene.pixels for scene in scenes("count=3,size=16,seed=1")]
    pixels, same = (processor(images, return_tensors="pt")["pixel_values"] for processor in processors)
    assert torch.equal(pixels, same)
    with torch.no_grad():
        found = theirs.eval()(**tokenizer(texts, padding=True, return_tensors="pt"), pixel_values=pixels)
    for mine, other in (
        (text_vectors(run.model, run.processor, texts), found.text_embeds),
        (image_vectors(run.model, run.processor, images), found.image_embeds),
    ):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
    again = regard.load_run(tmp_path / "out")
    torch.testing.assert_close(text_vectors(again.model, again.processor, texts), found.text_embeds, atol=1e-5, rtol=0)


def test_an_end_that_transformers_reads_otherwise_is_refused(tmp_path):
    settings = {"vocab_size": 20, "width": 8, "heads": 2, "depth": 1, "hidden": 8, "embedding": 8, "image_size": 8, "image_width": 8}
    small = settings | {"image_heads": 2, "image_depth": 1, "image_hidden": 8}
    with pytest.raises(NotSupported, match="token 2"):
        export(build("clip", small, end=2), tmp_path / "out")
    export(build("clip", small, end=None), tmp_path / "old")  # the largest id, as the first checkpoints
    theirs, mine = transformers.CLIPModel.from_pretrained(tmp_path / "old").eval(), regard.load(tmp_path / "old")
    x, ids = torch.randn(2, 3, 8, 8), torch.tensor([[1, 5, 19, 0], [1, 19, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(mine(x, ids), theirs(input_ids=ids, pixel_values=x).logits_per_image, atol=1e-5, rtol=0)
