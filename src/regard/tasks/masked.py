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
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..baselines import NGram, most_frequent
from ..data import Splits, TokenizedText
from ..errors import BadConfig, NotSupported, ShapeError
from ..layers import Packing
from ..models import Model, TextEncoder, device_of, find_model
from ..runs import Run
from ..train import Loss
from .masked_rows import MaskedBatch, MaskItem, Rows, mask_rows
from .options.masked import FillOptions, MaskedDeclaration, MaskedOptions
from .task import Prediction, Report, cut
from .text import COUNTED, TextTask


@runtime_checkable
class Follower(Protocol):
    """Encoder with a next-sentence head."""

    def nsp_logits(self, y_BD: Tensor) -> Tensor:
        """logits_B2 of what `pooled` gave: 0, it follows; 1, it does not."""


class Masked(MaskedDeclaration, TextTask[MaskedOptions]):
    model_kind = TextEncoder
    length_option = "max_length"
    small_sizes = {"bert": {"width": 128, "hidden": 512}}  # noqa: RUF012
    next_commands = "regard evaluate {out}        regard train classify --init-from {out} --data examples.tsv --out runs/classifier"

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[TokenizedText]) -> dict[str, Any]:
        """Heads that nothing would train are left out, where a model has a choice."""
        wanted, known = self._wants_next_sentence(data.train), {field.name for field in fields(find_model(model).Config)}
        heads = {name: wanted for name in ("pooler", "nsp_head") if name in known}
        return super().settings(model, data) | {"vocab_size": len(self.processor.tokenizer) + 1} | heads

    def _wants_next_sentence(self, tokens: TokenizedText) -> bool:
        """True if next-sentence prediction is trained on this text."""
        if self.options.next_sentence == "yes" and tokens.documents < 2:
            raise BadConfig("--next-sentence yes needs at least two documents, to take a half from another; this text is one document")
        return self.options.next_sentence != "no" and tokens.documents > 1

    def check(self, data: Splits[TokenizedText], model: Model) -> None:
        super().check(data, model)
        assert isinstance(model, TextEncoder)
        if self.processor.tokenizer.mask_id >= model.config.vocab_size:
            raise NotSupported(
                f"this {model.facts.name} has {model.config.vocab_size} tokens, and none is free for the mask; start from a run of "
                "`regard train masked`"
            )
        if self._wants_next_sentence(data.train) and not isinstance(model, Follower):
            raise NotSupported(f"{model.facts.name} has no next-sentence head; use --next-sentence no")

    # -- batches and loss ----------------------------------------------------------------------------------------------

    def validation(self, examples: TokenizedText) -> TokenizedText:
        return examples.first(self.options.valid_rows * self.options.max_length)

    def encode(self, examples: TokenizedText, model: Model) -> Rows:
        has_head = isinstance(model, Follower) and getattr(model.config, "nsp_head", True)
        next_sentence = self.options.next_sentence != "no" and has_head and examples.documents > 1
        return Rows(examples, self.processor.tokenizer, self.options.max_length, next_sentence)

    def plan(self, rows: Rows, epoch: int | None, seed: int = 0) -> Sequence[MaskItem]:
        plan = rows.plan(epoch or 0, 0 if epoch is None else seed)
        if not len(plan):
            raise NotSupported("every row has fewer than two tokens; use longer texts")
        return [MaskItem(rows, plan[some]) for some in cut(np.arange(len(plan)), self.options.batch_size)]

    def batch(self, item: MaskItem, generator: torch.Generator | None) -> MaskedBatch:
        """In evaluations the masks of a row are the same each time."""
        generator = torch.Generator().manual_seed(int(item.some.sum())) if generator is None else generator
        return mask_rows(item.rows, item.some, self.options.mask_rate, generator)

    def loss(self, model: TextEncoder, batch: MaskedBatch) -> Loss:
        """Nats per masked token; that of next-sentence prediction is added as a mean over rows."""
        total, right, next_total, next_right = _losses(model, batch)
        count = len(batch.wanted_T)
        if next_total is None:
            return Loss(total, count, {"accuracy": right})
        share = count / len(batch)  # so that the mean over tokens and the mean over rows are added
        extra = {"accuracy": right, "next_sentence_accuracy": next_right * share}
        return Loss(total + next_total * share if model.training else total, count, extra)

    # -- use -----------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> str:
        return text

    def baselines(self, train: TokenizedText, examples: TokenizedText) -> dict[str, dict[str, float]]:
        ids, own_T, N = train.ids[:COUNTED].astype(np.int64), examples.ids.astype(np.int64), len(self.processor.tokenizer)
        found = {f"{order}-gram": {"loss": NGram(ids, N, order).nats(own_T) / max(len(own_T) - 1, 1)} for order in (1, 3)}
        found["1-gram"]["accuracy"] = float((own_T == most_frequent(ids)).mean())
        return found

    def report(self, sums: Mapping[str, float], answers: Sequence[Any], examples: TokenizedText, options: Any) -> Report:
        return Report(metrics=self.metrics(sums, answers, examples), notes=(f"{int(sums['count']):,} of them masked",))

    @torch.no_grad()
    def predict(self, run: Run[TextEncoder], inputs: Sequence[str], options: FillOptions) -> list[Prediction]:
        """The most likely tokens for each [MASK] of a text."""
        return [self._fill(run, text, options.nbest) for text in inputs]

    def _fill(self, run: Run[TextEncoder], text: str, nbest: int) -> Prediction:
        tokenizer = run.processor.tokenizer
        mask, ids = tokenizer.mask_id, tokenizer.encode_masked(text, framed=True)
        if mask not in ids:
            raise NotSupported(f"{text!r} has no {tokenizer.mask_token}; write it where a token is to be predicted")
        if len(ids) > run.model.max_length:
            raise ShapeError(f"the text has {len(ids)} tokens, and this model reads up to {run.model.max_length}; shorten it")
        ids_1L = torch.tensor([ids], device=device_of(run.model))
        logits_TN = run.model(ids_1L)[0, [n for n, i in enumerate(ids) if i == mask], : len(tokenizer)]
        best = logits_TN.softmax(-1).topk(min(nbest, len(tokenizer)))
        found = [
            [{"token": token, "probability": p} for token, p in zip(tokenizer.strings(numbers), ps, strict=True)]
            for numbers, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        lines = [" ".join(f"{one['token'].replace(chr(10), '↵')}({one['probability']:.2f})" for one in each) for each in found]
        return Prediction("\t".join(lines), {"masks": found})


def _losses(model: nn.Module, batch: MaskedBatch) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Summed loss of the chosen tokens and how many were predicted correctly; the same of next-sentence prediction."""
    assert isinstance(model, TextEncoder)
    x_BLD = model.features(batch.ids_BL, batch.n_B, batch.segment_BL)
    B, L = batch.ids_BL.shape
    x_TD = Packing(B, L, batch.chosen_T).pack(x_BLD)[0]
    total, right = model.cross_entropy(x_TD, batch.wanted_T)
    if batch.unrelated_B is None:
        return total, right, None, total.new_zeros(())
    assert isinstance(model, Follower)
    logits_B2 = model.nsp_logits(model.pooled(x_BLD))
    next_right = (logits_B2.argmax(1) == batch.unrelated_B).sum()
    return total, right, F.cross_entropy(logits_B2, batch.unrelated_B, reduction="sum"), next_right
