"""`regard look` on transformers directories of families that are not imported."""

import sys

import pytest
import torch
from tests.interop.conftest import edit_config, randomize

from regard import interop
from regard.cli import main
from regard.data import HFTokenizer
from regard.errors import BadFile, Misfit, MissingFile, NotSupported, ShapeError, UnknownName

transformers = pytest.importorskip("transformers", reason="it runs these models")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "the", "cats", "sat", "on", "a", "mat"]
TOKENS = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
TEXT = TOKENS | SIZES | {"max_position_embeddings": 16}
VISION = SIZES | {"image_size": 16, "patch_size": 4}
MODELS = {
    "cohere": lambda: transformers.CohereForCausalLM(transformers.CohereConfig(**TEXT, num_key_value_heads=2)),
    "nemotron": lambda: transformers.NemotronForCausalLM(transformers.NemotronConfig(**TEXT, num_key_value_heads=2)),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(**TOKENS, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=1)
    ),
    "clip": lambda: transformers.CLIPModel(transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16)),
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**VISION)),
}


@pytest.fixture
def saved(tmp_path):
    def save(name: str):
        torch.manual_seed(0)
        model = randomize(MODELS[name]())
        model.save_pretrained(tmp_path)
        native = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
        native.add_special_tokens(WORDS[:3])
        native.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        native.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
        HFTokenizer(native, {"pad": 0, "bos": 1, "eos": 2, "unk": 3}).save_pretrained(tmp_path)
        return model, tmp_path

    return save


@pytest.mark.parametrize("name", ["cohere", "nemotron"])
@torch.no_grad()
def test_a_decoder(name, saved):
    model, folder = saved(name)
    assert not interop.is_imported(model.config.to_dict())
    said, maps = interop.text_maps(folder, "the cats sat", layers=-1)
    model.set_attn_implementation("eager")
    expected = model(torch.tensor([[4, 5, 6, 2]]), output_attentions=True).attentions
    assert said == "" and len(maps) == 1
    torch.testing.assert_close(maps.view().weights_BHLM, expected[-1], atol=1e-5, rtol=0)
    assert maps.view().labels() == (["the", "cats", "sat", "</s>"],) * 2


@torch.no_grad()
def test_an_encoder_decoder_is_seen_while_it_writes(saved):
    model, folder = saved("t5")
    said, maps = interop.text_maps(folder, "the cats sat")
    written = model.generate(torch.tensor([[4, 5, 6, 2]]), max_new_tokens=128, do_sample=False)
    names, last = [WORDS[i] for i in written[0].tolist()], maps.view()
    assert said.split() == [word for word in names if word not in WORDS[:3]] and last.layer == "decoder.block.1.layer.1.EncDecAttention"
    assert last.labels() == (names[1:], ["the", "cats", "sat", "</s>"])
    assert maps.view("decoder.block.0.layer.0.SelfAttention").labels() == (names[1:], names[:-1])
    model.set_attn_implementation("eager")
    one = model(torch.tensor([[4, 5, 6, 2]]), decoder_input_ids=written[:, :-1], output_attentions=True)
    torch.testing.assert_close(last.weights_BHLM, one.cross_attentions[-1], atol=1e-5, rtol=0)


def test_the_text_tower_of_two(saved):
    _, folder = saved("clip")
    assert interop.text_maps(folder, "a mat")[1].layers == [f"text_model.encoder.layers.{n}.self_attn" for n in range(2)]


def test_the_command(saved, capsys):
    _, folder = saved("cohere")
    main(["look", str(folder), "the cats sat", "--layer", "0", "--head", "1", "--png", str(folder / "map.png")])
    printed = capsys.readouterr().out
    assert "cats" in printed and "wrote" in printed and (folder / "map.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("name", "text", "changes", "error", "says"),
    [
        ("vit", "the", {}, NotSupported, "ViTModel takes pixel_values, not text"),
        ("cohere", "mat " * 16, {}, ShapeError, "17 tokens, and this model reads 1 to 16"),
        ("cohere", "a", {}, UnknownName, "model.layers.0.self_attn"),
        ("cohere", "the", {"num_hidden_layers": 3}, Misfit, "is not the CohereForCausalLM"),
        ("cohere", "the", {"model_type": "no-such-family"}, BadFile, "cannot read config.json"),
    ],
)
def test_what_is_refused(name, text, changes, error, says, saved):
    _, folder = saved(name)
    edit_config(folder, **changes)
    with pytest.raises(error, match=says) as found:
        interop.text_maps(folder, text, "nowhere" if error is UnknownName else None)
    assert "\n" not in str(found.value)


def test_a_class_that_is_no_model_is_not_called(saved):
    _, folder = saved("cohere")
    edit_config(folder, architectures=["set_seed"])
    assert interop.text_maps(folder, "the")[1].layers == ["layers.0.self_attn", "layers.1.self_attn"]


def test_pickles_and_missing_tokenizers_are_refused(saved):
    _, folder = saved("cohere")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadFile, match="cannot load CohereForCausalLM"):
        interop.text_maps(folder, "the")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingFile, match="no tokenizer"):
        interop.text_maps(folder, "the")


def test_without_transformers_one_line_says_what_to_install(saved, monkeypatch, capsys):
    _, folder = saved("cohere")
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["look", str(folder), "the cats"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("regard: ") and "pip install 'regard[interop]'" in printed
