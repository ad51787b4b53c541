"""Language modelling: plain text in, a model that predicts the next token out.

The loss is the cross-entropy of every token given those before it in its window, and in its document (`documents`). Quality is the loss in
nats per token, perplexity (e to that), and bits per byte of the text, which compares models with different vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..baselines import NGram
from ..data import LMBatch, LMBatches, Splits, TokenizedText
from ..data.batches import Numbers
from ..data.lm_batches import NONE, gather, sliding_windows
from ..decode import GenerationOptions, generate
from ..errors import NotSupported
from ..layers import Packing, add_lora, merge_lora
from ..models import LanguageModel, Model
from ..runs import Run
from ..train import Loss
from .measuring import measure
from .options import Files
from .options.language import LanguageDeclaration, LanguageOptions, PerplexityOptions
from .task import Prediction, Report, Start
from .text import COUNTED, TextTask
from .text_score import TextScore
from .tuning import require_lora


class Windows(NamedTuple):
    """Windows of one batch: spans [from, to) of tokens, and in evaluations the first token of each that is scored."""

    tokens: TokenizedText
    span_B2: Numbers
    asked_B: Numbers | None = None


class Language(LanguageDeclaration, TextTask[LanguageOptions]):
    model_kind = LanguageModel
    length_option = "context_length"
    small_sizes = {"gpt2": {"width": 128}}  # noqa: RUF012
    next_commands = 'regard evaluate {out}        regard complete {out} "a prompt"        regard look {out} "a text"'

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> Model:
        model = super().adapt(body, data, start)
        if start == "pretrained" and self.options.lora_rank:
            add_lora(model, self.options.lora_rank, self.options.lora_targets)
        return model

    def check(self, data: Splits[TokenizedText], model: Model) -> None:
        super().check(data, model)
        if self.options.lora_rank:
            require_lora(model, self.options.lora_rank)

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return merge_lora(model, parameters) if self.options.lora_rank else parameters

    # -- batches and loss ----------------------------------------------------------------------------------------------

    def validation(self, examples: TokenizedText) -> TokenizedText:
        return examples.first(self.options.valid_tokens + 1)

    def plan(self, rows: TokenizedText, epoch: int | None, seed: int = 0) -> Sequence[Windows]:
        """In training every token once, the boundaries of windows moved each epoch. In an evaluation a window of --context-length tokens moves
        on by --stride and scores what the one before has not reached, so that each token is given as many as possible before it."""
        o = self.options
        if epoch is not None:
            return [Windows(rows, span_B2) for span_B2 in LMBatches(rows, o.context_length, o.batch_size, seed=seed).plan(epoch)]
        span_B2, asked_B = sliding_windows(rows, o.context_length, o.stride or max(1, o.context_length // 2), o.documents == "separate")
        order = np.argsort(span_B2[:, 0] - span_B2[:, 1], kind="stable")  # rows of similar length together, the longest first
        some = [order[at : at + o.batch_size] for at in range(0, len(order), o.batch_size)]
        return [Windows(rows, span_B2[numbers], asked_B[numbers]) for numbers in some]

    def batch(self, item: Windows, generator: torch.Generator | None) -> LMBatch:
        apart = item.asked_B is None and self.options.documents == "separate"
        return gather(item.tokens, item.span_B2, asked_B=item.asked_B, apart=apart)

    def loss(self, model: LanguageModel, batch: LMBatch) -> Loss:
        total, right, count = summed_loss(model, batch)
        return Loss(total, count, {"accuracy": right})

    # -- use -----------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> str:
        return text

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: TokenizedText) -> dict[str, float]:
        return TextScore.of(sums, examples).metrics()

    def baselines(self, train: TokenizedText, examples: TokenizedText) -> dict[str, dict[str, float]]:
        order = 5 if self.options.tokenizer in ("char", "byte") else 3
        model = NGram(train.ids[:COUNTED].astype(np.int64), len(self.processor.tokenizer), order)
        sums = {"loss": model.nats(examples.ids.astype(np.int64)), "count": len(examples) - 1, "accuracy": 0.0}
        metrics = TextScore.of(sums, examples).metrics()
        return {f"{order}-gram": {name: metrics[name] for name in ("loss", "perplexity", "bits_per_byte")}}

    def evaluate(self, run: Run[LanguageModel], data: Files | None, options: PerplexityOptions) -> Report:
        return TextTask.evaluate(self.with_options(stride=options.stride or self.options.stride), run, data, options)

    def report(self, sums: Mapping[str, float], answers: Sequence[Any], examples: TokenizedText, options: Any) -> Report:
        found = TextScore.of(sums, examples)
        notes = [f"{found.bytes:,} bytes"]
        if found.unknown:
            notes.append(f"{found.unknown:.2%} of the tokens are not in the vocabulary: bits_per_byte leaves out what they were")
        return Report(
            metrics=found.metrics(), notes=notes, details={"tokens": found.tokens, "bytes": found.bytes, "unknown": found.unknown}
        )

    def predict(self, run: Run[LanguageModel], inputs: Sequence[str], options: GenerationOptions) -> list[Prediction]:
        """Completions, a line each; `regard complete` prints them as they come. Without a seed it is 0: predictions can be repeated."""
        options = replace(options, seed=0) if options.seed is None else options
        answers = []
        for completions in generate(run.model, run.processor.tokenizer, list(inputs), options):
            texts = [completion.text for completion in completions]
            answers.append(Prediction("\n".join(text.replace("\n", " ") for text in texts), {"completions": texts}))
        return answers


def summed_loss(model: LanguageModel, batch: LMBatch) -> tuple[Tensor, Tensor, int]:
    """Summed loss of all tokens to predict, how many were predicted correctly, and how many there are."""
    x_BLD, wanted_BL = model.features(batch.ids_BL, batch.document_BL), batch.wanted_BL
    index_T = (wanted_BL != NONE).flatten().nonzero()[:, 0]
    if len(index_T) < wanted_BL.numel():
        x_TD, wanted_T = Packing(*batch.shape, index_T).pack(x_BLD)[0], wanted_BL.flatten()[index_T]
    else:
        x_TD, wanted_T = x_BLD.flatten(0, 1), wanted_BL.flatten()
    return *model.cross_entropy(x_TD, wanted_T), len(index_T)


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
    """Score each token once, given at least `length − stride` tokens before it, or all that its document has.

    Args:
        model: language model, on any device.
        tokens: text as token ids.
        length: tokens per window; as many as the model reads if not given.
        stride: tokens between windows; half of the length if not given.
        batch: windows per batch.
        documents: read each document alone.
        at_most: score only as many tokens of a long text.
    """
    if not tokens.documents:
        raise NotSupported("there is no text to evaluate on; name some with --data")
    options = LanguageOptions(
        data="", context_length=length or model.max_length, stride=stride, batch_size=batch, documents="separate" if documents else "joined"
    )
    some = tokens if at_most is None else tokens.first(at_most + 1)
    return TextScore.of(measure(Language(options), model, some)[0], some)
