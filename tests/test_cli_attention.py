"""Choosing attention by name: in Python, in configs, on the command line; settings and sizes of models."""

import json

import pytest

from regard import MultiHead, catalogue, load_run
from regard.attention import LinearAttention, LocalAttention
from regard.cli import main
from regard.errors import BadConfig, NotSupported, UnknownName
from regard.layers.spec import Spec
from regard.models import MODELS, SIZES, build, config_of, find_model, of_size
from regard.patterns import window

TINY = {"vocab_size": 11, "context_length": 16, "width": 16, "heads": 2, "depth": 2}


def mechanisms(model):
    return [str(part.attention.facts.name) for part in model.attentions().values()]


def test_multihead_takes_a_name():
    assert isinstance(MultiHead(16, heads=2, attention="linear").attention, LinearAttention)
    local = MultiHead(16, heads=2, attention="local(radius=3)").attention
    assert isinstance(local, LocalAttention) and local.settings["radius"] == 3
    assert MultiHead(16, heads=2, attention="softmax under window(2)").within == window(2)
    with pytest.raises(UnknownName, match="'linear'"):
        MultiHead(16, heads=2, attention="lineer")
    with pytest.raises(UnknownName, match="no setting of local is called 'raduis'; did you mean 'radius'"):
        MultiHead(16, heads=2, attention="local(raduis=3)")
    capped = MultiHead(16, heads=2, attention="local(radius=3, softcap=5.0)").attention
    assert capped.settings == {"radius": 3, "softcap": 5.0}
    with pytest.raises(UnknownName, match="no setting of local is called 'dropuot'; did you mean 'dropout'"):
        MultiHead(16, heads=2, attention="local(dropuot=0.1)")


def test_a_constructor_that_takes_any_setting_decides_itself():
    class Own(LocalAttention):
        def __init__(self, **settings):
            super().__init__(**settings)

    assert Spec(Own, {"radius": 2}).build(heads=2, head_dim=8, length=9).radius == 2
    with pytest.raises(BadConfig, match="does not take the settings"):
        Spec(Own, {"raduis": 2}).build(heads=2, head_dim=8, length=9)


def test_build_takes_keywords_and_names():
    one, two = build("gpt2", TINY | {"attention": ("linear",)}), build("gpt2", TINY, attention="linear")
    assert one.config == two.config == build("gpt2", **TINY, attention="linear").config
    assert mechanisms(two) == ["linear", "linear"]


def test_all_layers_in_turn():
    model = build("gpt2", TINY, attention_overrides=(("*", "softmax, local(radius=3)"),))
    assert mechanisms(model) == ["softmax", "local"]
    assert build(*config_of(model)).config == model.config == build("gpt2", TINY).with_attention(("softmax", "local(radius=3)")).config
    with pytest.raises(NotSupported, match="no MultiHead"):
        build("rnn_lm", vocab_size=11, attention_overrides=(("*", "linear"),))


def test_one_number_stands_for_both_depths():
    model = build("transformer", source_vocab_size=9, target_vocab_size=9, width=16, heads=2, depth=1)
    assert model.config.depth == (1, 1)
    with pytest.raises(BadConfig, match="depth"):
        build("transformer", source_vocab_size=9, target_vocab_size=9, depth="two")


def test_sizes_are_names_of_models():
    assert find_model("gpt2-small") is find_model("gpt2")
    small = build("llama-tiny", vocab_size=7, depth=1)
    assert small.config == of_size("llama-tiny", vocab_size=7, depth=1).config and small.config.width == SIZES["llama-tiny"].width
    with pytest.raises(UnknownName, match="'gpt2-small'"):
        build("gpt2-smal", vocab_size=7)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.facts.name)
def test_every_setting_is_explained(model, capsys):
    rows = catalogue.settings(model.Config)
    assert [row["name"] for row in rows if not row["meaning"]] == []
    assert main(["show", model.facts.name]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{row['name']} " in out for row in rows) and "attention_overrides" not in out


def test_show_a_recipe(capsys):
    recipe = catalogue.recipes()["memory2020"]
    assert main(["show", "memory2020", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == recipe.question and found["claims"] == [claim.text for claim in recipe.claims]
    assert main(["show", "memory2020"]) == 0
    out = capsys.readouterr().out
    assert recipe.question in out and "seconds on two CPU cores" in out and "regard run memory2020" in out


# -- on the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}: the square of {n} is {n * n}.\n" for n in range(200)))
    return path


def train(text, out, *options):
    small = ("--tokenizer", "char", "--context-length", "16", "--batch-size", "4", "--steps", "2", "--quiet")
    return main(["train", "language", "--data", str(text), "--out", str(out), *small, *options])


SMALL = ("--set", "width=16", "--set", "heads=2", "--set", "depth=2")


def test_attention_of_a_training(text, tmp_path, capfd):
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    assert train(text, first, *SMALL, "--attention", "softmax,local(radius=3)") == 0
    assert mechanisms(load_run(first).model) == ["softmax", "local"]
    assert train(text, second, "--init-from", str(first), "--attention", "linear") == 0
    assert "Attention replaced by linear in 2 layers" in capfd.readouterr().err
    assert mechanisms(load_run(second).model) == ["linear", "linear"]
    assert main(["swap", str(first), "performer", "--layers", "1", "--out", str(third)]) == 0
    assert "replaced by performer in 1 layer of" in capfd.readouterr().out
    assert mechanisms(load_run(third).model) == ["softmax", "performer"]
    assert main(["evaluate", str(third)]) == 0
    assert train(text, first, "--resume", "--steps", "3") == 0, "a run with another attention resumes"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attention", "lineer"], "no mechanism is called 'lineer'"),
        (["--attention", "linformer"], "does not fit"),
        (["--model", "transformer"], "not a model for language; use one of rnn_lm, gpt"),
        (["--set", "widht=16"], "did you mean 'width'"),
        (["--model", "gpt2-smal"], "did you mean 'gpt2-small'"),
    ],
)
def test_wrong_choices_take_one_line(text, tmp_path, options, message, capsys):
    assert train(text, tmp_path / "run", *options) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_setting_of_the_run_to_start_from_is_fixed(text, tmp_path, capsys):
    assert train(text, tmp_path / "first", *SMALL) == 0
    assert train(text, tmp_path / "second", "--init-from", str(tmp_path / "first"), "--set", "width=32") == 2
    assert "that run has width=16" in capsys.readouterr().err
