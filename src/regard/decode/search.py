r"""Greedy and beam search: from each step keep the few best beginnings, and of the finished answers the best by score.

$$Y^* = \arg\max_Y \frac{\log P(Y \mid X)}{lp(|Y|)} + cp(X, Y), \qquad \log P = \sum_j \log p(y_j \mid y_{<j}, X)$$

Beginnings of one length are ranked by log P; the score, with its penalties, ranks what is finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import NotSupported
from ._base import Hypothesis, Model, Relative, S, Stepped, Tokens, asked_weights, full_precision, limits
from .penalties import GNMT, LengthPenalty, coverage

NEVER = -torch.inf


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How to search. `width` 1 is greedy: the best token at every step, whatever the penalties."""

    width: int = 4
    length: LengthPenalty = field(default_factory=GNMT)
    coverage: float = 0.0  # β; 0.2 is Wu's, and needs a model whose steps give weights
    most: int | Relative | None = None  # tokens at most, the end token counted; None: source length + 50
    nbest: int = 1

    def __post_init__(self) -> None:
        if self.width < 1 or not 1 <= self.nbest <= self.width:
            raise NotSupported(f"Beam(width={self.width}, nbest={self.nbest}): expected 1 ≤ nbest ≤ width")
        if self.coverage < 0:
            raise NotSupported(f"Beam(coverage={self.coverage}): expected β ≥ 0; it is a penalty already")
        if isinstance(self.most, int) and self.most < 1:
            raise NotSupported(f"Beam(most={self.most}): expected at least 1, for the end token")


GREEDY = Beam(width=1)


class _Moment(NamedTuple):
    """One step of all rows R that were alive then: what they were fed, and whom they continue."""

    token_R: Tensor
    log_prob_R: Tensor  # of that token
    parent_R: Tensor  # its row in the step before
    weights_RM: Tensor | None


class _Finished:
    """The `nbest` best finished answers of each sentence so far, best first: enough to find their tokens in the moments."""

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
    model: Model[S],
    state: S,
    options: Beam = GREEDY,
    *,
    source_n_B: Tensor,
    tokens: Tokens = Tokens(),  # noqa: B008  frozen
    first_B: Tensor | None = None,
    want_weights: bool = False,
) -> list[list[Hypothesis]]:
    """The `nbest` best answers of every row of the state, best first. `first_B` is the first token of each row, `tokens.first` if not given.

    A sentence leaves the batch as soon as nothing still alive can come among its best: log P only falls, cp is at most 0, so a
    beginning can reach at most log P / max lp over the lengths left. Hence stopping never changes an answer. The last token
    that the limit allows is the end token, at its own price.
    """
    if not len(source_n_B):
        return []
    with torch.inference_mode():  # some 5 % faster than no_grad for one sentence: nobody watches over views
        finished, moments = _searched(model, state, options, source_n_B, tokens, first_B, want_weights)
    return _answers(finished, moments, source_n_B)


def _searched(
    model: Model[S], state: S, options: Beam, source_n_B: Tensor, tokens: Tokens, first_B: Tensor | None, want_weights: bool
) -> tuple[_Finished, list[_Moment]]:
    """What was finished, and all that was fed on the way."""
    end, device, beta = tokens.end, source_n_B.device, options.coverage
    most = limits(options.most, source_n_B)
    most_b, keep = torch.tensor(most, device=device), (1 if options.width == 1 else 2 * options.width)
    at_most_b = torch.tensor([options.length(n) for n in most], device=device)
    who_b = torch.arange(len(most), device=device)  # the sentences still in the batch
    token_R = torch.full_like(who_b, tokens.first) if first_B is None else first_B
    moments: list[_Moment] = []
    log_prob_R = token_log_prob_R = torch.zeros(len(most), device=device)
    parent_R, looked_RM, finished = who_b, None, None

    for step in range(1, max(most) + 1):
        given = model.step(token_R, state, want_weights or beta > 0)
        weights_RM = asked_weights(given, "a coverage penalty" if beta else "an alignment") if want_weights or beta else None
        moments.append(_Moment(token_R, token_log_prob_R, parent_R, weights_RM if want_weights else None))
        slots = len(token_R) // len(who_b)
        must_end_R = (most_b == step).repeat_interleave(slots) if step in most else None

        # every row's best next tokens, then every sentence's best of those
        step_RC, token_RC = _candidates(given, keep, tokens, must_end_R)
        finished = finished or _Finished(len(most), options.nbest, step_RC)
        C = step_RC.shape[1]
        log_prob_bC, place_bC = (log_prob_R[:, None] + step_RC).view(len(who_b), slots * C).topk(min(keep, slots * C), -1)
        step_bC, token_bC = (t.reshape(len(who_b), -1).gather(1, place_bC) for t in (step_RC, token_RC))
        row_bC = place_bC // C + slots * torch.arange(len(who_b), device=device)[:, None]
        ended_bC = token_bC == end

        # an end counts among the best `width`; the other half of the candidates is there so that ends take nobody's place
        width = min(options.width, log_prob_bC.shape[1])
        if beta and weights_RM is not None:
            looked_RM = weights_RM.to(step_RC.dtype) + (0 if looked_RM is None else looked_RM)
        if ended_bC[:, :width].any():
            score_bC = log_prob_bC[:, :width] / options.length(step)
            if looked_RM is not None:
                score_bC = score_bC + coverage(looked_RM, source_n_B[who_b].repeat_interleave(slots), beta)[row_bC[:, :width]]
            score_bC = score_bC.masked_fill(~ended_bC[:, :width], NEVER)
            finished.add(who_b, score_bC, log_prob_bC[:, :width], step_bC[:, :width], row_bC[:, :width], step)

        log_prob_bW, kept_bW = log_prob_bC.masked_fill(ended_bC, NEVER).topk(width, -1)
        # lp is monotone, so its largest value over the lengths left is at the next one or at the limit
        bound_b = log_prob_bW[:, 0] / at_most_b.clamp(min=options.length(step + 1))
        on_n = (bound_b > finished.score_Bn[who_b, -1]).nonzero()[:, 0]
        if not len(on_n):
            break
        all_go_on = len(on_n) == len(who_b)
        if not all_go_on:
            who_b, most_b, at_most_b = who_b[on_n], most_b[on_n], at_most_b[on_n]
            log_prob_bW, kept_bW, row_bC, token_bC, step_bC = (t[on_n] for t in (log_prob_bW, kept_bW, row_bC, token_bC, step_bC))
        parent_bW = row_bC.gather(1, kept_bW)
        if slots == width > 1 and all_go_on:
            home_bW = _at_home(parent_bW)
            parent_bW, kept_bW, log_prob_bW = (t.gather(1, home_bW) for t in (parent_bW, kept_bW, log_prob_bW))
        parent_R, log_prob_R = parent_bW.flatten(), log_prob_bW.flatten()
        token_R, token_log_prob_R = (t.gather(1, kept_bW).flatten() for t in (token_bC, step_bC))
        looked_RM = None if looked_RM is None else looked_RM[parent_R]
        if not (slots == width == 1 and all_go_on):  # a greedy step in which nobody left moves no row
            state = state.reorder(parent_R)
    assert finished is not None
    return finished, moments


