"""Drawing text at random: logits are reshaped, unlikely tokens cut away, and one token is drawn from what is left.

The order is fixed: never-said tokens → temperature (logits / τ) → top-k → top-p → min-p → softmax → draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import NotSupported, ShapeError
from ._base import Hypothesis, Model, Relative, S, Tokens, asked_weights, full_precision, limits

NEVER = -torch.inf
COLD = 1e-6  # below this temperature only the best token is left; dividing by less may leave no numbers
AHEAD = 64  # random numbers drawn at a time for a row: a fixed number, so that a row's sequence depends on nothing else


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to draw. The defaults draw from the model's own distribution; `temperature` 0 takes the best token, exactly as greedy does.

    At the limit an answer is cut, where a search would close it with the end token.
    """

    temperature: float = 1.0
    top_k: int = 0  # keep the k likeliest tokens, and all that tie with the k-th; 0: all
    top_p: float = 1.0  # keep the fewest likeliest tokens whose mass reaches p: the one that crosses p stays
    min_p: float = 0.0  # keep tokens at least this fraction as likely as the likeliest
    seed: int = 0
    most: int | Relative | None = None  # tokens at most, the end token counted; None: source length + 50

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise NotSupported(f"Sampling(temperature={self.temperature}): expected a number of at least 0")
        if self.top_k < 0:
            raise NotSupported(f"Sampling(top_k={self.top_k}): expected at least 1, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise NotSupported(f"Sampling(top_p={self.top_p}): expected more than 0 and at most 1, which keeps all tokens")
        if not 0 <= self.min_p <= 1:
            raise NotSupported(f"Sampling(min_p={self.min_p}): expected 0, which keeps all tokens, to 1")
        if isinstance(self.most, int) and self.most < 1:
            raise NotSupported(f"Sampling(most={self.most}): expected at least 1")


def top_k(logits_BN: Tensor, k: int) -> Tensor:
    """All below the k-th largest become −∞; ties with it stay, so nothing depends on the order of ids."""
    return logits_BN.masked_fill(logits_BN < logits_BN.topk(min(k, logits_BN.shape[-1]), -1).values[:, -1:], NEVER)


def top_p(logits_BN: Tensor, p: float) -> Tensor:
    """A token stays if the mass of the likelier ones is less than p; so the likeliest stays, and the one that crosses p."""
    sorted_BN, order_BN = logits_BN.sort(dim=-1, descending=True, stable=True)
    prob_BN = sorted_BN.softmax(-1, dtype=torch.float64)
    before_BN = prob_BN.cumsum(-1) - prob_BN
    # Probabilities come from float32, so 0.4 + 0.3 may miss 0.7 by some units in its last place: then it is reached.
    enough_BN = before_BN >= p - 4 * torch.finfo(torch.float32).eps
    enough_BN[:, 0] = False
    return logits_BN.masked_fill(torch.zeros_like(enough_BN).scatter(-1, order_BN, enough_BN), NEVER)


def min_p(logits_BN: Tensor, fraction: float) -> Tensor:
    """A token stays if its probability is at least this fraction of the largest one."""
    prob_BN = logits_BN.softmax(-1)
    return logits_BN.masked_fill(prob_BN < fraction * prob_BN.amax(-1, keepdim=True), NEVER)


def filtered(logits_BN: Tensor, options: Sampling) -> Tensor:
    """The logits of the distribution that is drawn from, in the order this module states."""
    if options.temperature < COLD:
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
    """One token a row, by where a number in [0, 1) falls in the running sum of probabilities. A token of probability 0 never comes."""
    sum_BN = logits_BN.softmax(-1, dtype=torch.float64).cumsum(-1)
    total_B = sum_BN[:, -1]
    place_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))  # rounding must not reach the end
    return torch.searchsorted(sum_BN, place_B[:, None], right=True)[:, 0]


