"""Fine-tuned encoders in the files of transformers: the same logits from its own classes, and clear refusals."""

import json

import pytest
import torch
from tests.interop.conftest import edit_config, randomize

from regard import load
from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import NotSupported, RegardError
from regard.interop.checkpoints import export
from regard.models import Classifier, build
from regard.runs import save
from regard.tasks import TextProcessor, find_task, make_run

transformers = pytest.importorskip("transformers", reason="the oracle")

N, SIZES = 37, {"vocab_size": 37, "max_length": 40, "width": 24, "depth": 2, "hidden": 20}
BODIES = {
    "bert": {"heads": 3},
    "bert, bare": {"heads": 3, "mlm_head": False, "nsp_head": False},
    "bert, narrow": {"heads": 3, "embedding_width": 10, "nsp_head": False, "pooler": False},  # an ELECTRA
    "albert": {"heads": 3, "embedding_width": 10},
    "mpnet": {"heads": 3, "segments": 0, "nsp_head": False},
    "fnet": {},
    "longformer_encoder": {"heads": 3, "window": [4]},
    "big_bird": {"heads": 3, "block": 4},
    "nystromformer": {"heads": 3, "nsp_head": False, "pooler": False, "landmarks": 40, "segmented": 64, "kernel": 5},
}


def make_classifier(name, each, **changes):
    torch.manual_seed(0)
    return randomize(Classifier(build(name.partition(",")[0], {**SIZES, **BODIES[name], **changes}), 3, each=each))


@pytest.mark.parametrize(
    ("name", "each"), [(name, True) for name in BODIES] + [(name, False) for name in ("bert", "bert, bare", "albert", "mpnet", "fnet", "longformer_encoder")]
)  # fmt: skip
@torch.no_grad()
def test_logits_match_transformers(name, each, tmp_path):
    model = make_classifier(name, each)
    export(model, tmp_path, ["x", "y", "z"])
    kind = transformers.AutoModelForTokenClassification if each else transformers.AutoModelForSequenceClassification
    hf, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert hf.config.id2label == {0: "x", 1: "y", 2: "z"} and hf.config.architectures == [type(hf).__name__]
    ids = torch.randint(4, N, (2, 32), generator=torch.Generator().manual_seed(2))
    more = {}
    if name == "longformer_encoder" and each:  # over there a caller says which tokens look globally; classifiers of texts do so themselves
        more["global_attention_mask"] = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    mine, other = model(ids, torch.tensor([32, 32])), hf.eval()(ids, **more).logits
    assert mine.shape == other.shape and (mine - other).abs().max() <= 1e-5
    hf.save_pretrained(tmp_path / "again")  # and back, from files of its own
    back = load(tmp_path / "again")
    assert isinstance(back, Classifier) and back.each == each and torch.equal(back(ids, torch.tensor([32, 32])), mine)


@pytest.mark.parametrize("stem", ["XLMRoberta", "Camembert"])
@torch.no_grad()
def test_classifiers_of_relatives_of_roberta(stem, tmp_path):
    sizes = {"vocab_size": N, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    config = getattr(transformers, f"{stem}Config")(**sizes, max_position_embeddings=42, num_labels=3)
    hf = randomize(getattr(transformers, f"{stem}ForSequenceClassification")(config))
    hf.save_pretrained(tmp_path / "hf")
    mine, ids = load(tmp_path / "hf"), torch.randint(4, N, (2, 32), generator=torch.Generator().manual_seed(2))
    assert (mine(ids, torch.tensor([32, 32])) - hf(ids).logits).abs().max() <= 1e-5
    export(mine, tmp_path / "back")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(again(ids).logits, hf(ids).logits)


@pytest.mark.parametrize("task", ["classify", "label"])
def test_an_imported_classifier_predicts_and_is_judged(task, tmp_path, capsys):
    tokenizer = Tokenizer.train(["good film, bad film"] * 3, "bpe", 300)
    body = build("bert", {**SIZES, **BODIES["bert"], "vocab_size": len(tokenizer) + 1})
    model, run, out, again = randomize(Classifier(body, 2, each=task == "label")), *(tmp_path / name for name in ("run", "out", "again"))
    save(make_run(task, model, TextProcessor(Tokenizers(tokenizer), ("no", "yes")), find_task(task).Options(data="none.jsonl")), run)
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
    assert main(["evaluate", str(again)]) == 2 and "no data of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["BigBirdForSequenceClassification"]}, "is not supported; supported are"),
        ({"problem_type": "regression"}, "only single-label"),
        ({"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}}, "2 labels and scores for 3"),
        ({"id2label": {"first": "x", "1": "y"}}, "expected a label per number"),
        ({"id2label": ["x", "y", "z"]}, "expected a label per number"),
    ],
)
def test_unsupported_classifiers_are_refused(changes, says, tmp_path):
    export(make_classifier("bert", False), tmp_path, ["x", "y", "z"])
    edit_config(tmp_path, **changes)
    with pytest.raises(RegardError, match=says):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "each", "changes", "says"),
    [
        ("big_bird", False, {}, "no text classifier that computes what this big_bird"),
        ("nystromformer", False, {}, "no text classifier"),
        ("big_bird", True, {"max_length": 80}, "random blocks"),
        ("bert", False, {"pooler": False, "nsp_head": False}, "pooler"),
    ],
)
def test_what_would_differ_is_refused(name, each, changes, says, tmp_path):
    with pytest.raises(NotSupported, match=says):
        export(make_classifier(name, each, **changes), tmp_path / "out")


