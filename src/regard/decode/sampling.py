r"""Sampling: the options of a completion, and how the next token is drawn from the logits.

Order of operations: repetition penalty → logit biases, presence and frequency penalties → temperature (logits / τ) → top-k → top-p → min-p →
softmax → draw.

The default temperature is 1 for every function, command and route: samples of the model's own distribution, as with OpenAI and transformers.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import NotSupported, ShapeError
from ._base import DecoderModel, DecoderTokens, Hypothesis, max_lengths, require_weights
from .options import Sampling

NEVER = -torch.inf  # the logit of a token that is never chosen
GREEDY_BELOW = 1e-6  # temperatures below this take the most likely token; dividing by less could overflow
BUFFER = 64  # random numbers drawn at once per row: a constant, so that a row's sequence depends on nothing else
DEFAULT_MAX_TOKENS = 100


def full_precision(logits_BN: Tensor) -> Tensor:
    """Logits in float32 or better: sums over a vocabulary lose too much in half precision."""
    return logits_BN if logits_BN.dtype == torch.float64 else logits_BN.float()


def penalize_repetition(logits_N: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Tokens that were seen become less likely by a factor, whatever the sign of their logits (Keskar et al. 2019, arXiv:1909.05858)."""
    found = logits_N[seen]
    return logits_N.index_copy(0, seen, torch.where(found > 0, found / penalty, found * penalty))


def top_k(logits_BN: Tensor, k: int) -> Tensor:
    """All logits below the k-th largest become −∞; ties with it are kept, so the result does not depend on the order of ids."""
    return logits_BN.masked_fill(logits_BN < logits_BN.topk(min(k, logits_BN.shape[-1]), -1).values[:, -1:], NEVER)


def top_p(logits_BN: Tensor, p: float) -> Tensor:
    """A token is kept if the more likely ones have less than p together: the most likely always is, and so is the one that crosses p."""
    sorted_BN, order_BN = logits_BN.sort(dim=-1, descending=True, stable=True)
    prob_BN = sorted_BN.softmax(-1, dtype=torch.float64)
    before_BN = prob_BN.cumsum(-1) - prob_BN
    # The logits are float32, so 0.4 + 0.3 may miss 0.7 by some units in the last place: that counts as reached.
    enough_BN = before_BN >= p - 4 * torch.finfo(torch.float32).eps
    enough_BN[:, 0] = False
    return logits_BN.masked_fill(torch.zeros_like(enough_BN).scatter(-1, order_BN, enough_BN), NEVER)


def min_p(logits_BN: Tensor, fraction: float) -> Tensor:
    """A token is kept if its probability is at least this fraction of the largest one."""
    prob_BN = logits_BN.softmax(-1)
    return logits_BN.masked_fill(prob_BN < fraction * prob_BN.amax(-1, keepdim=True), NEVER)


def filter_logits(logits_BN: Tensor, options: Sampling) -> Tensor:
    """The logits of the distribution to draw from, filtered in the order stated above."""
    if options.temperature < GREEDY_BELOW:
        best_B1 = logits_BN.argmax(-1, keepdim=True)
        return torch.full_like(logits_BN, NEVER).scatter(-1, best_B1, 0.0)
    logits_BN = logits_BN / options.temperature
    if options.top_k:
        logits_BN = top_k(logits_BN, options.top_k)
    if options.top_p < 1:
        logits_BN = top_p(logits_BN, options.top_p)
    if options.min_p:
        logits_BN = min_p(logits_BN, options.min_p)
    return logits_BN


def draw(logits_BN: Tensor, uniform_B: Tensor) -> Tensor:
    """One token per row, by inverting the cumulative distribution at a number in [0, 1). A token of probability 0 is never drawn."""
    sum_BN = logits_BN.softmax(-1, dtype=torch.float64).cumsum(-1)
    total_B = sum_BN[:, -1]
    at_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))  # rounding must not reach the end
    return torch.searchsorted(sum_BN, at_B[:, None], right=True)[:, 0]


def choose_tokens(logits_BN: Tensor, options: Sampling, uniforms: Callable[[], Tensor]) -> Tensor:
    """The next token of each row: the most likely one at temperature 0, else a draw with `uniforms()`, a random number per row."""
    return logits_BN.argmax(-1) if options.temperature == 0 else draw(filter_logits(logits_BN, options), uniforms().to(logits_BN.device))


def log_total(logits_BN: Tensor) -> Tensor:
    """log Σ exp of the logits of each row, the normaliser of log-probabilities."""
    total_B = logits_BN.logsumexp(-1)
    if not bool(torch.isfinite(total_B).all()):
        raise NotSupported("the model's logits are not finite; its parameters are damaged, or its training diverged")
    return total_B


def token_scores(
    logits_BN: Tensor, total_B: Tensor, token_B: Tensor, alternatives: int
) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
    """The log-probability of each row's token, and the most likely tokens with theirs."""
    log_probs = (logits_BN.gather(-1, token_B[:, None])[:, 0] - total_B).tolist()
    if not alternatives:
        return [(log_prob, ()) for log_prob in log_probs]
    best = logits_BN.topk(min(alternatives, logits_BN.shape[-1]), -1)
    ids, values = best.indices.tolist(), (best.values - total_B[:, None]).tolist()
    return [(log_prob, tuple(zip(i, v, strict=True))) for log_prob, i, v in zip(log_probs, ids, values, strict=True)]


