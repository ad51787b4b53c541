"""Fine-tuned encoders in the files of transformers: the same logits from its own classes, and clear refusals."""

import json

import pytest
import torch
from safetensors.torch import save_file

from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import NotSupported, RegardError
from regard.interop.checkpoints import export, load
from regard.models import Labeller, build, config_of
from regard.tasks.run import write_config
from regard.train.weights import weights_of

transformers = pytest.importorskip("transformers", reason="the oracle")

N, SIZES = 37, {"vocab": 37, "length": 40, "width": 24, "depth": 2, "hidden": 20}
BODIES = {
    "bert": {"heads": 3},
    "bert, bare": {"heads": 3, "words": False, "sentences": False},
    "fnet": {},
    "longformer_encoder": {"heads": 3, "window": [4]},
    "big_bird": {"heads": 3, "block": 4},
    "nystromformer": {"heads": 3, "sentences": False, "pooler": False, "landmarks": 40, "segmented": 64, "kernel": 5},
}


def shaken(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2, generator=generator)
    return model.eval()


def labeller(name, each, **changes):
    torch.manual_seed(0)
    return shaken(Labeller(build(name.partition(",")[0], {**SIZES, **BODIES[name], **changes}), 3, each=each))


@pytest.mark.parametrize(
    ("name", "each"), [(name, True) for name in BODIES] + [(name, False) for name in ("bert", "bert, bare", "fnet", "longformer_encoder")]
)  # fmt: skip
@torch.no_grad()
def test_logits_are_theirs(name, each, tmp_path):
    model = labeller(name, each)
    export(model, tmp_path, ["x", "y", "z"])
    kind = transformers.AutoModelForTokenClassification if each else transformers.AutoModelForSequenceClassification
    theirs, told = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.id2label == {0: "x", 1: "y", 2: "z"} and theirs.config.architectures == [type(theirs).__name__]
    ids = torch.randint(4, N, (2, 32), generator=torch.Generator().manual_seed(2))
    more = {}
    if name == "longformer_encoder" and each:  # over there a caller says which tokens look globally; classifiers of texts do so themselves
        more["global_attention_mask"] = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    mine, other = model(ids, torch.tensor([32, 32])), theirs.eval()(ids, **more).logits
    assert mine.shape == other.shape and (mine - other).abs().max() <= 1e-5
    theirs.save_pretrained(tmp_path / "again")  # and back, from files of its own
    back = load(tmp_path / "again")
    assert isinstance(back, Labeller) and back.each == each and torch.equal(back(ids, torch.tensor([32, 32])), mine)


@pytest.mark.parametrize("task", ["classify", "label"])
def test_an_imported_classifier_predicts_and_is_judged(task, tmp_path, capsys):
    tokenizer = Tokenizer.train(["good film, bad film"] * 3, "bpe", 300)
    body = build("bert", {**SIZES, **BODIES["bert"], "vocab": len(tokenizer) + 1})
    model, run, out, again = shaken(Labeller(body, 2, each=task == "label")), *(tmp_path / name for name in ("run", "out", "again"))
    write_config(run, task, {"task": task, "labels": ["no", "yes"], "data": "none.jsonl"}, config_of(body), {})
    save_file(weights_of(model), run / "model.safetensors")
    Tokenizers(tokenizer).save(run / "tokenizer.json")
    assert main(["export", str(run), "--to", "huggingface", "--out", str(out)]) == 0
    assert main(["import", str(out), "--out", str(again)]) == 0
    capsys.readouterr()
    data, answers = tmp_path / "data.jsonl", []
    example = {"text": "good film", "label": "yes"} if task == "classify" else {"words": ["good", "film"], "labels": ["yes", "no"]}
    data.write_text(json.dumps(example))
    for folder in (run, again):
        assert main(["predict", str(folder), "good film"]) == main(["evaluate", str(folder), "--data", str(data)]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] and "accuracy" in answers[0]
    assert main(["evaluate", str(again)]) == 2 and "no examples of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["BigBirdForSequenceClassification"]}, "is not read; of models that classify"),
        ({"problem_type": "regression"}, "only one of several labels"),
        ({"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}}, "2 labels and scores for 3"),
        ({"id2label": {"first": "x", "1": "y"}}, "expected names by number"),
        ({"id2label": ["x", "y", "z"]}, "expected names by number"),
    ],
)
def test_classifiers_that_are_not_read_are_named(changes, says, tmp_path):
    export(labeller("bert", False), tmp_path, ["x", "y", "z"])
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | changes))
    with pytest.raises(RegardError, match=says):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "each", "changes", "says"),
    [
        ("big_bird", False, {}, "no class that classifies texts as this big_bird"),
        ("nystromformer", False, {}, "no class that classifies"),
        ("big_bird", True, {"length": 80}, "random blocks"),
        ("bert", False, {"pooler": False, "sentences": False}, "pooler"),
    ],
)
def test_what_would_differ_is_refused(name, each, changes, says, tmp_path):
    with pytest.raises(NotSupported, match=says):
        export(labeller(name, each, **changes), tmp_path / "out")


