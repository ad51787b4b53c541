"""A model small enough to enumerate all outputs: its probabilities and attention weights are tables over all prefixes."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the small language models are beside the tests

END = 2


class Step(NamedTuple):
    logits_BN: torch.Tensor
    weights_BM: torch.Tensor | None


class TableState:
    """The sentence of each row, and its prefix encoded as one number."""

    def __init__(self, sentence_B, code_B, length=0):
        self.sentence_B, self.code_B, self.length = sentence_B, code_B, length

    def reorder(self, rows):
        self.sentence_B, self.code_B = self.sentence_B[rows], self.code_B[rows]
        return self


class Table:
    """Random log p(next | prefix) and attention weights for every sentence and every prefix of up to `longest` tokens."""

    def __init__(self, sentences=1, vocabulary=4, longest=5, memory=3, seed=0, spread=1.5, end=END, weights=True):
        make = torch.Generator().manual_seed(seed)
        self.vocabulary, self.end, self.longest, self.memory = vocabulary, end, longest, memory
        sizes = [vocabulary**t for t in range(longest + 1)]
        self.logits = [spread * torch.randn(sentences, size, vocabulary, generator=make, dtype=torch.float64) for size in sizes]
        self.weights = [torch.randn(sentences, size, memory, generator=make, dtype=torch.float64).softmax(-1) for size in sizes]
        self.gives_weights = weights
        self.rows = []  # how many rows each step had

    def start_rows(self, sentences):
        return TableState(torch.tensor(sentences), torch.zeros(len(sentences), dtype=torch.long))

    def start(self, source_BM, source_n_B):
        return TableState(source_BM[:, 0] - 10, torch.zeros(len(source_BM), dtype=torch.long))  # the first source token names the sentence

    def step(self, token_B, state, want_weights=False):
        self.rows.append(len(token_B))
        assert len(token_B) == len(state.code_B)
        if state.length:
            state.code_B = state.code_B * self.vocabulary + token_B
        at = state.sentence_B, state.code_B
        step = Step(self.logits[state.length][at], self.weights[state.length][at] if want_weights and self.gives_weights else None)
        state.length += 1
        return step

    def scored(self, sentence, ids, lp, beta, size, end=True):
        """(score, log P, log-probabilities, weights) of a hypothesis, by the definition."""
        code, log_probs, weights = 0, [], []
        for t, token in enumerate([*ids, self.end] if end else ids):
            row = self.logits[t][sentence, code]
            log_probs.append((row - row.logsumexp(-1))[token].item())
            weights.append(self.weights[t][sentence, code, :size].tolist())
            code = code * self.vocabulary + token
        cp = beta * sum(math.log(min(sum(column), 1)) for column in zip(*weights, strict=True))
        return sum(log_probs) / lp(len(log_probs)) + cp, sum(log_probs), log_probs, weights

    def everything(self, sentence, most, lp, beta, size, banned=()):
        """Every hypothesis of at most `most` tokens including the end token, best first: [(score, ids)]."""
        said = [token for token in range(self.vocabulary) if token != self.end and token not in banned]
        answers = [list(ids) for n in range(most) for ids in itertools.product(said, repeat=n)]
        return sorted(((self.scored(sentence, ids, lp, beta, size)[0], ids) for ids in answers), reverse=True)


@pytest.fixture(scope="session")
def table():
    return Table


@pytest.fixture(scope="session")
def tokenizer():
    """One token per byte."""
    from regard.data import Tokenizer

    return Tokenizer.train([], "byte", 260)
