"""Exact match and F1 by SQuAD's rules: pairs worked by hand, and torchmetrics, which we did not write."""

import random

import pytest

from regard.metrics.squad import best_threshold, exact_match, f1, normalised, score_answer, score_answers, sliding_window


def asked(*golds: str) -> tuple[str, ...]:
    return golds


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The Norman  conquest!", "norman conquest"),
        ("a, an; the.", ""),
        ("theatre", "theatre"),  # an article is a whole word
        ("U.S.", "us"),
        ("well-known", "wellknown"),  # punctuation goes before words are split
        ("1854–1855", "1854–1855"),  # an en dash is not in ASCII punctuation
        ("An apple and the A", "apple and"),
    ],
)
def test_what_is_compared(text, left):
    assert normalised(text) == left


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "overlap"),
    [
        ("the cat", "cat", 1, 1),
        ("cat", "The Cat.", 1, 1),
        ("black cat", "cat", 0, 2 / 3),  # precision 1/2, recall 1
        ("cat cat", "cat", 0, 2 / 3),  # bags: one of two counts
        ("dog", "cat", 0, 0),
        ("in the black hat", "black hat of felt", 0, 4 / 7),  # in black hat | black hat of felt: two of three, two of four
        ("", "cat", 0, 0),
        ("", "", 1, 1),
        ("cat", "", 0, 0),
        ("the", "A", 1, 1),  # both normalise to nothing
    ],
)
def test_pairs_by_hand(prediction, gold, exact, overlap):
    assert exact_match(prediction, gold) == exact and f1(prediction, gold) == pytest.approx(overlap)


def test_several_gold_answers_and_articles_alone():
    assert score_answer("Paris", asked("in Paris", "Paris, France", "paris")) == (1.0, 1.0)
    assert score_answer("Paris", asked("in Paris", "Paris, France")) == (0.0, pytest.approx(2 / 3))
    assert score_answer("cat", asked("The", "cat")) == (1.0, 1.0)  # a gold answer that normalises to nothing does not count
    assert score_answer("cat", asked("A")) == (0.0, 0.0)  # alone it counts as no answer, and does not match everything
    assert score_answer("", asked("A")) == score_answer("", asked()) == (1.0, 1.0)
    assert score_answer("cat", asked()) == (0.0, 0.0)


def test_means_with_and_without_an_answer():
    found = score_answers(["cat", "black cat", "", "dog"], [asked("cat"), asked("cat"), asked(), asked()])
    assert found == pytest.approx(
        {
            "exact_match": 0.5,
            "f1": (1 + 2 / 3 + 1 + 0) / 4,
            "no_answer_accuracy": 0.5,
            "has_answer_exact_match": 0.5,
            "has_answer_f1": 5 / 6,
        }
    )
    assert set(score_answers(["cat"], [asked("cat")])) == {"exact_match", "f1"}


def test_against_torchmetrics():
    functional = pytest.importorskip("torchmetrics.functional.text", reason="the oracle")
    draw = random.Random(0)
    words = ["the", "a", "cat", "Cat.", "black", "U.S.", "well-known", "3.5", "hat!", "Zoë", "an", "of", "the,"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 5))) for _ in range(400)]
    texts = [text for text in texts if normalised(text)]  # version 1.1, which it has, gives two empty answers an F1 of 0
    for at in range(0, len(texts) - 4, 4):
        prediction, *golds = texts[at : at + 4]
        target = {"answers": {"answer_start": [0] * 3, "text": golds}, "id": "1"}
        oracle = functional.squad([{"prediction_text": prediction, "id": "1"}], [target])
        exact, overlap = score_answer(prediction, asked(*golds))
        assert (100 * exact, 100 * overlap) == pytest.approx((float(oracle["exact_match"]), float(oracle["f1"])), abs=1e-4)


def test_the_threshold_is_the_best_there_is():
    """Against all thresholds, one after another."""
    draw = random.Random(1)
    for _ in range(50):
        questions = [asked("cat") if draw.random() < 0.6 else asked() for _ in range(12)]
        spans = [draw.choice(["cat", "black cat", "dog"]) for _ in questions]
        margins = [round(draw.uniform(-5, 5), 1) for _ in questions]

        def total(threshold, questions=questions, spans=spans, margins=margins):
            chosen = ["" if margin > threshold else span for margin, span in zip(margins, spans, strict=True)]
            return score_answers(chosen, questions)["f1"]

        found = best_threshold(margins, spans, questions, 100.0)
        assert total(found) == pytest.approx(max(total(threshold / 20) for threshold in range(-130, 130)))
    assert best_threshold([0.5, 3.0], ["cat", "dog"], [asked("cat"), asked("dog")], 100.0) == 100.0


def test_sliding_window_by_hand():
    """The rare word of the question decides the sentence, and the words beside it are the answer."""
    assert sliding_window("Who painted Guernica?", "Rain fell. Pablo Picasso painted Guernica. It is large.") == "Pablo Picasso"
    assert sliding_window("?", "one, two") == "one"  # nothing in common: the first span
    assert sliding_window("cat", "cat") == ""
    # of words learned as answers only
    assert sliding_window("Who painted Guernica?", "Old Picasso painted Guernica in Paris.", {"paris", "rome"}) == "Paris"
