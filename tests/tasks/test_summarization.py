"""Summaries: ROUGE against rouge-score itself, copied words as text, batches and rows, late coverage, bad input, what is shown."""

import json
from dataclasses import replace

import pytest
import torch
from rouge_score import rouge_scorer
from tests.tasks.examples import write_example

from regard.cli import main
from regard.data import Splits, Tokenizer, Tokenizers
from regard.data.open_pairs import encode_article
from regard.errors import BadConfig, BadFile, NotSupported
from regard.metrics.rouge import TYPES, Rouge, copied_words, lead, repeated_trigrams, sentences, words
from regard.models import PointerGenerator, build, coverage_loss
from regard.tasks import (
    Summarization,
    SummarizationOptions,
    TaskObjective,
    TextProcessor,
    evaluate,
    load_run,
    predict,
    task_for,
    task_of,
    train,
)
from regard.tasks.measuring import measure_loss
from regard.tasks.summarization import SummaryOptions
from regard.train import Progress, TrainOptions, read_metrics

ENGLISH = [
    ("The cat sat on the mat. It was red!", "It was red, the mat. The cat sat there."),
    ("Return the sum of x_1 and y2; see foo_bar.", "Sum of x_1 and foo_bar"),
    ("nothing in common", "other words"),
    ("one", ""),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learned to copy; 150 small steps."""
    folder = tmp_path_factory.mktemp("summaries")
    example = write_example(Summarization, folder)
    options = TrainOptions(steps=150, lr=0.02, warmup_steps=10, average=0, evaluate_every=75)
    train(
        "summarization", example.options, options, folder / "run", settings={"embedding": 12, "width": 16, "dropout": 0.0}, progress=False
    )
    return folder / "run"


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_rouge_is_that_of_the_package():
    """Its own tokenizer on ASCII, sentences on lines of their own: the same four numbers."""
    oracle = rouge_scorer.RougeScorer(TYPES)
    found = Rouge()([text for _, text in ENGLISH], [right for right, _ in ENGLISH])
    for name in TYPES:
        each = [oracle.score("\n".join(sentences(right)), "\n".join(sentences(text)))[name].fmeasure for right, text in ENGLISH]
        assert found[name] == pytest.approx(100 * sum(each) / len(each), abs=1e-9)
    assert found["rougeL"] != found["rougeLsum"] and "rouge-score:" in Rouge().signature


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Über die Brücke", ["über", "die", "brücke"]),
        ("東京は晴れ", list("東京は晴れ")),
        ("Москва, 2026", ["москва", "2026"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("…", []),
    ],
)
def test_words_of_any_script(text, expected):
    assert words(text) == expected
    assert Rouge()([text], [text])["rouge1"] == (100 if expected else 0)


def test_rouge_score_itself_loses_other_scripts():
    assert rouge_scorer.RougeScorer(["rouge1"]).score("東京は晴れ", "東京は晴れ")["rouge1"].fmeasure == 0


def test_shares_by_hand():
    assert repeated_trigrams(["a b c a b c", "a b"]) == pytest.approx(1 / 4)  # abc bca cab abc
    assert copied_words(["A new word", ""], ["a word.", "x"]) == pytest.approx(2 / 3)
    assert lead("One. Two! 三。四。 Five", 3) == "One. Two! 三。" and sentences("a\nb. c") == ["a", "b.", "c"]


def test_rouge_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rouge_score", None)
    with pytest.raises(NotSupported, match=r"pip install 'regard\[rouge\]'"):
        Rouge()


# -- copied words ------------------------------------------------------------------------------------------------------


def test_unseen_names_are_copied_into_the_text(trained):
    run = load_run(trained)
    assert isinstance(run.model, PointerGenerator) and task_for(PointerGenerator) is Summarization
    found = predict(run, ["today Zoe met Xerxes in town .", "today Bo met Zoe in town ."])
    assert [one.text for one in found] == ["Zoe met Xerxes", "Bo met Zoe"]
    assert run.processor.tokenizer.encode("Zoe Xerxes") == [3, 3]  # neither is in the vocabulary


def test_late_coverage_and_what_was_chosen(trained):
    early, late = read_metrics(trained, "evaluation")[0], read_metrics(trained, "final")[-1]
    assert late["loss_with_coverage"] == pytest.approx(late["loss"] + late["coverage_loss"])
    assert late["loss_with_coverage"] <= early["loss_with_coverage"]


def test_coverage_is_added_when_its_time_has_come():
    tokenizer = Tokenizer.train(["a b c d"] * 2, "word")
    pairs = [("a b c d", "a c"), ("b a", "b")]
    options = SummarizationOptions(coverage=2.0, coverage_start=0.5)
    model = build("pointer_generator", vocab_size=len(tokenizer), embedding=4, width=4, dropout=0.0)
    task = Summarization(options, TextProcessor(Tokenizers(tokenizer)))
    objective = TaskObjective(task, Splits(pairs, pairs, pairs), model)
    batch = objective.batch(objective.batches(0)[0], torch.Generator())
    assert objective.before_step(Progress(share=0.49)) == 1
    before = objective.loss(model, batch)
    objective.before_step(Progress(share=0.5))
    after = objective.loss(model, batch)
    assert float((after.total - before.total).detach()) == pytest.approx(2 * float(before.extra["coverage_loss"]), rel=1e-4)
    weights = model.outputs(batch.source_BM, batch.source_n_B, batch.target_BL[:, :-1]).log_weights_BLM.exp()
    real = torch.arange(weights.shape[1]) < batch.target_n_B[:, None]
    assert float(coverage_loss(weights, real).detach()) == pytest.approx(float(before.extra["coverage_loss"]), rel=1e-5)


def test_the_loss_of_a_batch_is_that_of_its_articles(trained):
    run = load_run(trained)
    pairs = [("today Zoe met Bo in town .", "Zoe met Bo"), ("Zoe", "Zoe"), ("met Quux Quux in", "Quux met Bo in town")]
    together, alone = (measure_loss(task_of(run).with_options(batch_tokens=size), run.model, pairs) for size in (4096, 1))
    assert together == pytest.approx(alone, abs=1e-5) and together["count"] == 12
    scores = task_of(run).score(run, pairs)
    tokens = [one.values["tokens"] for one in scores]
    assert tokens == [4, 2, 6] and -sum(one.values["log_probability"] for one in scores) == pytest.approx(together["loss"], abs=1e-5)


def test_any_tokenizer(tmp_path):
    """Subwords have no unknown words; the model copies them all the same."""
    example = write_example(Summarization, tmp_path)
    for number, (kind, model, settings) in enumerate(
        [("bpe", "pointer_generator", example.settings), ("char", "pointer_transformer", {"width": 8, "heads": 2, "depth": 1, "hidden": 8})]
    ):
        options = replace(example.options, tokenizer=kind, vocab_size=300)
        out = tmp_path / str(number)
        train("summarization", options, TrainOptions(steps=2), out, model=model, settings=settings, progress=False)
        assert evaluate(load_run(out)).metrics["rouge1"] >= 0 and predict(load_run(out), [example.input])[0].values


# -- what is reported and shown ----------------------------------------------------------------------------------------


def test_the_report_has_the_lead_beside_the_model(trained, capsys):
    assert main(["evaluate", str(trained), "--json", "--beam", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["summary"] for row in found["rows"]] == ["model", "lead-1", "lead-3", "reference"]
    assert found["rows"][3]["rouge1"] == 100 and found["rows"][1]["copied_words"] == 1 and found["rows"][0]["rouge1"] == found["rouge1"]


def test_looking_shows_p_gen_and_coverage(trained, tmp_path, capsys):
    assert main(["look", str(trained), "today Zoe met Bo in town ."]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Zoe met Bo\n") and "p_gen 0.0" in text and "← Zoe" in text and "\ncoverage " in text
    assert main(["look", str(trained), "today Zoe met Bo in town .", "--html", str(tmp_path / "look.html")]) == 0
    (drawn,) = task_of(run := load_run(trained)).attention_maps(run, "today Zoe met Bo", None, None, SummaryOptions(beam=1))[1].all
    torch.testing.assert_close(torch.tensor(drawn.key_values.numbers), drawn.weights_BHLM[0, 0].sum(0))


def test_other_commands_refuse(trained, capsys):
    for argv, says in ((["complete", str(trained), "Zoe"], "summarization run"), (["serve", str(trained)], "pointer_generator")):
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1


# -- bad input ---------------------------------------------------------------------------------------------------------

GOOD = '{"article": "one two three four", "highlights": "one"}\n' * 3
BAD = [
    '{"article": "", "highlights": "x"}\n',
    '{"article": "a b"}\n',
    '{"article": "a", "highlights": 3}\n',
    '{"article": "a", "summary": " "}\n',
]


def test_malformed_articles_stop_or_are_counted(tmp_path):
    path = tmp_path / "news.jsonl"
    for bad, says in zip(BAD, ("empty field", "no text in field 'summary'", "no text in field 'highlights'", "empty field"), strict=True):
        path.write_text(GOOD + bad)
        with pytest.raises(BadFile, match=f"news.jsonl, line 4: {says}"):
            Summarization(SummarizationOptions(data=str(path))).read()
    path.write_text("".join(f'{{"article": "text number {n}", "highlights": "{n}"}}\n' for n in range(6)) + "".join(BAD))
    found = Summarization(SummarizationOptions(data=str(path), on_error="skip")).read()
    assert len(found.train) + len(found.valid) + len(found.test) == 6 and "4 of 10 pairs skipped: 2 empty field" in str(found.skipped)


def test_columns_by_their_names(tmp_path):
    (tmp_path / "a.csv").write_text("id,summary,document\n1,short,a long text\n2,brief,another text\n")
    (tmp_path / "b.tsv").write_text("Title\tText\nshort\ta long text\nbrief\tanother text\n")
    for name in ("a.csv", "b.tsv"):
        found = Summarization(SummarizationOptions(data=str(tmp_path / name), shares=(0.0, 0.0))).read()
        assert list(found.train) == [("a long text", "short"), ("another text", "brief")]


def test_long_and_empty_articles(trained, tmp_path, capsys):
    run = load_run(trained)
    long = "today Zoe met Bo in town . " + "Bo met Ada . " * 25_000  # 100,000 words
    (found,) = predict(run, [long])
    assert found.text and len(encode_article(run.processor.tokenizer, long, 400)[0]) == 401
    (tmp_path / "long.tsv").write_text(f"{long}\tZoe met Bo\ntoday Ada met Bo in town .\tAda met Bo\n")
    assert main(["evaluate", str(trained), "--data", str(tmp_path / "long.tsv")]) == 0
    assert "1 articles were cut to their first 400 tokens" in capsys.readouterr().out
    assert predict(run, ["", "…"])[0].text == ""


def test_options_out_of_bounds():
    for wrong in ({"coverage_start": 1.5}, {"max_source_length": 0}, {"coverage": -1.0}):
        with pytest.raises(BadConfig, match=next(iter(wrong))):
            SummarizationOptions(**wrong)