@pytest.mark.parametrize("each", [True, False])
def test_decoders_are_refused(each, tmp_path):
    model = Labeller(build("gpt2", {"vocab": N, "width": 24, "heads": 3, "depth": 1}), 2, each=each)
    with pytest.raises(NotSupported, match="those that can be written: bert"):
        export(model, tmp_path / "out")


@torch.no_grad()
def test_a_run_and_its_tokenizer(tmp_path, capsys):
    """`regard export`, and transformers does the rest from text on: tokens framed as in training, labels by name."""
    tokenizer = Tokenizer.train(["good film, bad film"] * 3, "bpe", 300)
    body = build("bert", {**SIZES, **BODIES["bert"], "vocab": len(tokenizer) + 1})
    model, run, out = shaken(Labeller(body, 2)), tmp_path / "run", tmp_path / "out"
    write_config(run, "classify", {"labels": ["no", "yes"]}, config_of(body), {})
    save_file(weights_of(model), run / "model.safetensors")
    Tokenizers(tokenizer).save(run / "tokenizer.json")
    assert isinstance(load(run), Labeller)
    assert main(["export", str(run), "--to", "huggingface", "--out", str(out)]) == 0
    assert "tokenizer.json" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["label2id"] == {"no": 0, "yes": 1}
    theirs, reader = transformers.AutoModelForSequenceClassification.from_pretrained(out), transformers.AutoTokenizer.from_pretrained(out)
    given = reader("good film", "bad film", return_tensors="pt")
    ids, kind = given["input_ids"], given["token_type_ids"]
    first, second = (tokenizer.encode(text) for text in ("good film", "bad film"))
    assert ids.tolist() == [[1, *first, 2, *second, 2]] and kind.tolist() == [[0] * (len(first) + 2) + [1] * (len(second) + 1)]
    assert (theirs.eval()(**given).logits - model(ids, torch.tensor([ids.shape[1]]), kind)).abs().max() <= 1e-5
    assert main(["complete", str(run), "x"]) == 2 and "a classifier" in capsys.readouterr().err


def test_a_longformer_with_our_vocabulary(tmp_path, capsys):
    """Over there token 1 is padding whatever the config says of the rest; here it begins every text."""
    tokenizer = Tokenizer.train([], "bytes", 260)
    body = build("longformer_encoder", {**SIZES, **BODIES["longformer_encoder"], "vocab": len(tokenizer) + 1})
    write_config(tmp_path, "masked", {}, config_of(body), {})
    save_file(weights_of(body), tmp_path / "model.safetensors")
    Tokenizers(tokenizer).save(tmp_path / "tokenizer.json")
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "token 1" in capsys.readouterr().err