@pytest.mark.parametrize("each", [True, False])
def test_decoders_are_refused(each, tmp_path):
    model = Classifier(build("gpt2", {"vocab_size": N, "width": 24, "heads": 3, "depth": 1}), 2, each=each)
    with pytest.raises(NotSupported, match="supported are albert, bert"):
        export(model, tmp_path / "out")


@torch.no_grad()
def test_a_run_and_its_tokenizer(tmp_path, capsys):
    """`regard export`, and transformers does the rest from text on: tokens framed as in training, labels by name."""
    tokenizer = Tokenizer.train(["good film, bad film"] * 3, "bpe", 300)
    body = build("bert", {**SIZES, **BODIES["bert"], "vocab_size": len(tokenizer) + 1})
    model, run, out = randomize(Classifier(body, 2)), tmp_path / "run", tmp_path / "out"
    save(make_run("classify", model, TextProcessor(Tokenizers(tokenizer), ("no", "yes"))), run)
    assert isinstance(load(run), Classifier)
    assert main(["export", str(run), "--to", "huggingface", "--out", str(out)]) == 0
    assert "tokenizer.json" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["label2id"] == {"no": 0, "yes": 1}
    hf, reader = transformers.AutoModelForSequenceClassification.from_pretrained(out), transformers.AutoTokenizer.from_pretrained(out)
    given = reader("good film", "bad film", return_tensors="pt")
    ids, kind = given["input_ids"], given["token_type_ids"]
    first, second = (tokenizer.encode(text) for text in ("good film", "bad film"))
    assert ids.tolist() == [[1, *first, 2, *second, 2]] and kind.tolist() == [[0] * (len(first) + 2) + [1] * (len(second) + 1)]
    assert (hf.eval()(**given).logits - model(ids, torch.tensor([ids.shape[1]]), kind)).abs().max() <= 1e-5
    assert main(["complete", str(run), "x"]) == 2 and "a classify run" in capsys.readouterr().err


@torch.no_grad()
def test_a_longformer_with_our_vocabulary(tmp_path):
    """Its padding is token 0, and token 1 begins every text; Longformer's own vocabularies have them the other way round."""
    tokenizer = Tokenizer.train([], "byte", 260)
    body = randomize(build("longformer_encoder", {**SIZES, **BODIES["longformer_encoder"], "vocab_size": len(tokenizer) + 1})).eval()
    save(make_run("masked", body, TextProcessor(Tokenizers(tokenizer))), tmp_path)
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    hf = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    ids_BL = torch.tensor([[1, *tokenizer.encode("good"), 2]])
    first_BL = torch.zeros_like(ids_BL).index_fill(1, torch.tensor([0]), 1)  # which tokens are global is said in each call there
    assert (hf(ids_BL, global_attention_mask=first_BL).logits - body(ids_BL)).abs().max() <= 1e-5
