"""`regard look` on models that read: the maps are those of the layers, labels are the tokens, layer and head narrow them down."""

import pytest
import torch
from safetensors.torch import save_file

from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import RegardError, ShapeError
from regard.models import Labeller, build, config_of
from regard.tasks import Run, looked, translation_looked
from regard.tasks.run import write_config
from regard.train.weights import weights_of

LETTERS = Tokenizer.train(["to be or not to be"], "characters", 64, least=1)
SIZES = {"width": 16, "heads": 2, "depth": 2}


def written(folder, task, model, settings=None):
    """A run with a model that has learned nothing."""
    write_config(folder, task, settings or {}, config_of(model.body if isinstance(model, Labeller) else model), {})
    save_file(weights_of(model), folder / "model.safetensors")
    Tokenizers(LETTERS).save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def folder(request, tmp_path):
    torch.manual_seed(0)
    words = {"vocab": len(LETTERS) + 1, "length": 24, **SIZES}
    match request.param:
        case "language":
            return written(tmp_path, "language", build("gpt2", words))
        case "masked":
            return written(tmp_path, "masked", build("bert", {**words, "hidden": 32}))
        case "fnet":
            return written(
                tmp_path, "masked", build("fnet", {"vocab": len(LETTERS) + 1, "length": 24, "width": 16, "depth": 2, "hidden": 32})
            )
        case "classify" | "label":
            body = build("bert", {**words, "hidden": 32})
            return written(tmp_path, request.param, Labeller(body, 2, each=request.param == "label"), {"labels": ["a", "b"]})
        case "classify by a decoder":
            return written(tmp_path, "classify", Labeller(build("gpt2", words), 2), {"labels": ["a", "b"]})
        case "translation":
            sizes = {"source_vocab": len(LETTERS), "target_vocab": len(LETTERS), "width": 16, "heads": 2, "depth": [2, 2], "hidden": 32}
            return written(tmp_path, "translation", build("transformer", sizes))
        case "rnn":
            return written(tmp_path, "language", build("rnn_lm", {"vocab": len(LETTERS), "width": 16, "depth": 1}))


FRAMED = ["masked", "fnet", "classify", "label", "classify by a decoder"]


@pytest.mark.parametrize("folder", ["language", *FRAMED], indirect=True)
def test_maps_have_the_tokens_as_labels(folder, request):
    maps = looked(Run.load(folder), "to be")
    end = [] if request.node.callspec.params["folder"] == "language" else ["⟨eos⟩"]
    assert len(maps.layers) == 2
    for m in maps.all:
        assert m.labels() == (["⟨bos⟩", *"to be", *end],) * 2 and m.square
        assert m.weights_BHLM.shape == (1, len(m.heads), 6 + len(end), 6 + len(end))


@pytest.mark.parametrize("folder", ["language"], indirect=True)
def test_a_language_model_looks_back_only(folder):
    for m in looked(Run.load(folder), "to be").all:
        assert not m.weights_BHLM.triu(1).any() and torch.allclose(m.weights_BHLM.sum(-1), torch.ones(()))


@pytest.mark.parametrize("folder", ["classify"], indirect=True)
def test_a_pair(folder):
    assert looked(Run.load(folder), "to\tbe").all[0].labels()[0] == ["⟨bos⟩", "t", "o", "⟨eos⟩", "b", "e", "⟨eos⟩"]


@pytest.mark.parametrize("folder", ["language", "masked", "classify"], indirect=True)
def test_command(folder, capsys, tmp_path):
    assert main(["look", str(folder), "to be", "--png", str(tmp_path / "all.png")]) == 0
    said = capsys.readouterr().out
    assert "blocks.1" in said and "blocks.0" not in said and "mean of heads" in said
    assert main(["look", str(folder), "to be", "--layer", "0", "--head", "1", "--png", str(tmp_path / "one.png")]) == 0
    said = capsys.readouterr().out
    assert "blocks.0" in said and "blocks.1" not in said and "head 1" in said
    assert main(["look", str(folder), "to be", "--layer", "blocks.*"]) == 0
    said = capsys.readouterr().out
    assert "blocks.0" in said and "blocks.1" in said
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("all.png", "one.png"))


@pytest.mark.parametrize("folder", ["translation"], indirect=True)
def test_layers_of_a_translator(folder, capsys, tmp_path):
    run = Run.load(folder)
    text, maps = translation_looked(run, "to be")
    assert len(maps.layers) == 6 and all(m.query_labels and m.key_labels for m in maps.all)
    read = [*"to be", "‹end›"]
    for m in maps.all:
        queries, keys = m.labels()
        assert (keys == read) == ("encoder" in m.layer or "cross" in m.layer) and (queries == read) == ("encoder" in m.layer)
    assert main(["look", str(folder), "to be", "--layer", "*cross*", "--head", "0", "--png", str(tmp_path / "map.png")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(text) and "decoder.0" in said and "head 0" in said
    assert main(["look", str(folder), "to be"]) == 0 and "target → source" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "argv", "says"),
    [
        ("language", ["to be " * 5], "31 tokens, and this model reads 1 to 24"),
        ("language", ["to", "--layer", "7"], "layer"),
        ("language", ["to", "--layer", "block"], "layer"),
        ("language", ["to", "--head", "2"], "head"),
        ("language", ["to", "--png", "map.jpg"], "--png map.jpg"),
        ("rnn", ["to"], "nothing to look at"),
    ],
    indirect=["folder"],
)
def test_mistakes_say_what_is_there(folder, argv, says, capsys):
    assert main(["look", str(folder), *argv]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["translation"], indirect=True)
def test_a_translator_is_asked_otherwise(folder):
    with pytest.raises(RegardError, match="translation_looked"):
        looked(Run.load(folder), "to be")
    with pytest.raises(ShapeError):
        looked(Run.load(written(folder, "language", build("gpt2", {"vocab": 64, "length": 4, **SIZES}))), "to be or not")
