r"""Greedy and beam search: keep the most likely prefixes at each step, and return the finished hypotheses with the best scores.

$$Y^* = \arg\max_Y \frac{\log P(Y \mid X)}{lp(|Y|)} + cp(X, Y), \qquad \log P = \sum_j \log p(y_j \mid y_{<j}, X), \qquad
  cp = \beta \sum_i \log \min\Big(\sum_j a_{ij},\, 1\Big)$$

Prefixes of one length are ranked by log P; the score ranks finished hypotheses. Its penalties make them comparable: lp for length, as log P
falls with every token, and cp for untranslated words. $a_{ij}$ is the attention weight of target token $j$ on source token $i$; $|Y|$
includes the end token but not the first one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import NotSupported
from ..models import Step
from ._base import DecoderModel, DecoderTokens, Hypothesis, RelativeLength, max_lengths, require_weights
from .sampling import NEVER, full_precision

# A source token without any attention would give log 0; the smallest normal number keeps the formula finite in float32.
LEAST = torch.finfo(torch.float32).tiny


class LengthPenalty(Protocol):
    """lp(|Y|), the number that log P is divided by; monotone in the length."""

    def __call__(self, length: int) -> float: ...


@dataclass(frozen=True)
class GNMT:
    """lp = ((5 + |Y|) / 6)^α (Wu et al. 2016, eq. 14). α = 0 ranks by log P alone; a larger α favours longer hypotheses.

    Args:
        alpha: exponent α.
    """

    alpha: float = 0.6

    def __call__(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)


@dataclass(frozen=True)
class Power:
    """lp = |Y|^α, Hugging Face's `length_penalty`. α = 1 ranks by the mean log-probability per token.

    Args:
        alpha: exponent α.
    """

    alpha: float = 1.0

    def __call__(self, length: int) -> float:
        return float(length**self.alpha)


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Beam-search options. Size 1 is greedy decoding: the most likely token at every step, whatever the penalties."""

    size: int = 4
    """Prefixes kept per sentence."""
    length_penalty: LengthPenalty = field(default_factory=GNMT)
    """Length penalty, which log P is divided by."""
    coverage_penalty: float = 0.0
    """β of the coverage penalty, 0.2 in Wu et al. 2016; needs a model whose steps return attention weights."""
    max_tokens: int | RelativeLength | None = None
    """Maximum number of tokens, the end token included; by default the source length + 50."""
    nbest: int = 1
    """Hypotheses returned per sentence."""

    def __post_init__(self) -> None:
        if self.size < 1 or not 1 <= self.nbest <= self.size:
            raise NotSupported(f"Beam(size={self.size}, nbest={self.nbest}): expected 1 ≤ nbest ≤ size")
        if self.coverage_penalty < 0:
            raise NotSupported(f"Beam(coverage_penalty={self.coverage_penalty}): expected β ≥ 0; it is subtracted already")
        if isinstance(self.max_tokens, int) and self.max_tokens < 1:
            raise NotSupported(f"Beam(max_tokens={self.max_tokens}): expected at least 1, for the end token")


GREEDY: Beam = Beam(size=1)


class _Step(NamedTuple):
    """One step of all rows R alive at the time: the tokens they were fed, and the rows they continue."""

    token_R: Tensor
    log_prob_R: Tensor  # log-probability of that token
    parent_R: Tensor  # its row in the previous step
    weights_RM: Tensor | None


class _Finished:
    """The `nbest` best finished hypotheses of each sentence so far, best first: enough to trace their tokens back through the steps."""

    def __init__(self, sentences: int, nbest: int, like: Tensor):
        self.score_Bn = like.new_full((sentences, nbest), NEVER)
        self.log_prob_Bn = like.new_full((sentences, nbest), NEVER)
        self.last_Bn = like.new_zeros(sentences, nbest)  # log-probability of the end token
        self.row_Bn = torch.zeros(sentences, nbest, dtype=torch.long, device=like.device)
        self.step_Bn = torch.zeros_like(self.row_Bn)

    def add(self, who_b: Tensor, score_bC: Tensor, log_prob_bC: Tensor, last_bC: Tensor, row_bC: Tensor, step: int) -> None:
        score = torch.cat([self.score_Bn[who_b], score_bC], 1)
        score, chosen = score.topk(self.score_Bn.shape[1], -1)
        self.score_Bn[who_b] = score
        new = (self.log_prob_Bn, log_prob_bC), (self.last_Bn, last_bC), (self.row_Bn, row_bC), (self.step_Bn, torch.full_like(row_bC, step))
        for kept_Bn, new_bC in new:
            kept_Bn[who_b] = torch.cat([kept_Bn[who_b], new_bC], 1).gather(1, chosen)


