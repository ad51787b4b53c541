"""Base class of tasks on pairs of texts, whose answers are found by beam search: translation and summarization."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..data import Batches, Corpus, PairBatch, Splits, collate, read_pairs
from ..data.batches import Numbers
from ..decode import GNMT, Beam, Hypothesis
from ..look import Map
from ..models import Model, device_of
from ..runs import Run
from ..train import to_device
from .dial import Profile, mean_words
from .options import BeamOptions, Pairs
from .options.seq2seq import Seq2SeqOptions
from .task import Plan, Prediction, Task
from .text_processor import TextProcessor
from .vocabulary import tokenizers_of_pairs

Seq2SeqOptionsT = TypeVar("Seq2SeqOptionsT", bound=Seq2SeqOptions)


@dataclass(frozen=True)
class PairRows:
    """Pairs of texts and the same as token ids."""

    pairs: Pairs
    corpus: Corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def select(self, index: Numbers) -> tuple[Corpus, Numbers]:
        """Some pairs, for `collate`."""
        return self.corpus, index


def beam_of(options: BeamOptions, nbest: int = 1, max_tokens: int | None = None) -> Beam:
    """Make the beam search that the options ask for.

    Args:
        options: beam width and length penalty.
        nbest: hypotheses to return, at most the beam width.
        max_tokens: maximum length of a hypothesis.
    """
    return Beam(size=max(options.beam, nbest), nbest=nbest, length_penalty=GNMT(options.length_penalty), max_tokens=max_tokens)


class Seq2SeqTask(Task[Seq2SeqOptionsT]):
    """Task on pairs of texts. An answer is a list of hypotheses, best first."""

    Processor = TextProcessor
    EvaluateOptions = BeamOptions
    valid_options = BeamOptions(beam=1)
    loss_unit = "tokens"
    small = 20_000
    most_warmup = 60

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[Pairs]:
        fields: Any = self.options.fields or None
        return read_pairs(self.options.data, fields=fields, **self.options.parts(), **self.read_options())

    def read_options(self) -> dict[str, Any]:
        """Further options of the reader."""
        return {}

    def profile(self, data: Splits[Pairs]) -> Profile:
        return {"examples": len(data.train), "words": mean_words(data.train, lambda pair: pair)}

    def make_processor(self, data: Splits[Pairs], base: TextProcessor | None) -> TextProcessor:
        return TextProcessor(tokenizers_of_pairs(self.options, data.train)) if base is None else base

    def parse(self, text: str) -> tuple[str, str]:
        return text, ""

    def input_text(self, example: tuple[str, str]) -> str:
        return example[0]

    @abstractmethod
    def corpus(self, pairs: Pairs, dropout: float = 0.0, seed: int = 0) -> Corpus:
        """Pairs as token ids."""

    def encode(self, examples: Pairs, model: Model) -> PairRows:
        return PairRows(examples, self.corpus(examples))

    def plan(self, rows: PairRows, epoch: int | None, seed: int = 0) -> Plan:
        """Pairs of similar lengths together, up to --batch-tokens tokens per batch."""
        order = Batches(rows.corpus, self.options.batch_tokens, seed=seed, shuffle=epoch is not None, long="alone")
        return Plan(rows, order.plan(epoch or 0))

    def batch(self, item: tuple[Corpus, Numbers], generator: torch.Generator | None) -> PairBatch:
        return collate(*item)

    def validation(self, examples: Pairs) -> Pairs:
        return examples[:1000]

    # -- answers -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def log_probs(self, model: Any, batch: PairBatch) -> Tensor:
        """log_p_BL of the tokens of each target, 0 where it has ended."""

    @torch.no_grad()
    def score(self, run: Run[Any], pairs: Sequence[tuple[str, str]]) -> list[Prediction]:
        rows, device, found = self.encode(pairs, run.model), device_of(run.model), dict[int, Prediction]()
        plan = self.plan(rows, None)
        for item, numbers in zip(plan, plan.groups, strict=True):
            batch = self.batch(item, None)
            totals = self.log_probs(run.model, to_device(batch, device)).sum(1).tolist()
            for n, total, tokens in zip(numbers.tolist(), totals, batch.target_n_B.tolist(), strict=True):
                values = {"target": pairs[n][1], "log_probability": total, "tokens": tokens}
                found[n] = Prediction(f"{total:.4f}\t{pairs[n][1]}", values)
        return [found[n] for n in range(len(pairs))]


def real_tokens(batch: PairBatch) -> Tensor:
    """real_BL: which target tokens are there, and not padding."""
    return torch.arange(batch.target_BL.shape[1] - 1, device=batch.target_BL.device) < batch.target_n_B[:, None]


def ranked(texts: Sequence[str], answers: Sequence[Hypothesis], nbest: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A line and plain values of each of the best answers, with its score where there are several."""
    for text, answer in zip(texts[:nbest], answers, strict=False):
        text = text.replace("\n", " ")
        yield f"{answer.score:.4f}\t{text}" if nbest > 1 else text, {"text": text, "score": answer.score}


def label_layer(model: Model, m: Map, source: Sequence[str], given: Sequence[str], written: Sequence[str]) -> Map:
    """A map of an encoder–decoder with its words: those of the source, those that the decoder was given, and those that it then wrote."""
    path, own = m.layer.rpartition(".")[0], model.attentions()
    if path not in own:
        queries, keys = written, source
    elif path.startswith(model.causal_parts):
        queries, keys = written, given
    else:
        queries, keys = source, source
    return m.label(queries if m.queries == len(queries) else None, keys if m.keys == len(keys) else None)
