"""Filters against transformers and by hand; draws against their distribution; rows that do not depend on each other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import GREEDY, Beam, DecoderTokens, Sampling, sample, search
from regard.decode.sampling import BUFFER, Uniforms, draw, filter_logits, min_p, top_k, top_p
from regard.errors import NotSupported, ShapeError

FREE = DecoderTokens(first=1, end=2, banned=())


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([0, 1, 2, 7, 50]),
    st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_filters_are_those_of_transformers(seed, temperature, k, p, fraction):
    transformers = pytest.importorskip("transformers", reason="the logits warpers of transformers are the reference")
    logits = 3 * torch.randn(5, 31, generator=torch.Generator().manual_seed(seed))
    warpers = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(temperature)])
    if k:
        warpers.append(transformers.TopKLogitsWarper(k))
    if p < 1:
        warpers.append(transformers.TopPLogitsWarper(p))
    if fraction:
        warpers.append(transformers.MinPLogitsWarper(fraction))
    ours = filter_logits(logits, Sampling(temperature=temperature, top_k=k, top_p=p, min_p=fraction))
    torch.testing.assert_close(ours, warpers(None, logits))


def kept(logits):
    return logits.isfinite().nonzero()[:, 1].tolist()


def test_filters_by_hand():
    logits = torch.tensor([[0.2, 0.4, 0.1, 0.3]]).log()
    assert kept(top_p(logits, 0.8)) == [0, 1, 3]  # .4 + .3 is not enough; .2 crosses and stays
    assert kept(top_p(logits, 0.7)) == [1, 3]  # .4 + .3 is just enough
    assert kept(top_p(logits, 0.4)) == [1]
    assert kept(top_p(logits, 1e-9)) == [1]
    assert kept(top_k(logits, 2)) == [1, 3]
    assert kept(top_k(logits, 99)) == [0, 1, 2, 3]
    assert kept(min_p(logits, 0.45)) == [0, 1, 3]
    assert kept(min_p(logits, 1.0)) == [1]


def test_top_k_keeps_all_ties():
    assert kept(top_k(torch.zeros(1, 4), 2)) == [0, 1, 2, 3]
    assert kept(top_k(torch.tensor([[1.0, 0.0, 0.0, -1.0]]), 2)) == [0, 1, 2]


def test_the_order_of_filters_matters_and_is_the_one_stated():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    # top-k first: of .5 and .3, rescaled to .625 and .375, the first alone reaches .6
    assert kept(filter_logits(logits, Sampling(top_k=2, top_p=0.6))) == [0]
    # temperature first: squared, .25 / .365 of the mass is the first token's
    assert kept(filter_logits(logits, Sampling(temperature=0.5, top_p=0.6))) == [0]
    assert kept(filter_logits(logits, Sampling(top_p=0.6))) == [0, 1]


@pytest.mark.parametrize("options", [Sampling(), Sampling(temperature=0.7, top_k=9), Sampling(top_p=0.8), Sampling(min_p=0.1)])
def test_draws_follow_the_distribution(options):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(7))
    draws = 100_000
    wanted = filter_logits(logits, options)
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = draw(wanted.expand(draws, -1), uniform).bincount(minlength=12).double()
    prob = wanted.softmax(-1, dtype=torch.float64)[0]
    assert counts[prob == 0].sum() == 0
    inside = prob > 0
    chi2 = ((counts - draws * prob)[inside] ** 2 / (draws * prob)[inside]).sum().item()
    freedom = int(inside.sum()) - 1
    # Wilson–Hilferty: the cube root of χ² / k is nearly normal; 4 standard deviations are once in 30 000 at random
    normal = ((chi2 / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(normal) < 4


def test_draws_at_the_borders():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, -1)
    uniform = torch.tensor([0.0, 0.5 - 1e-12, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(logits, uniform).tolist() == [1, 1, 3, 3]  # never a token of probability 0


def test_the_draws_of_a_whole_answer_follow_the_model(table):
    """The first two tokens of many rows of one sentence: rows must be independent of each other, and of the step."""
    model, rows = table(seed=3, spread=0.5), 20_000
    answers = sample(model, model.start_rows([0] * rows), Sampling(max_tokens=2), source_n_B=torch.full((rows,), 3), tokens=FREE)
    counts = torch.zeros(4, 4, dtype=torch.float64)
    for answer in answers:
        if len(answer.ids) == 2:
            counts[answer.ids[0], answer.ids[1]] += 1
    first = model.logits[0][0, 0].softmax(-1)
    prob = first[:, None] * model.logits[1][0].softmax(-1)
    inside = torch.ones(4, 4, dtype=torch.bool)
    inside[2], inside[:, 2] = False, False
    chi2 = ((counts - rows * prob)[inside] ** 2 / (rows * prob)[inside]).sum().item()
    assert 1 < chi2 < 30  # 9 cells: the middle is about 8, 30 is once in 3 000


def test_temperature_nothing_is_greedy(table):
    model = table(sentences=13, seed=8, longest=6)
    n = torch.full((13,), 3)
    for seed in (0, 1):
        drawn = sample(
            model, model.start_rows(list(range(13))), Sampling(temperature=0, seed=seed, top_k=3, max_tokens=6), source_n_B=n, tokens=FREE
        )
        best = search(model, model.start_rows(list(range(13))), Beam(size=1, max_tokens=6), source_n_B=n, tokens=FREE)
        for answer, (greedy,) in zip(drawn, best, strict=True):
            if answer.finished:
                assert answer.ids == greedy.ids
                torch.testing.assert_close(answer.log_probs, greedy.log_probs)
            else:
                assert len(answer.ids) == 6 and answer.ids[:5] == greedy.ids
    assert {answer.finished for answer in drawn} == {True, False}
    torch.testing.assert_close(
        filter_logits(torch.tensor([[1.0, 3.0, 2.0]]), Sampling(temperature=0)).exp(), torch.tensor([[0.0, 1.0, 0.0]])
    )


def test_log_probs_are_the_models_own(table):
    model = table(sentences=6, seed=1)
    options = Sampling(temperature=0.5, top_k=2, max_tokens=5)
    answers = sample(model, model.start_rows(list(range(6))), options, source_n_B=torch.full((6,), 3), tokens=FREE, want_weights=True)
    for sentence, answer in enumerate(answers):
        _, log_prob, log_probs, weights = model.scored(sentence, answer.ids, lambda n: 1, 0, 3, end=answer.finished)
        torch.testing.assert_close(answer.log_probs, log_probs)
        assert math.isclose(answer.log_prob, log_prob)
        torch.testing.assert_close(answer.weights_LM, torch.tensor(weights, dtype=torch.float64))


def drawn_ids(model, sentences, numbers, seed=5):
    answers = sample(
        model,
        model.start_rows(sentences),
        Sampling(seed=seed, max_tokens=5),
        source_n_B=torch.full((len(sentences),), 3),
        tokens=FREE,
        numbers=numbers,
    )
    return [answer.ids for answer in answers]


def test_a_row_does_not_depend_on_its_neighbours(table):
    model = table(sentences=20, seed=6, spread=0.3)
    together = drawn_ids(model, list(range(20)), None)
    assert [drawn_ids(model, [s], [s])[0] for s in range(20)] == together
    shuffled = torch.randperm(20).tolist()
    assert drawn_ids(model, shuffled, shuffled) == [together[s] for s in shuffled]
    assert drawn_ids(model, list(range(20)), None, seed=6) != together
    same = drawn_ids(model, [0] * 20, None)
    assert len({tuple(ids) for ids in same}) > 5  # rows of one sentence are not copies


def test_random_numbers_go_on_past_the_first_draw():
    rows = [0, 1, 2]
    three, one = Uniforms(4, [7, 8, 9]), Uniforms(4, [9])
    drawn = torch.stack([three.next(rows) for _ in range(BUFFER + 5)])
    assert len(drawn.unique()) == drawn.numel()
    torch.testing.assert_close(torch.stack([one.next([0]) for _ in range(BUFFER + 5)])[:, 0], drawn[:, 2], rtol=0, atol=0)
    assert not torch.equal(Uniforms(0, [1]).next([0]), Uniforms(1, [0]).next([0]))


def test_rows_that_ended_leave_the_batch(table):
    model = table(sentences=4, seed=2, longest=6)
    for t, logits in enumerate(model.logits):
        logits[:] = -50
        for sentence in range(4):
            logits[sentence, :, 0 if t < sentence else 2] = 50
    answers = sample(model, model.start_rows([3, 0, 2, 1]), source_n_B=torch.full((4,), 3), tokens=FREE)
    assert [answer.ids for answer in answers] == [[0] * 3, [], [0] * 2, [0]]
    assert model.rows == [4, 3, 2, 1]


def test_never_said(table):
    model = table(sentences=9, seed=2, spread=0.1)
    answers = sample(
        model, model.start_rows(list(range(9))), Sampling(max_tokens=5), source_n_B=torch.full((9,), 3), tokens=DecoderTokens(banned=(0, 1))
    )
    assert {token for answer in answers for token in answer.ids} == {3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 2},
        {"max_tokens": 0},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(NotSupported, match=r"Sampling\("):
        Sampling(**wrong)


def test_numbers_must_fit(table):
    with pytest.raises(ShapeError, match="2 row numbers for 1 rows"):
        sample(table(), table().start_rows([0]), source_n_B=torch.tensor([3]), numbers=[0, 1])


def test_greedy_is_a_beam_of_one():
    assert GREEDY.size == 1