class Uniforms:
    """Random numbers of many rows, each row's from a generator of its own: row `number` has the same ones whoever its neighbours are.

    They are drawn on the CPU, so a seed means the same text on every device.
    """

    def __init__(self, seed: int, numbers: Sequence[int]):
        self._generators = [torch.Generator().manual_seed(_mixed(seed, number)) for number in numbers]
        self._ahead_BC = torch.empty(len(numbers), 0, dtype=torch.float64)
        self._used = 0

    def next(self, rows: list[int]) -> Tensor:
        """The next number of the rows still there; all rows move on together."""
        if self._used == self._ahead_BC.shape[1]:
            drawn = [torch.rand(AHEAD, generator=g, dtype=torch.float64) for g in self._generators]
            self._ahead_BC, self._used = torch.stack(drawn), 0
        self._used += 1
        return self._ahead_BC[rows, self._used - 1]


def _mixed(seed: int, number: int) -> int:
    """A seed of its own for every (seed, row): plain addition would give row 1 of seed 0 the text of row 0 of seed 1."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=7).digest(), "big")


Watch = Callable[[list[int], list[int]], list[bool]]


@torch.no_grad()
def sample(
    model: Model[S],
    state: S,
    options: Sampling = Sampling(),  # noqa: B008  frozen
    *,
    source_n_B: Tensor,
    tokens: Tokens = Tokens(),  # noqa: B008  frozen
    first_B: Tensor | None = None,
    numbers: Sequence[int] | None = None,
    watch: Watch | None = None,
    want_weights: bool = False,
) -> list[Hypothesis]:
    """One drawn answer for every row of the state. `numbers` are the rows' own numbers, which their random numbers come from: 0, 1, 2 … if not given.

    `watch(rows, ids)` is called after each step with the rows still going and the token each has got, and says which of them
    stop here: stop strings and streaming (`stops.Watcher`). The log-probabilities given are the model's own, before any of the options.
    """
    most, device = limits(options.most, source_n_B), source_n_B.device
    rows, sizes = list(range(len(most))), source_n_B.tolist()
    if numbers is not None and len(numbers) != len(rows):
        raise ShapeError(f"{len(numbers)} row numbers for {len(rows)} rows; give one a row")
    uniforms = Uniforms(options.seed, rows if numbers is None else numbers)
    ids: list[list[int]] = [[] for _ in rows]
    log_probs: list[list[float]] = [[] for _ in rows]
    weights: list[list[Tensor]] = [[] for _ in rows]
    finished = [False] * len(rows)
    token_B = torch.full((len(rows),), tokens.first, device=device) if first_B is None else first_B

    while rows:
        given = model.step(token_B, state, want_weights)
        logits_BN = full_precision(given.logits_BN)
        allowed_BN = logits_BN.index_fill(-1, torch.tensor(tokens.never, dtype=torch.long, device=device), NEVER)
        token_B = _next(allowed_BN, options, uniforms.next(rows).to(device))
        log_prob_B = logits_BN.gather(-1, token_B[:, None])[:, 0] - logits_BN.logsumexp(-1)
        drawn = token_B.tolist()
        looked_BM = asked_weights(given, "an alignment") if want_weights else None
        for b, (row, token, log_prob) in enumerate(zip(rows, drawn, log_prob_B.tolist(), strict=True)):
            log_probs[row].append(log_prob)
            if looked_BM is not None:
                weights[row].append(looked_BM[b, : sizes[row]])
            if token == tokens.end:
                finished[row] = True
            else:
                ids[row].append(token)
        going = [b for b, row in enumerate(rows) if not finished[row]]
        if watch is not None and going:
            for b, stops in zip(going, watch([rows[b] for b in going], [drawn[b] for b in going]), strict=True):
                finished[rows[b]] = stops
        going = [b for b in going if not finished[rows[b]] and len(ids[rows[b]]) < most[rows[b]]]
        if len(going) < len(rows):  # those that ended leave the batch
            left = torch.tensor(going, dtype=torch.long, device=device)
            rows = [rows[b] for b in going]
            if rows:
                token_B, state = token_B[left], state.reorder(left)

    return [
        Hypothesis(
            ids=ids[row],
            score=sum(log_probs[row]),
            log_prob=sum(log_probs[row]),
            log_probs=log_probs[row],
            finished=finished[row],
            weights_LM=torch.stack(weights[row]) if weights[row] else None,
        )
        for row in range(len(most))
    ]


def _next(logits_BN: Tensor, options: Sampling, uniform_B: Tensor) -> Tensor:
    if options.temperature == 0:
        return logits_BN.argmax(-1)
    return draw(filtered(logits_BN, options), uniform_B)
