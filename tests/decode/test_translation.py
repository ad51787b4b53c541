"""Translation of many sources: batches of similar lengths, results in the order of the sources."""

import pytest
import torch
from torch import nn

from regard.decode import Beam, DecoderTokens, Sampling, iter_translations, translate
from regard.decode.translation import batch_by_length
from regard.errors import ShapeError

FREE = DecoderTokens(first=1, end=2, banned=())


def test_batches_by_hand():
    assert batch_by_length([3, 5, 1, 5, 2], 10) == [[1, 3], [0, 4, 2]]
    assert batch_by_length([3, 50, 1], 10) == [[1], [0, 2]]  # one too long comes alone
    assert batch_by_length([], 10) == []


@pytest.mark.parametrize(
    "options", [Beam(size=3, max_tokens=4), Beam(size=3, coverage_penalty=0.3, nbest=2), Sampling(max_tokens=5, seed=2)]
)
@pytest.mark.parametrize("batch_tokens", [1, 7, 1000])
def test_answers_come_in_the_order_of_the_sources(table, options, batch_tokens):
    model = table(sentences=11, seed=9, longest=55, vocabulary=1, end=0) if options.max_tokens is None else table(sentences=11, seed=9)
    tokens = DecoderTokens(first=1, end=0, banned=()) if options.max_tokens is None else FREE
    sources = [[10 + sentence, *[9] * (sentence * 7 % 3)] for sentence in range(11)]
    found = translate(model, sources, options, tokens=tokens, batch_tokens=batch_tokens, want_weights=True)
    alone = [translate(model, [source], options, tokens=tokens)[0] for source in sources]
    if isinstance(options, Beam):
        assert [[a.ids for a in answers] for answers in found] == [[a.ids for a in answers] for answers in alone]
    for sentence, (source, answers) in enumerate(zip(sources, found, strict=True)):
        for answer in answers:
            _, log_prob, log_probs, weights = model.scored(sentence, answer.ids, lambda n: 1, 0, len(source), end=answer.finished)
            torch.testing.assert_close(answer.log_probs, log_probs)
            torch.testing.assert_close(answer.weights_LM, torch.tensor(weights, dtype=torch.float64))


def test_a_drawn_answer_depends_on_the_number_of_its_source_only(table):
    model = table(sentences=1, spread=0.2)
    sources = [[10, *[9] * (n * 5 % 4)] for n in range(12)]
    found = [translate(model, sources, Sampling(max_tokens=5), tokens=FREE, batch_tokens=batch_tokens) for batch_tokens in (1, 9, 1000)]
    ids = [[answer.ids for (answer,) in answers] for answers in found]
    assert ids[0] == ids[1] == ids[2]
    assert len({tuple(one) for one in ids[0]}) > 6


def test_answers_are_given_as_they_are_ready(table):
    model = table(sentences=3)
    arriving = iter_translations(model, [[10], [11, 9, 9], [12, 9]], Beam(max_tokens=3), tokens=FREE, batch_tokens=3)
    assert next(arriving)[0] == 1 and len(set(model.rows[:1])) == 1
    assert [number for number, _ in arriving] == [2, 0]


def test_no_sources(table):
    assert translate(table(), []) == []


def test_an_empty_source_is_refused(table):
    with pytest.raises(ShapeError, match="source 1 has no token"):
        translate(table(), [[10], []])


class Training(nn.Module):
    """Records how it was called."""

    def __init__(self, table):
        super().__init__()
        self.table, self.weight, self.frozen = table, nn.Parameter(torch.ones(1)), nn.Dropout().eval()
        self.seen = []

    def start(self, source_BM, source_n_B):
        self.seen.append((self.training, torch.is_grad_enabled(), source_BM.dtype))
        return self.table.start(source_BM, source_n_B)

    def step(self, token_B, state, want_weights=False):
        self.seen.append((self.training, torch.is_grad_enabled(), token_B.dtype))
        return self.table.step(token_B, state, want_weights)


def test_a_model_in_training_decodes_without_dropout_and_goes_on_training(table):
    model = Training(table()).train()
    model.frozen.eval()
    translate(model, [[10]], Beam(max_tokens=3), tokens=FREE)
    assert set(model.seen) == {(False, False, torch.long)}
    assert model.training and not model.frozen.training
