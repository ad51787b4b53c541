"""`regard look` on models that read: the maps are those of the layers, labels are the tokens, layer and head narrow them down."""

import pytest
import torch

from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import ShapeError
from regard.models import Classifier, build
from regard.runs import save
from regard.tasks import TextProcessor, attention_maps, load_run, make_run

LETTERS = Tokenizer.train(["to be or not to be"], "char", 64, min_count=1)
SIZES = {"width": 16, "heads": 2, "depth": 2}


def written(folder, task, model, labels=()):
    """A run with a model that has learned nothing."""
    return save(make_run(task, model, TextProcessor(Tokenizers(LETTERS), labels)), folder)


def looked(run, text):
    return attention_maps(run, text)[1]


@pytest.fixture
def folder(request, tmp_path):
    torch.manual_seed(0)
    decoder = {"vocab_size": len(LETTERS) + 1, "context_length": 24, **SIZES}
    encoder = {"vocab_size": len(LETTERS) + 1, "max_length": 24, "hidden": 32, **SIZES}
    match request.param:
        case "language":
            return written(tmp_path, "language", build("gpt2", decoder))
        case "masked":
            return written(tmp_path, "masked", build("bert", encoder))
        case "fnet":
            return written(
                tmp_path, "masked", build("fnet", {"vocab_size": len(LETTERS) + 1, "max_length": 24, "width": 16, "depth": 2, "hidden": 32})
            )
        case "classify" | "label":
            body = build("bert", encoder)
            return written(tmp_path, request.param, Classifier(body, 2, each=request.param == "label"), ("a", "b"))
        case "classify by a decoder":
            return written(tmp_path, "classify", Classifier(build("gpt2", decoder), 2), ("a", "b"))
        case "translation":
            sizes = {
                "source_vocab_size": len(LETTERS),
                "target_vocab_size": len(LETTERS),
                "width": 16,
                "heads": 2,
                "depth": [2, 2],
                "hidden": 32,
            }
            return written(tmp_path, "translation", build("transformer", sizes))
        case "rnn":
            return written(tmp_path, "language", build("rnn_lm", {"vocab_size": len(LETTERS), "width": 16, "depth": 1}))


FRAMED = ["masked", "fnet", "classify", "label", "classify by a decoder"]


@pytest.mark.parametrize("folder", ["language", *FRAMED], indirect=True)
def test_maps_have_the_tokens_as_labels(folder, request):
    maps = looked(load_run(folder), "to be")
    end = [] if request.node.callspec.params["folder"] == "language" else ["⟨eos⟩"]
    assert len(maps.layers) == 2
    for m in maps.all:
        assert m.labels() == (["⟨bos⟩", *"to be", *end],) * 2 and m.square
        assert m.weights_BHLM.shape == (1, len(m.heads), 6 + len(end), 6 + len(end))


@pytest.mark.parametrize("folder", ["language"], indirect=True)
def test_a_language_model_looks_back_only(folder):
    for m in looked(load_run(folder), "to be").all:
        assert not m.weights_BHLM.triu(1).any() and torch.allclose(m.weights_BHLM.sum(-1), torch.ones(()))


@pytest.mark.parametrize("folder", ["classify"], indirect=True)
def test_a_pair(folder):
    assert looked(load_run(folder), "to\tbe").all[0].labels()[0] == ["⟨bos⟩", "t", "o", "⟨eos⟩", "b", "e", "⟨eos⟩"]


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


@pytest.mark.parametrize("folder", ["language", "translation"], indirect=True)
def test_summary_and_scales(folder, capsys, tmp_path):
    assert main(["look", str(folder), "to be", "--summary", "--png", str(tmp_path / "summary.png")]) == 0
    said = capsys.readouterr().out
    assert "Entropy in nats" in said and "Mean distance" in said and "rollout of" in said and "head 1" in said
    assert main(["look", str(folder), "to be", "--scale", "log", "--png", str(tmp_path / "log.png")]) == 0
    assert "log scale" in capsys.readouterr().out
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("summary.png", "log.png"))


@pytest.mark.parametrize("folder", ["translation"], indirect=True)
def test_layers_of_a_translator(folder, capsys, tmp_path):
    run = load_run(folder)
    text, maps = attention_maps(run, "to be", "*")
    assert len(maps.layers) == 6 and all(m.query_labels and m.key_labels for m in maps.all)
    read = [*"to be", "⟨eos⟩"]
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
        ("rnn", ["to"], "no weights to capture"),
    ],
    indirect=["folder"],
)
def test_mistakes_say_what_is_there(folder, argv, says, capsys):
    assert main(["look", str(folder), *argv]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["translation"], indirect=True)
def test_a_translator_shows_its_alignment(folder, tmp_path):
    assert looked(load_run(folder), "to be").layers == ["target → source"]
    with pytest.raises(ShapeError):
        model = build("gpt2", {"vocab_size": 64, "context_length": 4, **SIZES})
        looked(load_run(written(tmp_path / "short", "language", model)), "to be or not")
