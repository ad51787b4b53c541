"""Beam search against exhaustive search, a slow reference, and known cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import GNMT, GREEDY, Beam, DecoderTokens, Power, RelativeLength, Sampling, sample, search, watch
from regard.decode.beam import coverage, in_place_order
from regard.errors import NotSupported, RegardError

FREE = DecoderTokens(first=1, end=2, banned=())
ALPHAS = st.sampled_from([-1.5, -0.3, 0.0, 0.2, 0.6, 1.0, 2.5])
LENGTHS = st.builds(lambda kind, alpha: kind(alpha), st.sampled_from([GNMT, Power]), ALPHAS)
BETAS = st.sampled_from([0.0, 0.2, 1.0, 5.0])


@given(st.integers(0, 10_000), LENGTHS, BETAS, st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 4), st.data())
@settings(max_examples=40, deadline=None)
def test_a_wide_beam_finds_the_best_of_all_answers(table, seed, length, beta, sizes, nbest, data):
    model = table(sentences=len(sizes), seed=seed)
    most = RelativeLength(factor=1, offset=data.draw(st.integers(0, 2)))  # rows have limits of their own, of 1 to 5 tokens
    options = Beam(size=4**5, length_penalty=length, coverage_penalty=beta, max_tokens=most, nbest=nbest)
    state = model.start_rows(list(range(len(sizes))))
    found = search(model, state, options, source_n_B=torch.tensor(sizes), tokens=FREE, want_weights=True)
    for sentence, (size, answers) in enumerate(zip(sizes, found, strict=True)):
        expected = model.everything(sentence, size + most.offset, length, beta, size)[:nbest]
        assert [answer.ids for answer in answers] == [ids for _, ids in expected]
        for answer, (score, ids) in zip(answers, expected, strict=True):
            _, log_prob, log_probs, weights = model.scored(sentence, ids, length, beta, size)
            assert math.isclose(answer.score, score, rel_tol=1e-9)
            assert math.isclose(answer.log_prob, log_prob, rel_tol=1e-9)
            torch.testing.assert_close(answer.log_probs, log_probs)
            torch.testing.assert_close(answer.weights_LM, torch.tensor(weights, dtype=torch.float64))


@pytest.mark.parametrize("width", [1, 3])
def test_a_search_can_be_watched(table, width):
    model = table(sentences=1, seed=3, longest=5, vocabulary=5)
    options = Beam(size=width, nbest=width, max_tokens=5)
    asked = {"source_n_B": torch.tensor([3]), "tokens": FREE, "want_weights": True}
    steps = list(watch(model, model.start_rows([0]), options, **asked))
    (answers,) = search(model, model.start_rows([0]), options, **asked)
    for number, (alive, ended) in enumerate(steps, 1):
        assert all(len(one.ids) < number and model.end not in one.ids for one in ended)
        assert 1 <= len(alive) <= width and [one.log_prob for one in alive] == sorted((one.log_prob for one in alive), reverse=True)
        for one in alive:
            assert len(one.ids) == number and model.end not in one.ids
            _, log_prob, _, weights = model.scored(0, one.ids, lambda n: 1, 0, 3, end=False)
            assert math.isclose(one.log_prob, log_prob, rel_tol=1e-9)
            torch.testing.assert_close(one.weights_M[:3], torch.tensor(weights[-1], dtype=torch.float64))
    for answer in answers:  # every answer went through the beam
        assert all(any(one.ids == answer.ids[:n] for one in steps[n - 1].alive) for n in range(1, len(answer.ids) + 1))


def slow_beam(model, sentence, width, length, beta, most, size):
    """The same search with lists, one sentence, and no stopping before the limit."""
    live, done = [(0.0, [])], []
    for step in range(1, most + 1):
        candidates = []
        for _, ids in live:
            for token in range(model.vocabulary):
                if step < most or token == model.end:
                    more = [*ids, token]
                    candidates.append((model.scored(sentence, more, lambda n: 1, 0, size, end=False)[1], more))
        candidates = sorted(candidates, reverse=True)[: 2 * width]
        for _, ids in candidates[:width]:
            if ids[-1] == model.end:
                done.append((model.scored(sentence, ids[:-1], length, beta, size)[0], ids[:-1]))
        live = [(log_prob, ids) for log_prob, ids in candidates if ids[-1] != model.end][:width]
    return sorted(done, reverse=True)


@given(st.integers(0, 10_000), st.integers(2, 4), LENGTHS, BETAS, st.integers(1, 6), st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_stopping_early_never_changes_an_answer(table, seed, width, length, beta, most, nbest):
    model = table(sentences=3, seed=seed, longest=6, vocabulary=5)
    sizes = [3, 1, 2]
    options = Beam(size=width, length_penalty=length, coverage_penalty=beta, max_tokens=most, nbest=nbest)
    found = search(model, model.start_rows([0, 1, 2]), options, source_n_B=torch.tensor(sizes), tokens=FREE)
    for sentence, (size, answers) in enumerate(zip(sizes, found, strict=True)):
        expected = slow_beam(model, sentence, width, length, beta, most, size)[:nbest]
        assert [answer.ids for answer in answers] == [ids for _, ids in expected]
        torch.testing.assert_close([answer.score for answer in answers], [score for score, _ in expected])


def greedy_by_hand(model, sentence, most):
    ids, code = [], 0
    for t in range(most - 1):
        token = model.logits[t][sentence, code].argmax().item()
        if token == model.end:
            break
        ids.append(token)
        code = code * model.vocabulary + token
    return ids


@pytest.mark.parametrize("length", [GNMT(0.6), Power(2.0), Power(-1.0)])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_beam_of_one_is_greedy(table, length, beta):
    model = table(sentences=17, seed=5, longest=6)
    options = Beam(size=1, length_penalty=length, coverage_penalty=beta, max_tokens=6)
    found = search(model, model.start_rows(list(range(17))), options, source_n_B=torch.full((17,), 3), tokens=FREE)
    assert [answers[0].ids for answers in found] == [greedy_by_hand(model, sentence, 6) for sentence in range(17)]
    assert len({len(answers[0].ids) for answers in found}) > 2
    for sentence, (answer,) in enumerate(found):
        assert math.isclose(answer.score, model.scored(sentence, answer.ids, length, beta, 3)[0])


def test_sentences_that_are_done_leave_the_batch(table):
    model = table(sentences=9, seed=2, longest=6)
    for t, logits in enumerate(model.logits):  # sentence s says 0 for s // 2 tokens and then ends
        logits[:] = 0
        for sentence in range(9):
            logits[sentence, :, 0 if t < sentence // 2 else 2] = 9
    answers = search(model, model.start_rows(list(range(9))), GREEDY, source_n_B=torch.full((9,), 3), tokens=FREE)
    assert [len(answer.ids) for (answer,) in answers] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert model.rows == [9, 7, 5, 3, 1]
    model.rows.clear()
    answers = search(
        model, model.start_rows(list(range(9))), Beam(size=3, length_penalty=Power(0)), source_n_B=torch.full((9,), 3), tokens=FREE
    )
    assert [len(answer.ids) for (answer,) in answers] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert model.rows == [9, 21, 15, 9, 3]  # the first step is of one row a sentence: its beams would all be the same


def test_ends_do_not_starve_the_beam(table):
    """Half of the most likely continuations end; the beam must stay full, and find the longer hypothesis that scores better."""
    model = table(sentences=1, longest=3, vocabulary=4)
    p = torch.tensor
    model.logits[0][0, 0] = p([0.3, 0.25, 0.4, 0.05]).log()  # ends first of all
    model.logits[1][0, :] = p([0.02, 0.02, 0.94, 0.02]).log()

    def two_best(length):
        options = Beam(size=2, length_penalty=length, nbest=2, max_tokens=3)
        (found,) = search(model, model.start_rows([0]), options, source_n_B=torch.tensor([3]), tokens=FREE)
        return [answer.ids for answer in found]

    assert two_best(Power(0)) == [[], [0]]
    assert model.rows[:2] == [1, 2]
    assert two_best(Power(1)) == [[0], [1]]  # (log .3 + log .94) / 2 is more than log .4


@pytest.mark.parametrize(
    ("length", "first", "expected"),
    [
        # the end at once scores log .8 = −.22; log .1 / 2³ = −.29 cannot beat it after two tokens, log .1 / 4³ = −.04 can after four
        (Power(3.0), [0.1, 0.05, 0.8, 0.05], [0, 0, 0]),
        # the end at once scores log .1 = −2.3; log .8 · 4² = −3.6 cannot beat it after four tokens, log .8 · 2² = −.9 can after two
        (Power(-2.0), [0.8, 0.05, 0.1, 0.05], [0]),
    ],
    ids=["rising", "falling"],
)
def test_a_search_goes_on_while_any_length_left_could_win(table, length, first, expected):
    model = table(sentences=1, longest=4)
    model.logits[0][0, 0] = torch.tensor(first).log()
    for t in range(1, 5):
        model.logits[t][:] = -20
        model.logits[t][..., 0 if t < len(expected) else 2] = 20
    found = search(
        model, model.start_rows([0]), Beam(size=2, length_penalty=length, max_tokens=4), source_n_B=torch.tensor([3]), tokens=FREE
    )
    assert found[0][0].ids == expected


def test_a_search_stops_when_no_length_left_could_win(table):
    model = table(sentences=1, longest=5)
    model.logits[0][0, 0] = torch.tensor([0.02, 0.01, 0.96, 0.01]).log()
    options = Beam(size=2, length_penalty=Power(1.0), max_tokens=5)  # log .96 = −.04 is more than log .02 / 5
    assert search(model, model.start_rows([0]), options, source_n_B=torch.tensor([3]), tokens=FREE)[0][0].ids == []
    assert model.rows == [1]


def test_the_last_token_allowed_is_the_end_at_its_own_price(table):
    model = table(sentences=2, seed=3)
    found = search(model, model.start_rows([0, 1]), Beam(size=3, max_tokens=1), source_n_B=torch.tensor([2, 3]), tokens=FREE)
    assert [answer.ids for (answer,) in found] == [[], []]
    assert math.isclose(found[1][0].log_prob, model.scored(1, [], GNMT(), 0, 3)[1])


def test_what_is_never_said_is_not_said_and_changes_no_probability(table):
    model = table(sentences=5, seed=4)
    tokens = DecoderTokens(first=1, end=2, banned=(0, 1))
    found = search(model, model.start_rows(list(range(5))), Beam(size=64, max_tokens=4), source_n_B=torch.full((5,), 3), tokens=tokens)
    for sentence, (answer,) in enumerate(found):
        score, ids = model.everything(sentence, 4, GNMT(0.6), 0, 3, banned=(0, 1))[0]
        assert answer.ids == ids and math.isclose(answer.score, score)


@pytest.mark.parametrize("width", [1, 2])
def test_likely_tokens_that_are_never_said_take_nobodys_place(table, width):
    model = table(sentences=1, longest=4)
    for logits in model.logits:
        logits[:] = torch.tensor([8.0, 9.0, 0.0, 1.0])
    found = search(
        model,
        model.start_rows([0]),
        Beam(size=width, length_penalty=Power(3), max_tokens=4),
        source_n_B=torch.tensor([3]),
        tokens=DecoderTokens(banned=(0, 1)),
    )
    assert found[0][0].ids == [3, 3, 3]


def test_penalties_by_hand():
    assert GNMT(1.0)(7) == 2.0 and GNMT(0.0)(9) == 1.0 and math.isclose(GNMT(0.6)(1), 1.0)
    assert Power(2.0)(3) == 9.0 and Power(-1.0)(4) == 0.25
    looked_BM = torch.tensor([[0.5, 2.0, 0.25, 0.0], [1.0, 1.0, 0.0, 0.0]])
    expected = [0.2 * (math.log(0.5) + math.log(0.25)), 0.0]
    torch.testing.assert_close(coverage(looked_BM, torch.tensor([3, 2]), 0.2), torch.tensor(expected))
    assert coverage(looked_BM, torch.tensor([4, 4]), 0.2).isfinite().all()  # nobody looked there: dear, but a number


def test_coverage_without_weights_is_refused(table):
    model = table(weights=False)
    with pytest.raises(NotSupported, match="coverage penalty needs attention weights"):
        search(model, model.start_rows([0]), Beam(coverage_penalty=0.2), source_n_B=torch.tensor([3]), tokens=FREE)
    with pytest.raises(NotSupported, match="an alignment needs"):
        search(model, model.start_rows([0]), Beam(max_tokens=3), source_n_B=torch.tensor([3]), tokens=FREE, want_weights=True)


def test_logits_that_are_no_numbers_are_an_error(table):
    model = table(sentences=2)
    model.logits[1][1] = torch.nan
    with pytest.raises(RegardError, match="row 1 has no hypothesis"):
        search(model, model.start_rows([0, 1]), Beam(max_tokens=4, length_penalty=Power(2)), source_n_B=torch.tensor([3, 3]), tokens=FREE)


@pytest.mark.parametrize("first", [None, [3, 0]])
def test_the_first_token_of_each_row(table, first):
    model, fed = table(sentences=2), []
    step = model.step
    model.step = lambda token_B, state, want_weights=False: fed.append(token_B.tolist()) or step(token_B, state, want_weights)
    first_B = None if first is None else torch.tensor(first)
    n = torch.tensor([3, 3])
    search(model, model.start_rows([0, 1]), Beam(max_tokens=3), source_n_B=n, tokens=FREE, first_B=first_B)
    assert fed[0] == (first or [1, 1])
    fed.clear()
    sample(model, model.start_rows([0, 1]), Sampling(max_tokens=3), source_n_B=n, tokens=FREE, first_B=first_B)
    assert fed[0] == (first or [1, 1])


def test_no_rows_have_no_answers(table):
    assert search(table(), None, Beam(), source_n_B=torch.zeros(0, dtype=torch.long)) == []


@pytest.mark.parametrize("wrong", [{"size": 0}, {"nbest": 0}, {"size": 2, "nbest": 3}, {"coverage_penalty": -0.1}, {"max_tokens": 0}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(NotSupported, match=r"Beam\("):
        Beam(**wrong)


def test_an_end_that_is_never_said_is_refused():
    with pytest.raises(NotSupported, match="end token 0"):
        DecoderTokens(end=0)


def test_children_stand_where_their_parents_stood():
    parents = torch.tensor([[2, 2, 0, 1], [4, 4, 4, 4], [11, 8, 10, 9]])
    moved = parents.gather(1, in_place_order(parents))
    assert moved.tolist() == [[0, 1, 2, 2], [4, 4, 4, 4], [8, 9, 10, 11]]
    assert in_place_order(parents).sort().values.equal(torch.arange(4).expand(3, 4))  # everyone has a place