def _candidates(given: Stepped, keep: int, tokens: Tokens, must_end_R: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of each row's best next tokens. Rows at their limit have one: the end."""
    logits_RN = full_precision(given.logits_BN)
    # Those that are never said are asked for as well and struck out after: cheaper than a copy of all logits.
    logits_RC, token_RC = logits_RN.topk(min(keep + len(tokens.never), logits_RN.shape[1]), -1)
    for never in tokens.never:
        logits_RC = logits_RC.masked_fill(token_RC == never, NEVER)
    if must_end_R is not None:
        only_RC = torch.full_like(logits_RC, NEVER)
        only_RC[:, 0] = logits_RN[:, tokens.end]
        logits_RC = torch.where(must_end_R[:, None], only_RC, logits_RC)
        token_RC = torch.where(must_end_R[:, None], tokens.end, token_RC)
    return logits_RC - logits_RN.logsumexp(-1, keepdim=True), token_RC


def _at_home(parent_bW: Tensor) -> Tensor:
    """An order in which one child of every parent takes its place, and the others the places that are free: fewer rows move."""
    width, order = parent_bW.shape[1], []
    for sentence, parents in enumerate(parent_bW.tolist()):
        heirs = {parent: child for child, parent in enumerate(parents)}
        others = [child for child, parent in enumerate(parents) if heirs[parent] != child]
        order.append([heirs[row] if row in heirs else others.pop() for row in range(sentence * width, (sentence + 1) * width)])
    return torch.tensor(order, device=parent_bW.device)


def _answers(finished: _Finished, moments: list[_Moment], source_n_B: Tensor) -> list[list[Hypothesis]]:
    """Walk back from every finished answer to the beginning, all at once."""
    sentences, nbest = finished.score_Bn.shape
    row_K, step_K = finished.row_Bn.flatten(), finished.step_Bn.flatten()
    ids, log_probs, weights = [], [finished.last_Bn.flatten()], []
    for number in range(len(moments), 0, -1):
        moment, past_K = moments[number - 1], step_K >= number
        row_K = torch.where(past_K, row_K, 0)  # the answer had ended before: any row will do, it is cut off below
        ids.append(moment.token_R[row_K])
        log_probs.append(moment.log_prob_R[row_K])
        if moment.weights_RM is not None:
            weights.append(moment.weights_RM[row_K])
        row_K = torch.where(past_K, moment.parent_R[row_K], finished.row_Bn.flatten())
    ids_KL, log_prob_KL = torch.stack(ids[::-1], 1).tolist(), torch.stack(log_probs[:0:-1], 1).tolist()
    weights_KLM = torch.stack(weights[::-1], 1) if weights else None
    score_K, log_prob_K, last_K, steps = (
        t.flatten().tolist() for t in (finished.score_Bn, finished.log_prob_Bn, finished.last_Bn, finished.step_Bn)
    )
    answers: list[list[Hypothesis]] = []
    for sentence, size in enumerate(source_n_B.tolist()):
        these = [k for k in range(sentence * nbest, (sentence + 1) * nbest) if score_K[k] > NEVER]
        if not these:
            raise NotSupported(f"row {sentence} has no answer: the model's logits are not numbers, or give the end token no probability")
        answers.append(
            [
                Hypothesis(
                    ids=ids_KL[k][1 : steps[k]],
                    score=score_K[k],
                    log_prob=log_prob_K[k],
                    log_probs=[*log_prob_KL[k][1 : steps[k]], last_K[k]],
                    weights_LM=None if weights_KLM is None else weights_KLM[k, : steps[k], :size],
                )
                for k in these
            ]
        )
    return answers
