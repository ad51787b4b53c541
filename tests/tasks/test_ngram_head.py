"""The linear classifier beside a model: its formula, its fit, and its share, which validation data decide."""

import pytest
import torch
from tests.tasks.examples import write_example

import regard
from regard.baselines.linear_text import C
from regard.errors import NotSupported
from regard.interop import export
from regard.models.ngram_head import NGramHead
from regard.tasks import ClassifyOptions, evaluate, load_run, predict, train
from regard.train import TrainOptions

SMALL = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}


def rows(*texts):
    n_B = torch.tensor([len(text) for text in texts])
    ids_BL = torch.zeros(len(texts), int(n_B.max()), dtype=torch.long)
    for row, text in zip(ids_BL, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    return ids_BL, n_B, None


def test_terms_are_tokens_and_pairs_of_neighbours_without_padding():
    head = NGramHead(1 << 20, 2)
    term_BI, here_BI = head.terms(*rows([5, 6, 5, 6], [6]))
    a, b, c, d, ab, ba, cd = term_BI[0].tolist()
    assert (a, b) == (c, d) and ab == cd and len({a, b, ab, ba}) == 4
    assert here_BI.tolist() == [[True] * 7, [True] + [False] * 6] and term_BI[1, 0] == b
    other, _ = head.terms(*rows([5, 6])[:2], torch.tensor([[0, 1]]))
    assert other[0, 0] == a and other[0, 1] != b  # the second text of a pair has terms of its own


def test_the_logits_are_their_formula():
    torch.manual_seed(0)
    head = NGramHead(64, 3)
    for one in (head.weight, head.bias, head.idf):
        one.data.uniform_(0.1, 1)
    batch = rows([3, 1, 3], [2])
    for row, (term_I, here_I) in enumerate(zip(*head.terms(*batch), strict=True)):
        x_F = torch.zeros(64)
        for term, here in zip(term_I.tolist(), here_I.tolist(), strict=True):
            x_F[term] += here
        length = (head.idf[term_I[here_I]] ** 2).sum().sqrt()  # of the terms as they come
        torch.testing.assert_close(head(*batch)[row], head.weight.T @ (x_F * head.idf / length) + head.bias)


def test_the_fit_is_at_the_minimum_of_its_loss(monkeypatch):
    monkeypatch.setattr("regard.baselines.linear_text.ITERATIONS", 500)
    head, label_E = NGramHead(1 << 12, 2), torch.tensor([1, 0] * 4)
    batch = rows([5, 6, 7], [6, 5], [5, 7], [6, 6, 5], [7, 5, 6], [6, 5, 7], [5, 6], [5, 6, 6])
    head.fit([batch], label_E)
    for one in (head.weight, head.bias):
        one.requires_grad_()
    loss = torch.nn.functional.cross_entropy(head(*batch), label_E, reduction="sum") + head.weight.square().sum() / (2 * C)
    loss.backward()
    assert head.weight.grad.abs().max() < 1e-3 and head.bias.grad.abs().max() < 1e-3 and head.weight.detach().abs().max() > 0.1


def test_the_share_is_that_of_the_better_one():
    head, label_E = NGramHead(8, 2), torch.arange(200) % 2
    right, noise = torch.nn.functional.one_hot(label_E, 2) * 4.0, torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    head.tune(right, noise, label_E)
    assert head.share == 0
    head.tune(noise, right, label_E)
    assert head.share >= 1


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_classifier_with_ngrams_is_never_much_worse_than_they_are(tmp_path, ema):
    """The word that decides comes late in a text of noise; one step is too few for the model, not for counts. The share is tuned for what is kept."""
    lines = [f"{'noise ' * (n % 7)}{'good' if n % 2 else 'bad'} day {n % 13}\t{'yes' if n % 2 else 'no'}\n" for n in range(240)]
    (tmp_path / "data.tsv").write_text("".join(lines))
    options = ClassifyOptions(data=str(tmp_path / "data.tsv"), tokenizer="word", ngram_buckets=4096, shares=(0.2, 0.2))
    found = train("classify", options, TrainOptions(steps=1, average=0, ema=ema), tmp_path / "run", settings=SMALL, progress=False)
    run = load_run(tmp_path / "run")
    assert found.metrics["accuracy"] == 1 and float(run.model.ngrams.share) > 0
    assert evaluate(run).metrics["accuracy"] == 1 and predict(run, ["noise noise bad day 99"])[0].values["labels"][0]["label"] == "no"
    loaded = regard.load(tmp_path / "run")
    assert torch.equal(loaded.ngrams.weight, run.model.ngrams.weight)
    try:
        export(loaded, tmp_path / "exported")
    except NotSupported as refused:
        assert "--ngram-buckets 0" in str(refused)
    else:
        raise AssertionError("it was exported")


def test_training_sees_the_model_alone(tmp_path):
    example = write_example("classify", tmp_path)
    out, more = {}, {"ngram_buckets": 256}
    for name, changes in (("with", more), ("without", {})):
        options = ClassifyOptions(**{**vars(example.options), **changes})
        train("classify", options, TrainOptions(steps=3, average=0), tmp_path / name, settings=example.settings, progress=False)
        out[name] = load_run(tmp_path / name).model
    same = {name: p for name, p in out["with"].named_parameters() if not name.startswith("ngrams")}
    assert all(torch.equal(p, same[name]) for name, p in out["without"].named_parameters())