def search(
    model: DecoderModel,
    state: Any,
    options: Beam = GREEDY,
    *,
    source_n_B: Tensor,
    tokens: DecoderTokens = DecoderTokens(),  # noqa: B008  frozen
    first_B: Tensor | None = None,
    want_weights: bool = False,
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of every row of the state, best first.

    A sentence leaves the batch as soon as no prefix still alive can be among its best: log P only falls and cp is at most 0, so a
    prefix can reach at most log P / max lp over the lengths left. Hence early stopping never changes a result. The last token that the
    limit allows is the end token, at its own log-probability.

    Args:
        model: decoder.
        state: state of the decoder after reading the sources, a row per source.
        options: beam size, length and coverage penalties, maximum number of tokens, number of hypotheses.
        source_n_B: number of tokens of each source.
        tokens: special tokens of the decoder.
        first_B: first token of each row; `tokens.first` if not given.
        want_weights: keep the attention weights of every step.

    Shape: source_n_B, first_B: one number per row of the state.
    """
    if not len(source_n_B):
        return []
    running = _run(model, state, options, source_n_B, tokens, first_B, want_weights)
    with torch.inference_mode():  # some 5 % faster than no_grad for one sentence: views are not tracked
        while True:
            try:
                next(running)
            except StopIteration as done:
                finished, steps = done.value
                return _hypotheses(finished, steps, source_n_B)


class Prefix(NamedTuple):
    """The beginning of a hypothesis."""

    ids: list[int]  # tokens after the first
    log_prob: float  # log-probability of these tokens together
    weights_M: Tensor | None  # attention weights of the query that chose its last token


class Watched(NamedTuple):
    """A search after a step, best first: the prefixes that go on, and the best hypotheses that have ended."""

    alive: list[Prefix]
    ended: list[Hypothesis]


def watch(
    model: DecoderModel,
    state: Any,
    options: Beam,
    *,
    source_n_B: Tensor,
    tokens: DecoderTokens = DecoderTokens(),  # noqa: B008  frozen
    want_weights: bool = False,
) -> Iterator[Watched]:
    """The search over one sentence as it happens, step by step.

    Args:
        model: decoder.
        state: state of the decoder after reading one source.
        options: beam size, length and coverage penalties, maximum number of tokens, number of hypotheses.
        source_n_B: number of tokens of the source.
        tokens: special tokens of the decoder.
        want_weights: keep the attention weights of every step.

    Shape: source_n_B: one number.
    """
    running = _run(model, state, options, source_n_B, tokens, None, want_weights)
    while True:
        with torch.inference_mode():
            alive = next(running, None)
            if alive is None:
                return
            has_ended = float(alive.finished.score_Bn.max()) > NEVER
            ended = _hypotheses(alive.finished, alive.steps, source_n_B)[0] if has_ended else []
            found = Watched(_prefixes(alive), ended)
        yield found


def _prefixes(alive: _Alive) -> list[Prefix]:
    row_R, ids, weights_RM = alive.parent_R, [alive.token_R], alive.steps[-1].weights_RM
    for step in alive.steps[:0:-1]:  # the first is fed the token that every prefix begins with
        ids.append(step.token_R[row_R])
        row_R = step.parent_R[row_R]
    ids_RL, log_probs = torch.stack(ids[::-1], 1).tolist(), alive.log_prob_R.tolist()
    found = [
        Prefix(row, log_prob, None if weights_RM is None else weights_RM[parent])
        for row, log_prob, parent in zip(ids_RL, log_probs, alive.parent_R.tolist(), strict=True)
        if log_prob > NEVER
    ]
    return sorted(found, key=lambda prefix: -prefix.log_prob)


class _Alive(NamedTuple):
    """Rows alive after a step, with the tokens they are fed next, and all steps so far."""

    token_R: Tensor
    log_prob_R: Tensor  # log-probability of the whole prefix
    parent_R: Tensor
    steps: list[_Step]
    finished: _Finished


def _run(
    model: DecoderModel, state: Any, options: Beam, source_n_B: Tensor, tokens: DecoderTokens, first_B: Tensor | None, want_weights: bool
) -> Generator[_Alive, None, tuple[_Finished, list[_Step]]]:
    """Yield the prefixes alive after each step; return the finished hypotheses, and all steps."""
    end, device, beta = tokens.end, source_n_B.device, options.coverage_penalty
    limits, keep = max_lengths(options.max_tokens, source_n_B), (1 if options.size == 1 else 2 * options.size)
    limit_b = torch.tensor(limits, device=device)
    last_penalty_b = torch.tensor([options.length_penalty(n) for n in limits], device=device)
    who_b = torch.arange(len(limits), device=device)  # the sentences still in the batch
    token_R = torch.full_like(who_b, tokens.first) if first_B is None else first_B
    steps: list[_Step] = []
    log_prob_R = token_log_prob_R = torch.zeros(len(limits), device=device)
    parent_R, coverage_RM, finished = who_b, None, None

    for number in range(1, max(limits) + 1):
        step = model.step(token_R, state, want_weights or beta > 0)
        weights_RM = require_weights(step, "a coverage penalty" if beta else "an alignment") if want_weights or beta else None
        steps.append(_Step(token_R, token_log_prob_R, parent_R, weights_RM if want_weights else None))
        slots = len(token_R) // len(who_b)
        must_end_R = (limit_b == number).repeat_interleave(slots) if number in limits else None

        # the most likely next tokens of every row, then the best of those of every sentence
        step_RC, token_RC = _candidates(step, keep, tokens, must_end_R)
        finished = finished or _Finished(len(limits), options.nbest, step_RC)
        C = step_RC.shape[1]
        log_prob_bC, at_bC = (log_prob_R[:, None] + step_RC).view(len(who_b), slots * C).topk(min(keep, slots * C), -1)
        step_bC, token_bC = (t.reshape(len(who_b), -1).gather(1, at_bC) for t in (step_RC, token_RC))
        row_bC = at_bC // C + slots * torch.arange(len(who_b), device=device)[:, None]
        ended_bC = token_bC == end

        # an end token counts among the best `size`; the other half of the candidates replaces those that ended
        size = min(options.size, log_prob_bC.shape[1])
        if beta and weights_RM is not None:
            coverage_RM = weights_RM.to(step_RC.dtype) + (0 if coverage_RM is None else coverage_RM)
        if ended_bC[:, :size].any():
            score_bC = log_prob_bC[:, :size] / options.length_penalty(number)
            if coverage_RM is not None:
                score_bC = score_bC + coverage(coverage_RM, source_n_B[who_b].repeat_interleave(slots), beta)[row_bC[:, :size]]
            score_bC = score_bC.masked_fill(~ended_bC[:, :size], NEVER)
            finished.add(who_b, score_bC, log_prob_bC[:, :size], step_bC[:, :size], row_bC[:, :size], number)

        log_prob_bW, kept_bW = log_prob_bC.masked_fill(ended_bC, NEVER).topk(size, -1)
        # lp is monotone, so its largest value over the lengths left is at the next one or at the limit
        bound_b = log_prob_bW[:, 0] / last_penalty_b.clamp(min=options.length_penalty(number + 1))
        kept_n = (bound_b > finished.score_Bn[who_b, -1]).nonzero()[:, 0]
        if not len(kept_n):
            break
        all_kept = len(kept_n) == len(who_b)
        if not all_kept:
            who_b, limit_b, last_penalty_b = who_b[kept_n], limit_b[kept_n], last_penalty_b[kept_n]
            log_prob_bW, kept_bW, row_bC, token_bC, step_bC = (t[kept_n] for t in (log_prob_bW, kept_bW, row_bC, token_bC, step_bC))
        parent_bW = row_bC.gather(1, kept_bW)
        if slots == size > 1 and all_kept:
            order_bW = in_place_order(parent_bW)
            parent_bW, kept_bW, log_prob_bW = (t.gather(1, order_bW) for t in (parent_bW, kept_bW, log_prob_bW))
        parent_R, log_prob_R = parent_bW.flatten(), log_prob_bW.flatten()
        token_R, token_log_prob_R = (t.gather(1, kept_bW).flatten() for t in (token_bC, step_bC))
        coverage_RM = None if coverage_RM is None else coverage_RM[parent_R]
        if not (slots == size == 1 and all_kept):  # a greedy step in which all rows stay moves none
            state = state.reorder(parent_R)
        yield _Alive(token_R, log_prob_R, parent_R, steps, finished)
    assert finished is not None
    return finished, steps


def _candidates(step: Step, keep: int, tokens: DecoderTokens, must_end_R: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of each row's most likely next tokens. Rows at their limit have one: the end token."""
    logits_RN = full_precision(step.logits_BN)
    # Banned tokens are selected too and masked afterwards: cheaper than a copy of all logits.
    logits_RC, token_RC = logits_RN.topk(min(keep + len(tokens.banned), logits_RN.shape[1]), -1)
    for banned in tokens.banned:
        logits_RC = logits_RC.masked_fill(token_RC == banned, NEVER)
    if must_end_R is not None:
        only_RC = torch.full_like(logits_RC, NEVER)
        only_RC[:, 0] = logits_RN[:, tokens.end]
        logits_RC = torch.where(must_end_R[:, None], only_RC, logits_RC)
        token_RC = torch.where(must_end_R[:, None], tokens.end, token_RC)
    return logits_RC - logits_RN.logsumexp(-1, keepdim=True), token_RC


def coverage(sum_BM: Tensor, source_n_B: Tensor, beta: float) -> Tensor:
    """β Σ_i log min(Σ_j a_ij, 1), at most 0; sum_BM is Σ_j a_ij. Padding does not count."""
    log_BM = sum_BM.clamp(LEAST, 1.0).log()
    inside_BM = torch.arange(sum_BM.shape[1], device=sum_BM.device) < source_n_B[:, None]
    return beta * (log_BM * inside_BM).sum(-1)


def in_place_order(parent_bW: Tensor) -> Tensor:
    """An order in which one child of every parent stays in its row, and the others take the free rows: fewer rows of the state move."""
    size, order = parent_bW.shape[1], []
    for sentence, parents in enumerate(parent_bW.tolist()):
        heirs = {parent: child for child, parent in enumerate(parents)}
        others = [child for child, parent in enumerate(parents) if heirs[parent] != child]
        order.append([heirs[row] if row in heirs else others.pop() for row in range(sentence * size, (sentence + 1) * size)])
    return torch.tensor(order, device=parent_bW.device)


def _hypotheses(finished: _Finished, steps: list[_Step], source_n_B: Tensor) -> list[list[Hypothesis]]:
    """Trace every finished hypothesis back to its beginning, all at once."""
    sentences, nbest = finished.score_Bn.shape
    row_K, step_K = finished.row_Bn.flatten(), finished.step_Bn.flatten()
    ids, log_probs, weights = [], [finished.last_Bn.flatten()], []
    for number in range(len(steps), 0, -1):
        step, past_K = steps[number - 1], step_K >= number
        row_K = torch.where(past_K, row_K, 0)  # it had ended before: any row will do, it is cut off below
        ids.append(step.token_R[row_K])
        log_probs.append(step.log_prob_R[row_K])
        if step.weights_RM is not None:
            weights.append(step.weights_RM[row_K])
        row_K = torch.where(past_K, step.parent_R[row_K], finished.row_Bn.flatten())
    ids_KL, log_prob_KL = torch.stack(ids[::-1], 1).tolist(), torch.stack(log_probs[:0:-1], 1).tolist()
    weights_KLM = torch.stack(weights[::-1], 1) if weights else None
    score_K, log_prob_K, last_K, length_K = (
        t.flatten().tolist() for t in (finished.score_Bn, finished.log_prob_Bn, finished.last_Bn, finished.step_Bn)
    )
    found: list[list[Hypothesis]] = []
    for sentence, size in enumerate(source_n_B.tolist()):
        these = [k for k in range(sentence * nbest, (sentence + 1) * nbest) if score_K[k] > NEVER]
        if not these:
            raise NotSupported(f"row {sentence} has no hypothesis: the model's logits are not finite, or give the end token no probability")
        found.append(
            [
                Hypothesis(
                    ids=ids_KL[k][1 : length_K[k]],
                    score=score_K[k],
                    log_prob=log_prob_K[k],
                    log_probs=[*log_prob_KL[k][1 : length_K[k]], last_K[k]],
                    weights_LM=None if weights_KLM is None else weights_KLM[k, : length_K[k], :size],
                )
                for k in these
            ]
        )
    return found
