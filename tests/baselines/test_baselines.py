"""Baselines against their definitions: loops over counts, scikit-learn, distances one by one."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.baselines import LinearText, NGram, linear_text, most_frequent, nearest_neighbour

# -- n-grams -----------------------------------------------------------------------------------------------------------


def witten_bell(train, context, token, vocabulary, order):
    """p of a token by the recursive definition."""
    if order == 0:
        return 1 / vocabulary
    n = order - 1
    h = tuple(context[len(context) - n :])
    after = Counter(train[i + n] for i in range(len(train) - n) if tuple(train[i : i + n]) == h)
    lower = witten_bell(train, context, token, vocabulary, n)
    return (after[token] + len(after) * lower) / (after.total() + len(after)) if after else lower


@pytest.mark.parametrize("order", [1, 2, 4])
def test_ngrams_are_their_definition(order):
    draw = random.Random(order)
    train, text = ([draw.choice([0, 0, 1, 2, 4]) for _ in range(n)] for n in (60, 17))
    expected = 0.0
    for i in range(1, len(text)):
        expected -= math.log(witten_bell(train, text[:i], text[i], 5, min(order, i + 1)))
    found = NGram(np.array(train), 5, order).nats(np.array(text))
    assert found == pytest.approx(expected, rel=1e-12)


def test_ngrams_are_probabilities():
    draw = np.random.default_rng(0)
    model = NGram(draw.integers(0, 7, 400), 7, 3)
    context = [3, 1, 5]
    total = sum(math.exp(-(model.nats(np.array([*context, token])) - model.nats(np.array(context)))) for token in range(7))
    assert total == pytest.approx(1.0)


# -- texts -------------------------------------------------------------------------------------------------------------

TEXTS = [
    "a warm and funny film",
    "warm , moving , funny",
    "a dull and lifeless film",
    "dull , dull , dull",
    "not funny , not warm",
    "not dull at all , moving",
    "a lifeless plot",
    "a moving plot",
]
LABELS = [1, 1, 0, 0, 0, 1, 0, 1]


def test_a_linear_classifier_learns_words_and_pairs_of_words():
    model = LinearText.fit([(one,) for one in TEXTS], LABELS, 2)
    assert model.logits([(one,) for one in TEXTS]).argmax(1).tolist() == LABELS
    assert "not dull" not in model.terms and "not" in model.terms  # of one document, and of two
    assert model.logits([("nothing known here",), ("",)]).isfinite().all()


def test_a_linear_classifier_is_at_the_minimum_of_its_loss(monkeypatch):
    monkeypatch.setattr(linear_text, "ITERATIONS", 500)
    model = LinearText.fit([(one,) for one in TEXTS], LABELS, 2)
    weight, bias = model.weight_TN.clone().requires_grad_(), model.bias_N.clone().requires_grad_()
    moved = LinearText(model.terms, model.idf_T, weight, bias)
    loss = F.cross_entropy(moved.logits([(one,) for one in TEXTS]), torch.tensor(LABELS), reduction="sum")
    (loss + weight.square().sum() / (2 * linear_text.C)).backward()
    assert weight.grad.abs().max() < 1e-3 and bias.grad.abs().max() < 1e-3


def test_a_linear_classifier_is_that_of_scikit_learn(monkeypatch):
    text, linear = pytest.importorskip("sklearn.feature_extraction.text"), pytest.importorskip("sklearn.linear_model")
    monkeypatch.setattr(linear_text, "ITERATIONS", 500)
    vectorizer = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2, token_pattern=linear_text.WORD.pattern)
    regression = linear.LogisticRegression(C=linear_text.C, tol=1e-8, max_iter=10_000)
    labels = [one % 3 for one in range(len(TEXTS))]
    regression.fit(vectorizer.fit_transform(TEXTS), labels)
    expected = torch.from_numpy(regression.predict_proba(vectorizer.transform(TEXTS))).float()
    found = LinearText.fit([(one,) for one in TEXTS], labels, 3).logits([(one,) for one in TEXTS]).softmax(1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_texts_of_a_pair_have_terms_of_their_own():
    pairs = [("a dog", "a cat"), ("a cat", "a dog")] * 3
    model = LinearText.fit(pairs, [0, 1] * 3, 2)
    assert model.logits(pairs).argmax(1).tolist() == [0, 1] * 3


# -- images ------------------------------------------------------------------------------------------------------------


def test_the_nearest_neighbour_is_the_nearest():
    draw = np.random.default_rng(0)
    train, test = (draw.integers(0, 256, (n, 3, 5, 1)).astype(np.uint8) for n in (40, 11))
    label = draw.integers(0, 4, 40)
    expected = [label[np.argmin([((one.astype(float) - each) ** 2).sum() for each in train])] for one in test]
    assert nearest_neighbour(train, label, test).tolist() == expected
    assert most_frequent(np.array([2, 0, 2, 1])) == 2
