"""Masked language modelling: some tokens of a text are masked, and an encoder that reads both sides predicts them.

    BOS a a a ■ a a EOS b ■ b b EOS            segments 0 0 0 0 0 0 0 0 1 1 1 1 1
            ↳ a         ↳ b                    and does b follow a?  (next-sentence prediction)

15 % of the tokens are chosen, others each time: 80 % of these are shown as ■, 10 % as any other token, 10 % as they are; the loss is
computed at the chosen positions only. Rows are filled with text of one document each; with `next_sentence`, the second half of every other
row comes from another document, and the encoder also predicts whether it does. Every token is in one row of an epoch (but for what is cut
off a row that would be too long).

Paper: Devlin et al. 2019, "BERT", arXiv:1810.04805.
We differ: rows are cut at tokens, not at sentences; random tokens are never special ones; in our own vocabularies BOS and EOS do what
[CLS] and [SEP] do, and ■ has the number after the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import PAD, HFTokenizer, TokenizedText
from ..data.batches import Numbers
from ..data.hf_tokenizer import SpecialTokens
from ..errors import BadConfig, NotSupported, ShapeError
from ..layers import Packing
from ..models import Model, TextEncoder, find_model
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, check_range, require_parts
from ._framing import MASK, encode_masked
from ._options import Files
from ._processor import TextProcessor
from ._text import TextOptions, TextTask, example_text


@runtime_checkable
class Follower(Protocol):
    """An encoder with a next-sentence head."""

    def nsp_logits(self, y_BD: Tensor) -> Tensor:
        """logits_B2 of what `pooled` gave: 0, it follows; 1, it does not."""


@dataclass(frozen=True, kw_only=True)
class MaskedOptions(TextOptions):
    """Data, vocabulary, rows and masking."""

    max_length: int = 128
    """Tokens per row, special tokens included."""
    batch_size: int = 32
    """Rows per batch."""
    mask_rate: float = 0.15
    """Fraction of the tokens that are chosen for prediction."""
    next_sentence: Literal["auto", "yes", "no"] = "auto"
    """Also predict whether the second half of a row follows the first; auto: if there are several documents."""
    valid_rows: int = 200
    """Validation rows that are scored at each evaluation."""

    def __post_init__(self) -> None:
        check_range(
            self,
            max_length=(self.max_length >= 8, "8 or more"),
            batch_size=(self.batch_size >= 1, "1 or more"),
            valid_rows=(self.valid_rows >= 1, "1 or more"),
            mask_rate=(0 < self.mask_rate < 1, "a share between 0 and 1"),
        )


@dataclass(frozen=True, kw_only=True)
class FillOptions:
    """How to fill in masked tokens."""

    nbest: int = 5
    """Tokens per [MASK], most likely first, with their probabilities."""


class Masked(TextTask[MaskedOptions]):
    """Train a text encoder by masked language modelling.

    As in:  regard train masked --out runs/encoder --minutes 5
            regard train masked --data pages.jsonl.gz --field body --next-sentence no --set width=128 --out runs/encoder
    """

    name = "masked"
    Options = MaskedOptions
    PredictOptions = FillOptions
    model_kind = TextEncoder
    length_option = "max_length"
    default_model = "bert"
    default_train = TrainOptions(lr=1e-3, evaluate_every=500)
    next_commands = "regard evaluate {out}        regard train classify --init-from {out} --data examples.tsv --out runs/classifier"

    def settle(self, dataset: Dataset[TokenizedText]) -> Self:
        decided: Any = "yes" if predicts_next_sentence(self.options, dataset.train) else "no"
        settled = super().settle(dataset)
        settled.options = replace(self.options, next_sentence=decided)
        return settled

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        """Heads that nothing would train are left out, where a model has a choice."""
        wanted = self.options.next_sentence != "no"
        known = {field.name for field in fields(find_model(model).Config)}
        heads = {name: wanted for name in ("pooler", "nsp_head") if name in known}
        return super().model_settings(model, processor) | {"vocab_size": len(processor.tokenizer) + 1} | heads

    def objective(self, dataset: Dataset[TokenizedText], processor: TextProcessor, model: Model, seed: int) -> MaskedObjective:
        special = SpecialTokens.of(processor.tokenizer)
        assert isinstance(model, TextEncoder)
        self.check_length(model)
        if special.mask >= model.config.vocab_size:
            raise NotSupported(
                f"this {model.facts.name} has {model.config.vocab_size} tokens, and none is free for the mask; start from a run of "
                "`regard train masked`"
            )
        objective = MaskedObjective(dataset.train, dataset.valid, special, self.options, seed)
        if objective.next_sentence and not isinstance(model, Follower):
            raise NotSupported(f"{model.facts.name} has no next-sentence head; use --next-sentence no")
        return objective

    def evaluate(self, run: Run[TextEncoder], data: Files | None, options: NoOptions) -> Report:
        tokens, wanted = self.test_data(run, data), self.options.next_sentence
        has_head = isinstance(run.model, Follower) and getattr(run.model.config, "nsp_head", False)
        next_sentence = wanted == "yes" or (wanted == "auto" and has_head)
        special = SpecialTokens.of(run.processor.tokenizer)
        rows = Rows(tokens, special, self.options.max_length, next_sentence and tokens.documents > 1, 0)
        count = len(rows.plan(0))
        return Report(metrics=score_rows(run.model, rows, self.options, at_most=count), notes=(f"{count:,} rows",), details={"rows": count})

    @torch.no_grad()
    def predict(self, run: Run[TextEncoder], inputs: Sequence[str], options: FillOptions) -> list[Prediction]:
        """The most likely tokens for each [MASK] of a text."""
        return [self._fill(run, text, options.nbest) for text in inputs]

    def _fill(self, run: Run[TextEncoder], text: str, nbest: int) -> Prediction:
        tokenizer, special = run.processor.tokenizer, SpecialTokens.of(run.processor.tokenizer)
        if isinstance(tokenizer, HFTokenizer):  # which finds the mask in a text itself, with the spaces around it
            mask = tokenizer.vocabulary[special.mask]
            ids = tokenizer.encode_pair(text.replace(MASK, mask))[0]
        else:
            mask, ids = MASK, [special.begin, *encode_masked(tokenizer, text), special.end]
        if special.mask not in ids:
            raise NotSupported(f"{text!r} has no {mask}; write it where a token is to be predicted")
        if len(ids) > run.model.max_length:
            raise ShapeError(f"the text has {len(ids)} tokens, and this model reads up to {run.model.max_length}; shorten it")
        logits_TN = run.model(torch.tensor([ids]))[0, [n for n, i in enumerate(ids) if i == special.mask], : len(tokenizer)]
        best = logits_TN.softmax(-1).topk(min(nbest, len(tokenizer)))
        found = [
            [{"token": token, "probability": p} for token, p in zip(tokenizer.strings(numbers), ps, strict=True)]
            for numbers, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        lines = [" ".join(f"{one['token'].replace(chr(10), '↵')}({one['probability']:.2f})" for one in each) for each in found]
        return Prediction("\t".join(lines), {"masks": found})

    @classmethod
    def example(cls, folder: Path) -> Example:
        options = MaskedOptions(data=str(example_text(folder)), tokenizer="word", vocab_size=200, max_length=16, batch_size=8, valid_rows=4)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input="The number [MASK] is even", broken='{"text": 7}\n')


@dataclass
class MaskedBatch:
    """Rows as the model reads them, and what was masked."""

    ids_BL: Tensor
    n_B: Tensor
    segment_BL: Tensor
    chosen_T: Tensor  # positions in the flattened rows
    wanted_T: Tensor
    unrelated_B: Tensor | None = None  # 0: the second half follows the first; 1: it is from another document

    def __len__(self) -> int:
        return len(self.ids_BL)


class Rows:
    """Which text is in which row, as numbers: start and length of the first half, of the second, and 1 if that is from another document."""

    def __init__(self, tokens: TokenizedText, special: SpecialTokens, length: int, next_sentence: bool, seed: int):
        self.tokens, self.special, self.next_sentence, self.seed = tokens, special, next_sentence, seed
        self.word_ids, self.special_ids = special.words(), torch.tensor(sorted(special.special))
        self.size = length - (3 if next_sentence else 2)  # BOS, and an EOS per half

    def plan(self, epoch: int) -> Numbers:
        """(rows, 5), in a random order of (seed, epoch)."""
        generator = np.random.default_rng([self.seed, epoch])
        begin, size, document = self._cut(int(generator.integers(0, self.size)))
        rows = np.zeros((len(begin), 5), dtype=np.int64)
        rows[:, 0], rows[:, 1] = begin, size
        if self.next_sentence:
            first = np.clip((size * generator.uniform(0.3, 0.7, len(size))).round().astype(np.int64), 1, np.maximum(size - 1, 1))
            rows[:, 1], rows[:, 2], rows[:, 3] = first, begin + first, size - first
            _exchange(rows, document, generator, self.size)
        return rows[generator.permutation(len(rows))]

    def _cut(self, offset: int) -> tuple[Numbers, Numbers, Numbers]:
        """Start, length and document of each row; rows are equal slices of a document, offset per epoch."""
        begins, sizes, documents = [], [], []
        least = 2 if self.next_sentence else 1
        for number, (start, end) in enumerate(zip(self.tokens.starts.tolist(), self.tokens.ends.tolist(), strict=True)):
            last = end - (int(self.tokens.ids[end - 1]) == self.special.end)
            edges = np.arange(start + 1 + offset - self.size, last + self.size, self.size).clip(start + 1, last)
            size = np.diff(edges)
            begins.append(edges[:-1][size >= least])
            sizes.append(size[size >= least])
            documents.append(np.full(len(begins[-1]), number))
        return np.concatenate(begins), np.concatenate(sizes), np.concatenate(documents)


def _exchange(rows: Numbers, document: Numbers, generator: np.random.Generator, size: int) -> None:
    """Half of the rows swap their second halves, always with a row of another document; the rest keep theirs."""
    some = generator.permutation(len(rows))[: len(rows) // 2]
    some = some[np.argsort(document[some], kind="stable")]  # documents side by side: moving on by the largest number reaches another
    if len(some) == 0:
        return
    step = int(np.bincount(document[some]).max())
    given = np.roll(some, -step)
    other = document[given] != document[some]
    taken, source = some[other], given[other]
    second = rows[source, 2:4].copy()
    rows[taken, 2] = second[:, 0]
    rows[taken, 3] = np.minimum(second[:, 1], size - rows[taken, 1])
    rows[taken, 4] = 1


class MaskedObjective:
    """What the training loop asks."""

    metric = Metric("loss", higher=False)

    def __init__(self, train: TokenizedText, valid: TokenizedText, special: SpecialTokens, options: MaskedOptions, seed: int = 0):
        require_parts(options.data, train.documents, valid.documents, "documents")
        self.options, self.next_sentence = options, predicts_next_sentence(options, train)
        self.train = Rows(train, special, options.max_length, self.next_sentence, seed)
        self.unseen = Rows(valid, special, options.max_length, self.next_sentence and valid.documents > 1, 0)

    def batches(self, epoch: int) -> Sequence[Any]:
        rows = self.train.plan(epoch)
        return [rows[at : at + self.options.batch_size] for at in range(0, len(rows), self.options.batch_size)]

    def batch(self, item: Any) -> MaskedBatch:
        return mask_rows(self.train, item, self.options.mask_rate)

    def loss(self, model: nn.Module, batch: MaskedBatch) -> Loss:
        total, right, next_total, next_right = _losses(model, batch)
        count = len(batch.wanted_T)
        if next_total is None:
            return Loss(total, count, {"accuracy": float(right)})
        share = count / len(batch)  # so that the mean over tokens and the mean over rows are added
        return Loss(total + next_total * share, count, {"accuracy": float(right), "next_sentence_accuracy": next_right * share})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return score_rows(model, self.unseen, self.options)


def predicts_next_sentence(options: MaskedOptions, tokens: TokenizedText) -> bool:
    """Whether next-sentence prediction is trained."""
    if options.next_sentence == "yes" and tokens.documents < 2:
        raise BadConfig("--next-sentence yes needs at least two documents, to take a half from another; this text is one document")
    return options.next_sentence == "yes" or (options.next_sentence == "auto" and tokens.documents > 1)


def mask_rows(rows: Rows, some: Numbers, mask_rate: float, generator: torch.Generator | None = None) -> MaskedBatch:
    """Some rows of a plan, with a share of their tokens chosen and mostly masked."""
    ids, segment, n = _filled(rows, some)
    ids_BL, segment_BL, n_B = torch.from_numpy(ids), torch.from_numpy(segment), torch.from_numpy(n)
    word_BL = ~torch.isin(ids_BL, rows.special_ids) & (torch.arange(ids_BL.shape[1]) < n_B[:, None])
    # a fixed number per row, at least one: the positions with the smallest random numbers
    chance_BL = torch.rand(ids_BL.shape, generator=generator).masked_fill(~word_BL, 2.0)
    count_B = (word_BL.sum(1) * mask_rate).round().long().clamp(min=1)
    rank_BL = chance_BL.argsort(1).argsort(1)
    chosen_T = ((rank_BL < count_B[:, None]) & word_BL).flatten().nonzero()[:, 0]
    wanted_T = ids_BL.flatten()[chosen_T]
    random_T = rows.word_ids[torch.randint(len(rows.word_ids), wanted_T.shape, generator=generator)]
    lot_T = torch.rand(wanted_T.shape, generator=generator)
    shown_T = torch.where(lot_T < 0.8, rows.special.mask, torch.where(lot_T < 0.9, random_T, wanted_T))
    ids_BL = ids_BL.flatten().index_copy(0, chosen_T, shown_T).view_as(ids_BL)
    return MaskedBatch(ids_BL, n_B, segment_BL, chosen_T, wanted_T, torch.from_numpy(some[:, 4]) if rows.next_sentence else None)


def _filled(rows: Rows, some: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Numbers]:
    read, special = rows.tokens.ids, rows.special
    n = some[:, 1] + some[:, 3] + (3 if rows.next_sentence else 2)
    ids = np.full((len(some), int(n.max())), PAD, dtype=np.int64)
    segment = np.zeros_like(ids)
    for row, (first, size, second, more, _) in enumerate(some.tolist()):
        ids[row, 0], ids[row, size + 1] = special.begin, special.end
        ids[row, 1 : size + 1] = read[first : first + size]
        if rows.next_sentence:
            ids[row, size + 2 : size + 2 + more] = read[second : second + more]
            ids[row, size + 2 + more] = special.end
            segment[row, size + 2 : size + 3 + more] = 1
    return ids, segment, n


def _losses(model: nn.Module, batch: MaskedBatch) -> tuple[Tensor, Tensor, Tensor | None, float]:
    """Summed loss of the chosen tokens and how many were predicted correctly; the same of next-sentence prediction."""
    assert isinstance(model, TextEncoder)
    x_BLD = model.features(batch.ids_BL, batch.n_B, batch.segment_BL)
    B, L = batch.ids_BL.shape
    x_TD = Packing(B, L, batch.chosen_T).pack(x_BLD)[0]
    total, right = model.cross_entropy(x_TD, batch.wanted_T)
    if batch.unrelated_B is None:
        return total, right, None, 0.0
    assert isinstance(model, Follower)
    logits_B2 = model.nsp_logits(model.pooled(x_BLD))
    next_right = float((logits_B2.argmax(1) == batch.unrelated_B).sum())
    return total, right, F.cross_entropy(logits_B2, batch.unrelated_B, reduction="sum"), next_right


@torch.no_grad()
def score_rows(model: nn.Module, rows: Rows, options: MaskedOptions, at_most: int | None = None) -> dict[str, float]:
    """Loss in nats per masked token, accuracy, and accuracy of next-sentence prediction. The same rows and masks every time."""
    generator = torch.Generator().manual_seed(0)
    plan = rows.plan(0)[: at_most or options.valid_rows]
    total, right, count, next_right = 0.0, 0.0, 0, 0.0
    for at in range(0, len(plan), options.batch_size):
        batch = mask_rows(rows, plan[at : at + options.batch_size], options.mask_rate, generator)
        part, hits, _, next_hits = _losses(model, batch)
        total += float(part)
        right += float(hits)
        count += len(batch.wanted_T)
        next_right += next_hits
    if not count:
        raise NotSupported("every row has fewer than two tokens; use longer texts")
    found = {"loss": total / count, "accuracy": right / count}
    return found | ({"next_sentence_accuracy": next_right / len(plan)} if rows.next_sentence else {})
