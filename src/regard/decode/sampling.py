r"""Sampling: the options of a completion, and how the next token is drawn from the logits.

Order of operations: repetition penalty → logit biases, presence and frequency penalties → temperature (logits / τ) → top-k → top-p → min-p →
softmax → draw.

The default temperature is 1 for every function, command and route: samples of the model's own distribution, as with OpenAI and transformers.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import NotSupported, ShapeError
from ._base import DecoderModel, DecoderTokens, Hypothesis, RelativeLength, max_lengths, require_weights

NEVER = -torch.inf  # the logit of a token that is never chosen
GREEDY_BELOW = 1e-6  # temperatures below this take the most likely token; dividing by less could overflow
BUFFER = 64  # random numbers drawn at once per row: a constant, so that a row's sequence depends on nothing else
DEFAULT_MAX_TOKENS = 100


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. The defaults draw from the model's own distribution; temperature 0 is greedy decoding.

    At `max_tokens` a sample is cut off, whereas beam search closes a hypothesis with the end token.
    """

    temperature: float = 1.0
    """Sampling temperature; 0 always takes the most likely token."""
    top_k: int = 0
    """Sample from the k most likely tokens, and those tied with the k-th; 0 keeps all."""
    top_p: float = 1.0
    """Sample from the smallest set of most likely tokens whose probabilities add up to p; 1 keeps all."""
    min_p: float = 0.0
    """Sample from tokens at least this fraction as likely as the most likely one; 0 keeps all."""
    seed: int | None = 0
    """Seed for sampling; the same seed gives the same text."""
    max_tokens: int | RelativeLength | None = None
    """Maximum number of new tokens, the end token included; by default the source length + 50."""
    least_tokens: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise self._bad("temperature", "a number of at least 0")
        if self.top_k < 0:
            raise self._bad("top_k", "at least 1, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise self._bad("top_p", "more than 0 and at most 1, which keeps all tokens")
        if not 0 <= self.min_p <= 1:
            raise self._bad("min_p", "0, which keeps all tokens, to 1")
        if isinstance(self.max_tokens, int) and self.max_tokens < self.least_tokens:
            raise self._bad("max_tokens", f"at least {self.least_tokens}")

    def _bad(self, name: str, expected: str) -> NotSupported:
        return NotSupported(f"{type(self).__name__}({name}={getattr(self, name)!r}): expected {expected}")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(Sampling):
    """How a language model completes prompts. The defaults draw one completion per prompt from the model's own distribution."""

    seed: int | None = None
    """Sampling seed: the same seed and prompt give the same completions; by default a new seed per prompt."""
    max_tokens: int | None = None
    """Maximum number of new tokens per completion; by default 100. Beyond the context length the oldest tokens are dropped."""
    n: int = 1
    """Number of completions per prompt."""
    best_of: int | None = None
    """Generate this many completions and return the n with the highest log-probability per token; by default n."""
    stop: tuple[str, ...] = ()
    """Stop strings: a completion ends before the first of them."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each time it was generated."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens in the prompt or generated before, and multiplies negative ones; 1 turns it off."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of tokens, by token id."""
    logprobs: int | None = None
    """Return log-probabilities, and those of this many most likely alternatives per token; by default none."""
    echo: bool = False
    """Return the prompt as part of the completion."""
    least_tokens: ClassVar[int] = 0  # only the prompt is read, for its log-probabilities

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 1 or (self.best_of is not None and self.best_of < self.n):
            raise NotSupported(f"GenerationOptions(n={self.n}, best_of={self.best_of}): expected 1 ≤ n ≤ best_of")
        if isinstance(self.stop, str):  # type: ignore[unreachable]
            raise self._bad("stop", f"a tuple of strings; write stop=({self.stop!r},)")
        if "" in self.stop:
            raise self._bad("stop", "no empty stop string, which would end every completion at once")
        if not 0.01 <= self.repetition_penalty <= 100:  # beyond, logits could overflow
            raise self._bad("repetition_penalty", "0.01 to 100; 1 turns it off")
        if self.logprobs is not None and self.logprobs < 0:
            raise self._bad("logprobs", "at least 0, or None for no log-probabilities")

    @property
    def num_completions(self) -> int:
        """Completions generated per prompt."""
        return self.best_of or self.n


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
    """One sample for every row of the state. `numbers` identify the rows to the random number generators; by default 0, 1, 2, …

    The log-probabilities returned are the model's own, before temperature and filters.
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
