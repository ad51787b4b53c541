r"""Summarization: articles with summaries in, a model out that copies names from the article and generates the rest.

The loss is $-\log P$ of every token of the summary over the extended vocabulary (`models.copying`); late in training the coverage loss is
added, which asks the model not to attend again to what it has summarised:

$$\sum_t -\log P(y_t) + λ \sum_i \min(a_{ti}, cov_{ti}), \qquad cov_t = \sum_{t' < t} a_{t'}$$

Parameters are chosen by this sum on the validation part, from the first evaluation on, so that those before and after the switch compare.
Quality is ROUGE by rouge-score, beside the first sentences of the article (lead-1, lead-3), which are hard to beat on news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..data import Corpus, PairBatch, Splits, Tokenizer
from ..data.open_pairs import encode_article, open_corpus
from ..data.parallel import ARTICLES
from ..decode import DecoderTokens, Hypothesis, translate
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients
from ..look.map import Values
from ..metrics.rouge import TYPES, Rouge, copied_words, lead, repeated_trigrams, words
from ..models import CopyModel, coverage_loss, device_of
from ..runs import Run
from ..train import Loss, Metric
from .measuring import answer
from .options import Pairs
from .options.summarization import GreedySummaryOptions, SummarizationDeclaration, SummarizationOptions, SummarizeOptions, SummaryOptions
from .seq2seq import Seq2SeqTask, beam_of, label_layer, ranked, real_tokens
from .task import Prediction, Report

LONGEST = 1 << 24  # bytes of a line: an article


class Summarization(SummarizationDeclaration, Seq2SeqTask[SummarizationOptions]):
    unit = "articles"
    valid_options = GreedySummaryOptions()
    model_kind = CopyModel
    small_sizes = {  # noqa: RUF012
        "pointer_generator": {"embedding": 64, "width": 96},
        "pointer_transformer": {"width": 128, "hidden": 512},
    }
    metric = Metric("loss_with_coverage", higher=False)

    # -- data and model ------------------------------------------------------------------------------------------------

    def read_options(self) -> dict[str, Any]:
        return {"longest": LONGEST, "names": ARTICLES}

    def settings(self, model: str, data: Splits[Pairs]) -> dict[str, Any]:
        longest = 1 + max(self.options.max_source_length, self.options.max_target_length)
        tokenizer = self.processor.tokenizer
        return {"vocab_size": len(tokenizer), "unknown_id": unknown_id(tokenizer), "max_length": longest}

    def corpus(self, pairs: Pairs, dropout: float = 0.0, seed: int = 0) -> Corpus:
        return open_corpus(pairs, self.processor.tokenizer, self.options.max_source_length, self.options.max_target_length)

    # -- loss ----------------------------------------------------------------------------------------------------------

    def loss(self, model: CopyModel, batch: PairBatch) -> Loss:
        """−log P of the summary, and in the last part of the training the coverage loss."""
        log_p_BL, weights_BLM, gate_BL = self._outputs(model, batch)
        total, coverage, real_BL = -log_p_BL.sum(), coverage_loss(weights_BLM, real_tokens(batch)), real_tokens(batch)
        if model.training and self.progress.share >= self.options.coverage_start:
            total = total + self.options.coverage * coverage
        extra = {"coverage_loss": coverage.detach(), "p_gen": (gate_BL.detach().sigmoid() * real_BL).sum()}
        return Loss(total, int(real_BL.sum()), extra)

    def log_probs(self, model: CopyModel, batch: PairBatch) -> Tensor:
        return self._outputs(model, batch)[0]

    def _outputs(self, model: CopyModel, batch: PairBatch) -> tuple[Tensor, Tensor, Tensor]:
        """log_p_BL of the tokens of each summary, 0 where it has ended; weights_BLM and gate_BL."""
        found = model.outputs(batch.source_BM, batch.source_n_B, batch.target_BL[:, :-1])
        log_p_BL = model.target_log_probs(found, batch.source_BM, batch.target_BL[:, 1:]).masked_fill(~real_tokens(batch), 0.0)
        return log_p_BL, found.log_weights_BLM.exp(), found.gate_BL

    # -- answers -------------------------------------------------------------------------------------------------------

    @property
    def answered(self) -> int:
        return self.options.valid_summaries

    def generate(self, model: CopyModel, examples: Pairs, options: SummaryOptions) -> list[list[tuple[str, Hypothesis]]]:
        """Summaries of each article, best first. Unknown words of an article are copied, so ⟨unk⟩ is never written."""
        o, tokenizer, nbest = self.options, self.processor.tokenizer, getattr(options, "nbest", 1)
        encoded = [encode_article(tokenizer, article, o.max_source_length) for article, _ in examples]
        search = beam_of(options, nbest, (options.max_tokens or o.max_target_length) + 1)  # the end token too
        found = translate(model, [ids for ids, _ in encoded], search, tokens=DecoderTokens.of(tokenizer, unknown_id(tokenizer)))
        return [[(tokenizer.decode(one.ids, unknown), one) for one in each] for (_, unknown), each in zip(encoded, found, strict=True)]

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Pairs) -> dict[str, float]:
        written, articles = [found[0][0] for found in answers], [article for article, _ in examples]
        loss, coverage = (sums[name] / max(sums["count"], 1) for name in ("loss", "coverage_loss"))
        return {
            "loss": loss,
            "coverage_loss": coverage,
            "loss_with_coverage": loss + self.options.coverage * coverage,
            "repeated_trigrams": repeated_trigrams(written),
            "copied_words": copied_words(written, articles),
        }

    def report(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Pairs, options: SummaryOptions) -> Report:
        """ROUGE, beside that of the first sentences of each article and of the references themselves."""
        rouge, limit, written = Rouge(), self.options.max_source_length, [found[0][0] for found in answers]
        articles, right = [article for article, _ in examples], [summary for _, summary in examples]
        same = sum(a.strip() == b.strip() for a, b in zip(written, right, strict=True)) / len(examples)
        others = {"lead-1": [lead(one, 1) for one in articles], "lead-3": [lead(one, 3) for one in articles], "reference": right}
        found = rouge(written, right)
        rows = [_row("model", found, written, articles)]
        rows += [_row(name, rouge(texts, right), texts, articles) for name, texts in others.items()]
        cut = sum(n > limit for n in map(len, self.processor.tokenizer.encode_all(articles)))
        return Report(
            metrics={**found, "exact_match": same, **self.metrics(sums, answers, examples)},
            notes=[
                f"{options.words}; signature: {rouge.signature}",
                *([f"{cut:,} articles were cut to their first {limit} tokens"] if cut else []),
            ],
            columns=("summary", *TYPES, "repeated_trigrams", "copied_words", "words"),
            rows=rows,
            details={"cut": cut, "beam": options.beam, "signature": rouge.signature},
            outputs=[text.replace("\n", " ") for text in written],
        )

    def prediction(self, example: tuple[str, str], answer: Sequence[Any], options: SummarizeOptions) -> Prediction:
        texts, hypotheses = zip(*answer, strict=True)
        lines, found = zip(*ranked(texts, hypotheses, options.nbest), strict=True)
        return Prediction("\n".join(lines), {"summaries": list(found)})

    @torch.no_grad()
    def attention_maps(self, run: Run[CopyModel], text: str, layers: Layers, heads: Indices, options: SummaryOptions) -> tuple[str, Maps]:
        """A summary with p_gen of each word, where it attended to in the article, and how much each word of the article was covered."""
        tokenizer, model, device = run.processor.tokenizer, run.model, device_of(run.model)
        (((summary, best), *_),) = answer(self, model, [self.parse(text)], options)
        source, unknown = encode_article(tokenizer, text, self.options.max_source_length)
        special = DecoderTokens.of(tokenizer)
        written = [*best.ids, special.end]
        source_BM, target_BL = (torch.tensor([one], device=device) for one in (source, [special.first, *best.ids]))
        source_n_B = torch.tensor([len(source)], device=device)
        inside = (layers is not None or heads is not None) and model.attentions()  # a recurrent one has no further layers
        with capture(model, layers, heads) if inside else nullcontext(Maps([])) as maps:
            outputs = model.outputs(source_BM, source_n_B, target_BL)
        queries, keys = tokenizer.strings(written, unknown), tokenizer.strings(source, unknown)
        weights_LM, p_gen_L = outputs.log_weights_BLM[0].exp(), outputs.gate_BL[0].sigmoid()
        drawn = Map.of_matrix(
            weights_LM,
            "summary → article",
            model.facts.name,
            queries,
            keys,
            query_values=Values("p_gen", tuple(p_gen_L.tolist())) if model.config.pointer else None,
            key_values=Values("coverage", tuple(weights_LM.sum(0).tolist())),
        )
        given = tokenizer.strings(target_BL[0].tolist(), unknown)
        gradients = InputGradients.of_logits(
            model,
            model.embeddable(source_BM),
            lambda model: model(source_BM, source_n_B, target_BL)[0],
            torch.tensor(written, device=device),
            queries,
            [drawn.layer],
        )
        labelled = [*(label_layer(model, one, keys, given, queries) for one in maps.all), drawn]
        return summary, Maps(labelled, maps.idle, answer=summary, score=best.score, gradients=gradients)


def unknown_id(tokenizer: Tokenizer) -> int:
    """The token that a word outside the vocabulary is read as; a vocabulary of subwords may lack it, and needs none."""
    return next((token for token in (tokenizer.unk_id, tokenizer.pad_id) if token is not None), 0)


def _row(name: str, rouge: Mapping[str, float], texts: Sequence[str], articles: Sequence[str]) -> tuple[str | float, ...]:
    length = sum(len(words(text)) for text in texts) / len(texts)
    return name, *(rouge[one] for one in TYPES), repeated_trigrams(texts), copied_words(texts, articles), length