class Uniforms:
    """Random numbers for many rows, each from its own generator: row `number` gets the same ones whatever the batch.

    They are drawn on the CPU, so a seed gives the same text on every device.
    """

    def __init__(self, seed: int | None, numbers: Sequence[int]):
        seed = new_seed() if seed is None else seed
        self._generators = [torch.Generator().manual_seed(_row_seed(seed, number)) for number in numbers]
        self._buffer_BC = torch.empty(len(numbers), 0, dtype=torch.float64)
        self._used = 0

    def next(self, rows: list[int]) -> Tensor:
        """The next number of each of these rows; all rows advance together."""
        if self._used == self._buffer_BC.shape[1]:
            drawn = [torch.rand(BUFFER, generator=g, dtype=torch.float64) for g in self._generators]
            self._buffer_BC, self._used = torch.stack(drawn), 0
        self._used += 1
        return self._buffer_BC[rows, self._used - 1]


def new_seed() -> int:
    return secrets.randbits(63)


def row_number(prompt: Sequence[int], index: int) -> int:
    """The row number of the index-th completion of a prompt: with one seed, different prompts get different random numbers, in any batch."""
    return int.from_bytes(hashlib.blake2b(array("q", [index, *prompt]).tobytes(), digest_size=8).digest(), "big")


def _row_seed(seed: int, number: int) -> int:
    """A separate seed for every (seed, row): plain addition would give row 1 of seed 0 the text of row 0 of seed 1."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=7).digest(), "big")


@torch.no_grad()
def sample(
    model: DecoderModel,
    state: Any,
    options: Sampling = Sampling(),  # noqa: B008  frozen
    *,
    source_n_B: Tensor,
    tokens: DecoderTokens = DecoderTokens(),  # noqa: B008  frozen
    first_B: Tensor | None = None,
    numbers: Sequence[int] | None = None,
    want_weights: bool = False,
) -> list[Hypothesis]:
    """One sample for every row of the state.

    The log-probabilities returned are the model's own, before temperature and filters.

    Args:
        model: decoder.
        state: state of the decoder after reading the sources, a row per source.
        options: temperature, filters, seed, maximum number of tokens.
        source_n_B: number of tokens of each source.
        tokens: special tokens of the decoder.
        first_B: first token of each row; `tokens.first` if not given.
        numbers: identity of each row to the random number generators; 0, 1, 2 … if not given.
        want_weights: keep the attention weights of every step.

    Shape: source_n_B, first_B: one number per row of the state.
    """
    limits, device = max_lengths(options.max_tokens, source_n_B), source_n_B.device
    rows, sizes = list(range(len(limits))), source_n_B.tolist()
    if numbers is not None and len(numbers) != len(rows):
        raise ShapeError(f"{len(numbers)} row numbers for {len(rows)} rows; give one per row")
    uniforms = Uniforms(options.seed, rows if numbers is None else numbers)
    ids: list[list[int]] = [[] for _ in rows]
    log_probs: list[list[float]] = [[] for _ in rows]
    weights: list[list[Tensor]] = [[] for _ in rows]
    finished = [False] * len(rows)
    token_B = torch.full((len(rows),), tokens.first, device=device) if first_B is None else first_B
    banned = torch.tensor(tokens.banned, dtype=torch.long, device=device)

    while rows:
        step = model.step(token_B, state, want_weights)
        logits_BN = full_precision(step.logits_BN)
        token_B = choose_tokens(logits_BN.index_fill(-1, banned, NEVER), options, partial(uniforms.next, rows))
        log_prob_B = logits_BN.gather(-1, token_B[:, None])[:, 0] - logits_BN.logsumexp(-1)
        weights_BM = require_weights(step, "an alignment") if want_weights else None
        for b, (row, token, log_prob) in enumerate(zip(rows, token_B.tolist(), log_prob_B.tolist(), strict=True)):
            log_probs[row].append(log_prob)
            if weights_BM is not None:
                weights[row].append(weights_BM[b, : sizes[row]])
            if token == tokens.end:
                finished[row] = True
            else:
                ids[row].append(token)
        alive = [b for b, row in enumerate(rows) if not finished[row] and len(ids[row]) < limits[row]]
        if len(alive) < len(rows):  # finished rows leave the batch
            kept = torch.tensor(alive, dtype=torch.long, device=device)
            rows = [rows[b] for b in alive]
            if rows:
                token_B, state = token_B[kept], state.reorder(kept)

    return [
        Hypothesis(
            ids=ids[row],
            score=sum(log_probs[row]),
            log_prob=sum(log_probs[row]),
            log_probs=log_probs[row],
            finished=finished[row],
            weights_LM=torch.stack(weights[row]) if weights[row] else None,
        )
        for row in range(len(limits))
    ]
