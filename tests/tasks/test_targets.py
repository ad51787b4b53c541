"""Spans of words by seqeval's rules, several labels per text, values, adapters, and poolers."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.cli import main
from regard.layers import LoRALinear, add_lora, merge_lora
from regard.metrics import multi_label_metrics, value_metrics
from regard.metrics.spans import find_spans, has_spans, span_metrics
from regard.models import build
from regard.tasks import Classify, ClassifyOptions, Label, LabelOptions, LanguageOptions, evaluate, load_run, predict, train
from regard.tasks.options import ClassesOptions
from regard.train import TrainOptions
from regard.train.parameters import load_parameters, parameters_of

TAGS = ["O", *(f"{place}-{kind}" for place in "BIES" for kind in ("PER", "LOC"))]
QUICK = TrainOptions(steps=4, evaluate_every=2, average=0, warmup_steps=1, lr=1e-2)
LONGER = TrainOptions(steps=200, evaluate_every=100, average=0, warmup_steps=20, lr=3e-3)
WIDER = {"width": 32, "heads": 2, "depth": 1, "hidden": 64, "dropout": 0.0}
SMALL = {"width": 16, "heads": 2, "depth": 2}

# -- spans -------------------------------------------------------------------------------------------------------------


def test_spans_by_hand():
    assert find_spans(["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]) == [("PER", 0, 1), ("LOC", 3, 3), ("LOC", 4, 4)]
    assert find_spans(["I-PER", "I-LOC", "E-LOC", "I-LOC", "S-PER"]) == [("PER", 0, 0), ("LOC", 1, 2), ("LOC", 3, 3), ("PER", 4, 4)]
    assert has_spans(["O", "B-PER", "I-PER"]) and not has_spans(["O", "NOUN"]) and not has_spans(["O"])
    found = span_metrics([["B-PER", "I-PER", "O"]], [["B-PER", "O", "B-LOC"]])
    assert found == {"precision_spans": 0.0, "recall_spans": 0.0, "f1_spans": 0.0}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=12), min_size=1, max_size=4))
def test_spans_are_those_of_seqeval(sentences):
    seqeval = pytest.importorskip("seqeval.metrics")
    from seqeval.metrics.sequence_labeling import get_entities

    true, predicted = ([[pair[side] for pair in one] for one in sentences] for side in (0, 1))
    assert all(find_spans(one) == get_entities(one) for one in true)
    found = span_metrics(true, predicted)
    assert found["f1_spans"] == pytest.approx(seqeval.f1_score(true, predicted, zero_division=0))
    assert found["precision_spans"] == pytest.approx(seqeval.precision_score(true, predicted, zero_division=0))
    assert found["recall_spans"] == pytest.approx(seqeval.recall_score(true, predicted, zero_division=0))


def test_labels_of_words_end_to_end(tmp_path, capsys):
    words = "".join(f"Mr\tO\nSmith{n}\tB-PER\nJones\tI-PER\nin\tO\nRome\tB-LOC\n\n" for n in range(40))
    (tmp_path / "a.conll").write_text(words)
    options = LabelOptions(data=str(tmp_path / "a.conll"), tokenizer="char", max_length=16, batch_size=8)  # sentences of several rows
    train(Label, options, QUICK.replace(steps=40), tmp_path / "run", settings=SMALL | {"hidden": 16}, progress=False)
    assert main(["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "out.conll"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    lines = (tmp_path / "out.conll").read_text().split("\n\n")
    cells = [[line.split("\t") for line in sentence.split("\n")] for sentence in lines if sentence.strip()]
    assert all([row[0] for row in one][2] == "Jones" and [row[1] for row in one] == ["O", "B-PER", "I-PER", "O", "B-LOC"] for one in cells)
    seqeval = pytest.importorskip("seqeval.metrics")
    true, found = ([[row[side] for row in one] for one in cells] for side in (1, 2))
    assert report["f1_spans"] == pytest.approx(seqeval.f1_score(true, found, zero_division=0))
    assert main(["predict", str(tmp_path / "run"), "Mr Jones"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["Mr", "Jones", ""]


# -- several labels, values --------------------------------------------------------------------------------------------


def test_metrics_are_those_of_sklearn_and_scipy():
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    true, predicted = (rng.integers(0, 2, (30, 4)).astype(float) for _ in range(2))
    found = multi_label_metrics(true, predicted)
    assert found["f1"] == pytest.approx(metrics.f1_score(true, predicted, average="macro"))
    assert found["f1_micro"] == pytest.approx(metrics.f1_score(true, predicted, average="micro"))
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted))
    a, b = rng.integers(0, 6, 50).astype(float), rng.normal(size=50).round(1)  # with ties
    values = value_metrics(a, b)
    assert values["pearson"] == pytest.approx(stats.pearsonr(a, b)[0]) and values["spearman"] == pytest.approx(stats.spearmanr(a, b)[0])
    assert values["mse"] == pytest.approx(((a - b) ** 2).mean()) and value_metrics(a, np.zeros(50))["pearson"] == 0.0


def test_any_number_of_labels(tmp_path, capsys):
    rows = [(f"{'red' * (n % 2)} {'big' * (n % 3 > 0)} item {n}", ["red"] * (n % 2) + ["big"] * (n % 3 > 0)) for n in range(120)]
    table, objects = tmp_path / "a.csv", tmp_path / "a.jsonl"
    table.write_text("text,label\n" + "".join(f"{text},{'|'.join(labels)}\n" for text, labels in rows))
    objects.write_text("".join(json.dumps({"text": text, "label": labels}) + "\n" for text, labels in rows))
    options = ClassifyOptions(data=str(objects), multi_label=True, tokenizer="word", max_length=16, batch_size=8, shares=(0.2, 0.1))
    one, two = (Classify(replace(options, data=str(path))) for path in (table, objects))
    for first, second in zip(*(task.read().train for task in (one, two)), strict=True):
        assert first.texts == second.texts and one.labels_of(first) == two.labels_of(second)
    result = train(Classify, options, LONGER, tmp_path / "run", settings=WIDER, progress=False)
    assert result.metrics["f1_micro"] > 0.9
    run = load_run(tmp_path / "run")
    assert run.processor.labels == ("big", "red")
    both, none = predict(run, ["red big item 7", "item 6"])
    assert [one["label"] for one in both.values["labels"]] and {one["label"] for one in both.values["labels"]} == {"big", "red"}
    assert none.text == "" and none.values["labels"] == []
    assert {row[0] for row in evaluate(run).rows} == {"big", "red"}


def test_values(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,score\n" + "".join(f"{'good ' * (n % 4)}thing {n},{n % 4 - 0.5}\n" for n in range(120)))
    options = ClassifyOptions(
        data=str(path), fields=("text", "score"), regression=True, tokenizer="word", max_length=16, batch_size=8, shares=(0.2, 0.1)
    )
    result = train(Classify, options, LONGER, tmp_path / "run", settings=WIDER, progress=False)
    assert result.metrics["pearson"] > 0.9 and set(result.metrics) == {"loss", "pearson", "spearman", "mse"}
    low, high = predict(load_run(tmp_path / "run"), ["thing", "good good good thing"])
    transformers = pytest.importorskip("transformers")
    from regard.interop import export

    export(load_run(tmp_path / "run"), tmp_path / "exported")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported")
    assert theirs.config.problem_type == "regression" and theirs.config.num_labels == 1
    assert low.values["value"] < high.values["value"] and math.isclose(float(high.text), high.values["value"], abs_tol=1e-4)
    path.write_text("text,score\n" + "a,high\nb,low\n" * 20)
    from regard.errors import NotSupported

    with pytest.raises(NotSupported, match=r"'(high|low)' is not a number.*--regression"):
        train(Classify, options, QUICK, tmp_path / "other", settings=SMALL, progress=False)


# -- adapters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("targets", ["qv", "all"])
def test_a_merged_model_computes_what_the_adapted_one_does(name, targets):
    settings = (
        SMALL | {"vocab_size": 30} | {"gpt2": {}, "bert": {"hidden": 32}, "llama": {"hidden": 32, "kv_heads": 1, "head_dim": 8}}[name]
    )
    plain, adapted = build(name, settings).eval(), build(name, settings).eval()
    load_parameters(adapted, parameters_of(plain))
    ids_BL = torch.randint(0, 30, (2, 7))
    before = plain(ids_BL)
    count = add_lora(adapted, 3, targets)
    assert torch.equal(adapted(ids_BL), before)  # B = 0
    trained = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in n for n in trained) and count == sum(adapted.get_parameter(n).numel() for n in trained)
    for n in trained:
        nn.init.normal_(adapted.get_parameter(n), std=0.5)
    after = adapted(ids_BL)
    assert not torch.allclose(after, before, atol=1e-3)
    load_parameters(plain, merge_lora(adapted, parameters_of(adapted)))
    torch.testing.assert_close(plain(ids_BL), after, atol=1e-4, rtol=1e-4)
    if targets == "qv":  # k is as it was
        layer = next(part for part in adapted.modules() if isinstance(part, LoRALinear))
        q = layer.parts[0][0]
        change = layer.merged(layer.weight, layer.lora_a, layer.lora_b) - layer.weight
        k = layer.parts[1][0]
        assert change[:q].abs().sum() > 0 and change[q : q + k].abs().sum() == 0 and change[q + k :].abs().sum() > 0


def test_adapters_end_to_end(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n} of a small text.\n" for n in range(200)))
    text = LanguageOptions(data=str(tmp_path / "a.txt"), tokenizer="char", context_length=16, batch_size=8, valid_tokens=50)
    train("language", text, QUICK, tmp_path / "base", settings=SMALL, progress=False)
    from dataclasses import replace

    tuned = replace(text, lora_rank=2)
    train("language", tuned, QUICK, tmp_path / "tuned", init_from=tmp_path / "base", progress=False)
    before, after = (parameters_of(load_run(tmp_path / name).model) for name in ("base", "tuned"))
    assert before.keys() == after.keys()  # merged
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.endswith("qkv.weight") for name in changed)
    again = train("language", None, QUICK.replace(steps=8), tmp_path / "tuned", resume=True, progress=False)
    assert again.steps == 8
    from regard.errors import BadConfig

    with pytest.raises(BadConfig, match="--lora-rank 2 adapts a pretrained model; name it with --init-from"):
        train("language", tuned, QUICK, tmp_path / "none", settings=SMALL, progress=False)


def test_a_classifier_of_texts_has_a_pooler(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n} of a small text.\n" for n in range(200)))
    from regard.tasks import MaskedOptions

    masked = MaskedOptions(data=str(tmp_path / "a.txt"), tokenizer="char", max_length=16, batch_size=8, valid_rows=4)
    train("masked", masked, QUICK, tmp_path / "encoder", settings=SMALL | {"hidden": 16}, progress=False)
    (tmp_path / "a.tsv").write_text("".join(f"line {n}\t{'even' if n % 2 == 0 else 'odd'}\n" for n in range(60)))
    options = ClassifyOptions(data=str(tmp_path / "a.tsv"), max_length=16, lora_rank=2, lora_targets="all")
    train(Classify, options, QUICK, tmp_path / "run", init_from=tmp_path / "encoder", progress=False)
    run = load_run(tmp_path / "run")
    assert run.model.body.pooler is not None and run.config.settings["pooler"] is True
    pytest.importorskip("transformers")
    from regard.interop import export

    export(run, tmp_path / "exported")
    assert (tmp_path / "exported" / "model.safetensors").exists()


def test_a_unigram_vocabulary_is_exported_with_what_it_puts_around_texts(tmp_path):
    transformers = pytest.importorskip("transformers")
    from regard.interop import export

    (tmp_path / "a.tsv").write_text("".join(f"the item number {n} is here\t{'even' if n % 2 == 0 else 'odd'}\n" for n in range(60)))
    options = ClassifyOptions(data=str(tmp_path / "a.tsv"), max_length=32, tokenizer="unigram", lowercase=True)
    train(Classify, options, QUICK, tmp_path / "run", settings=SMALL | {"hidden": 16}, progress=False)
    run = load_run(tmp_path / "run")
    export(run, tmp_path / "exported")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    with torch.no_grad():
        p_N = theirs(**read("The ITEM is ☃ here", return_tensors="pt")).logits[0].softmax(-1)
    found = {one["label"]: one["probability"] for one in predict(run, ["The ITEM is ☃ here"], ClassesOptions(nbest=2))[0].values["labels"]}
    assert [found[label] for label in run.processor.labels] == pytest.approx(p_N.tolist(), abs=1e-5)
