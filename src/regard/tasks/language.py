"""Language modelling: plain text in, a model that predicts the next token out.

The loss is the cross-entropy of every token given those before it in its window, and in its document (`documents`). Quality is the loss in
nats per token, perplexity (e to that), and bits per byte of the text, which compares models with different vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..data import LMBatch, LMBatches, TokenizedText
from ..data.batches import Numbers
from ..data.lm_batches import NONE, gather
from ..decode import GenerationOptions, generate
from ..errors import NotSupported
from ..layers import Packing, add_lora, merge_lora
from ..layers.lora import Targets
from ..models import LanguageModel, Model, eval_mode
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, Prediction, Report, check_range, require_parts
from ._options import Files
from ._processor import TextProcessor
from ._text import TextOptions, TextTask, example_text
from ._tuning import require_lora


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(TextOptions):
    """Data, vocabulary and windows."""

    context_length: int = 128
    """Tokens per window."""
    batch_size: int = 16
    """Windows per batch."""
    documents: Literal["separate", "joined"] = "separate"
    """separate: documents in a window do not attend to each other; joined: they may attend to earlier ones."""
    stride: int | None = None
    """Tokens between the windows of an evaluation; half of --context-length if not given."""
    valid_tokens: int = 20_000
    """Validation tokens that are scored at each evaluation."""
    lora_rank: int = 0
    """With --init-from: train low-rank adapters of this rank and nothing else; 0: no adapters."""
    lora_targets: Targets = "qv"
    """Adapters on the queries and values of attention, or on all linear layers."""

    def __post_init__(self) -> None:
        check_range(
            self,
            context_length=(self.context_length >= 1, "1 or more"),
            batch_size=(self.batch_size >= 1, "1 or more"),
            valid_tokens=(self.valid_tokens >= 1, "1 or more"),
            lora_rank=(self.lora_rank >= 0, "0 or more"),
            stride=(1 <= (self.stride or 1) <= self.context_length, "1 up to the context length"),
        )


@dataclass(frozen=True, kw_only=True)
class PerplexityOptions:
    """How to score a text."""

    stride: int | None = None
    """Tokens between windows; half of the context length if not given. Smaller is slower and gives a lower loss."""


class Language(TextTask[LanguageOptions]):
    """Train a causal language model on plain text.

    As in:  regard train language --out runs/python --minutes 5
            regard train language --data input.txt --tokenizer char --context-length 64 --batch-size 12 --set width=128 --out runs/shakespeare
            regard train language --data folder --suffixes .py --model llama --out runs/code
    """

    name = "language"
    Options = LanguageOptions
    EvaluateOptions = PerplexityOptions
    PredictOptions = GenerationOptions
    model_kind = LanguageModel
    length_option = "context_length"
    default_model = "gpt2"
    default_train = TrainOptions(lr=3e-3, evaluate_every=200)
    next_commands = 'regard evaluate {out}        regard complete {out} "a prompt"        regard look {out} "a text"'

    def freeze(self, model: Model) -> None:
        if self.options.lora_rank:
            add_lora(model, self.options.lora_rank, self.options.lora_targets)

    def objective(self, dataset: Dataset[TokenizedText], processor: TextProcessor, model: Model, seed: int) -> LanguageObjective:
        self.check_length(model)
        require_lora(model, self.options.lora_rank)
        return LanguageObjective(dataset.train, dataset.valid, self.options, seed)

    def evaluate(self, run: Run[LanguageModel], data: Files | None, options: PerplexityOptions) -> Report:
        found = score_text(run.model, self.test_data(run, data), self.options, options.stride)
        notes = [f"{self.test_name(data)}: {found.tokens:,} tokens, {found.bytes:,} bytes"]
        if found.unknown:
            notes.append(f"{found.unknown:.2%} of the tokens are not in the vocabulary: bits_per_byte leaves out what they were")
        counts = {"tokens": found.tokens, "bytes": found.bytes, "unknown": found.unknown}
        return Report(metrics=found.metrics(), notes=notes, details=counts)

    def predict(self, run: Run[LanguageModel], inputs: Sequence[str], options: GenerationOptions) -> list[Prediction]:
        """Completions, a line each; `regard complete` prints them as they come. Without a seed it is 0: predictions can be repeated."""
        options = replace(options, seed=0) if options.seed is None else options
        answers = []
        for completions in generate(run.model, run.processor.tokenizer, list(inputs), options):
            texts = [completion.text for completion in completions]
            answers.append(Prediction("\n".join(text.replace("\n", " ") for text in texts), {"completions": texts}))
        return answers

    @classmethod
    def example(cls, folder: Path) -> Example:
        options = LanguageOptions(data=str(example_text(folder)), tokenizer="char", context_length=16, batch_size=8, valid_tokens=50)
        return Example(options=options, settings={"width": 16, "heads": 2, "depth": 1}, input="The number", broken='{"text": 7}\n')


class LanguageObjective:
    """What the training loop asks."""

    metric = Metric("loss", higher=False)

    def __init__(self, train: TokenizedText, valid: TokenizedText, options: LanguageOptions, seed: int = 0):
        require_parts(options.data, train.documents, valid.documents, "documents")
        self.options, self.valid = options, valid
        self.windows = LMBatches(train, options.context_length, options.batch_size, seed=seed, apart=options.documents == "separate")

    def batches(self, epoch: int) -> Sequence[Any]:
        return self.windows.plan(epoch)

    def batch(self, item: Any) -> LMBatch:
        return self.windows.batch(item)

    def loss(self, model: nn.Module, batch: LMBatch) -> Loss:
        assert isinstance(model, LanguageModel)
        total, right, count = summed_loss(model, batch)
        return Loss(total, count, {"accuracy": float(right)})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, LanguageModel)
        return score_text(model, self.valid, self.options, self.options.stride, self.options.valid_tokens).metrics()

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return merge_lora(model, parameters)


def summed_loss(model: LanguageModel, batch: LMBatch) -> tuple[Tensor, Tensor, int]:
    """The summed loss of all tokens to predict, how many were predicted correctly, and how many there are."""
    x_BLD, wanted_BL = model.features(batch.ids_BL, batch.document_BL), batch.wanted_BL
    index_T = (wanted_BL != NONE).flatten().nonzero()[:, 0]
    if len(index_T) < wanted_BL.numel():
        x_TD, wanted_T = Packing(*batch.shape, index_T).pack(x_BLD)[0], wanted_BL.flatten()[index_T]
    else:
        x_TD, wanted_T = x_BLD.flatten(0, 1), wanted_BL.flatten()
    return *model.cross_entropy(x_TD, wanted_T), len(index_T)


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text."""

    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float
    accuracy: float  # share of tokens that were the most likely ones
    tokens: int  # predicted
    bytes: int  # of the text they make
    unknown: float  # share of tokens that are not in the vocabulary: above 0, bits_per_byte leaves out what they were

    def metrics(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("loss", "perplexity", "bits_per_byte", "accuracy")}


def score_text(
    model: LanguageModel, tokens: TokenizedText, options: LanguageOptions, stride: int | None, at_most: int | None = None
) -> TextScore:
    """`perplexity` in windows as in training."""
    length, documents = options.context_length, options.documents == "separate"
    return perplexity(model, tokens, length=length, stride=stride, batch=options.batch_size, documents=documents, at_most=at_most)


@torch.no_grad()
def perplexity(
    model: LanguageModel,
    tokens: TokenizedText,
    *,
    length: int | None = None,
    stride: int | None = None,
    batch: int = 16,
    documents: bool = True,
    at_most: int | None = None,
) -> TextScore:
    """Each token scored once, given at least `length − stride` tokens before it, or all that its document has.

    A window of `length` tokens moves on by `stride` (half of it if not given) and scores what the one before has not reached. With
    `documents` each is read alone. Of a long text the first `at_most` tokens may do; its bytes are then those of that share of the tokens.
    """
    length = length or model.max_length
    stride = stride or max(1, length // 2)
    if not 1 <= stride <= length:
        raise NotSupported(f"a stride of {stride} would skip tokens between windows of {length}; use 1 to {length}")
    if not tokens.documents:
        raise NotSupported("there is no text to evaluate on; name some with --data")
    span_B2, asked_B = _sliding(tokens, length, stride, documents, at_most)
    order = np.argsort(span_B2[:, 0] - span_B2[:, 1], kind="stable")  # rows of similar length together, the longest first
    total, right, count = 0.0, 0, 0
    with eval_mode(model):
        for at in range(0, len(order), batch):
            some = order[at : at + batch]
            part, hits, asked = summed_loss(model, gather(tokens, span_B2[some], asked_B=asked_B[some], apart=False))
            total += float(part)
            right += int(hits)
            count += asked
    loss = total / count
    size = tokens.bytes if at_most is None else round(tokens.bytes * count / (len(tokens) - tokens.documents))
    bits = total / math.log(2) / max(size, 1)
    return TextScore(loss, math.exp(min(loss, 700.0)), bits, right / count, count, size, tokens.unknown / len(tokens))


def _sliding(tokens: TokenizedText, length: int, stride: int, documents: bool, at_most: int | None) -> tuple[Numbers, Numbers]:
    """Spans [from, to) of windows, and the first token each one scores the successor of."""
    pairs = zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True) if documents else [(0, len(tokens))]
    spans, asked, left = [], [], len(tokens) if at_most is None else at_most
    for begin, end in pairs:
        last = min(end - 1, begin + left)  # is only predicted
        if last <= begin:
            continue
        left -= last - begin
        reached = begin
        for start in range(begin, max(last - length, begin) + stride, stride):
            spans.append((start, min(start + length, last)))
            asked.append(reached)
            reached = spans[-1][1]
            if reached == last:
                break
        if left <= 0:
            break
    return np.array(spans, dtype=np.int64).reshape(-1, 2), np.array(asked, dtype=np.int64)
