r"""Summarization: articles with summaries in, a model out that copies names from the article and generates the rest.

The loss is $-\log P$ of every token of the summary over the extended vocabulary (`models._copy`); late in training the coverage loss is
added, which asks the model not to attend again to what it has summarised:

$$\sum_t -\log P(y_t) + λ \sum_i \min(a_{ti}, cov_{ti}), \qquad cov_t = \sum_{t' < t} a_{t'}$$

Parameters are chosen by this sum on the validation part, from the first evaluation on, so that those before and after the switch compare.
Quality is ROUGE by rouge-score, beside the first sentences of the article (lead-1, lead-3), which are hard to beat on news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..data import UNK, Batches, Corpus, HFTokenizer, PairBatch, Parallel, Tokenizer, collate, read_pairs
from ..data.open_pairs import encode_article, open_corpus
from ..data.parallel import ARTICLES
from ..decode import GREEDY, Beam, DecoderTokens, Hypothesis, translate
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients
from ..look.map import MEAN, Values
from ..models import CopyModel, Model, coverage_loss
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, Prediction, Report, Task, check_range, require_parts
from ._options import Files, Pairs, TokenizerKind, TokenizerOptions
from ._processor import TextProcessor
from ._rouge import TYPES, Rouge, copied_words, lead, repeated_trigrams, words
from .translation import BeamOptions, decoder_tokens, label_layer

LONGEST = 1 << 24  # bytes of a line: an article
SMALL = 20_000  # articles: below, small models learn more in the same time
SMALL_SIZES = {"pointer_generator": {"embedding": 64, "width": 96}, "pointer_transformer": {"width": 128, "hidden": 512}}


@dataclass(frozen=True, kw_only=True)
class SummarizationOptions(TokenizerOptions):
    """Data, vocabulary, batches, and the coverage loss."""

    data: Files = "docstrings:installed"
    """A .jsonl, .tsv, .csv (also .gz, .xz) or .parquet; two files; hf:FOLDER, a dataset; docstrings:installed: bodies and first lines."""
    fields: tuple[str, ...] = ()
    """Names of the columns or fields of article and summary, or numbers of columns from 1; if not given, usual names are tried."""
    tokenizer: TokenizerKind = "word"
    """Kind of tokenizer; words outside its vocabulary are copied whole; --init-from brings its own."""
    max_source_length: int = 400
    """Tokens of an article that are read; the rest is cut off."""
    max_target_length: int = 100
    """Maximum tokens of a summary, in training and when one is generated."""
    batch_tokens: int = 4096
    """Tokens per batch, of the longer side."""
    coverage: float = 1.0
    """Weight λ of the coverage loss; 0: none."""
    coverage_start: float = 0.9
    """Share of the training after which the coverage loss is added; 0: from the start."""
    valid_summaries: int = 50
    """Validation articles that are summarised at each evaluation."""

    def __post_init__(self) -> None:
        check_range(
            self,
            max_source_length=(self.max_source_length >= 1, "at least 1"),
            max_target_length=(self.max_target_length >= 1, "at least 1"),
            coverage=(self.coverage >= 0, "0 or more"),
            coverage_start=(0 <= self.coverage_start <= 1, "0 to 1"),
            batch_tokens=(self.batch_tokens >= 1, "at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(BeamOptions):
    """How to search."""

    max_tokens: int | None = None
    """Maximum tokens of a summary; that of training if not given."""

    def limited(self, task: SummarizationOptions, nbest: int = 1) -> Beam:
        """The search, with the longest summary."""
        return replace(self.search(nbest), max_tokens=(self.max_tokens or task.max_target_length) + 1)  # the end token too


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(SummaryOptions):
    """How to search, and what to print."""

    nbest: int = 1
    """Summaries per article, best first, with their scores."""


@dataclass(frozen=True, kw_only=True)
class GreedySummaryOptions(SummaryOptions):
    beam: int = 1


class Summarization(Task[SummarizationOptions]):
    """Train a model to summarise articles; it copies words that it has never seen.

    As in:  regard train summarization --out runs/docstrings --minutes 5
            regard train summarization --data news.jsonl --fields article highlights --out runs/news --minutes 60
            regard train summarization --data pairs.tsv --model pointer_transformer --out runs/mine --minutes 10
    """

    name = "summarization"
    Options = SummarizationOptions
    EvaluateOptions = SummaryOptions
    PredictOptions = SummarizeOptions
    LookOptions = GreedySummaryOptions
    model_kind = CopyModel
    default_model = "pointer_generator"
    default_train = TrainOptions(lr=2e-3, evaluate_every=150)
    most_warmup = 60
    small = False  # few articles

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> Parallel:
        fields: Any = self.options.fields or None
        return read_pairs(self.options.data, fields=fields, longest=LONGEST, names=ARTICLES, **self.options.parts())

    def make_processor(self, raw: Parallel, base: TextProcessor | None) -> TextProcessor:
        return TextProcessor(self.options.tokenizers_of_pairs(raw.train)) if base is None else base

    def encode(self, raw: Parallel, processor: TextProcessor, cache: Path) -> Dataset[Pairs]:
        return Dataset(raw.train, raw.valid, raw.test, raw.digest, str(raw.skipped) if len(raw.skipped) else "", "articles")

    def settle(self, dataset: Dataset[Pairs]) -> Self:
        decided = type(self)(self.options)
        decided.small = len(dataset.train) < SMALL
        return decided

    def size_settings(self, model: str) -> dict[str, Any]:
        return dict(SMALL_SIZES.get(model, {})) if self.small else {}

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        self.check_kind(model)
        longest = 1 + max(self.options.max_source_length, self.options.max_target_length)
        return {"vocab_size": len(processor.tokenizer), "unknown_id": unknown_id(processor.tokenizer), "max_length": longest}

    def objective(self, dataset: Dataset[Pairs], processor: TextProcessor, model: Model, seed: int) -> SummarizationObjective:
        return SummarizationObjective(dataset, processor.tokenizer, self.options, seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[CopyModel], data: Files | None, options: SummaryOptions) -> Report:
        rouge, pairs = Rouge(), self.test_data(run, data)
        articles, right = [article for article, _ in pairs], [summary for _, summary in pairs]
        written = [text for text, _ in self._summaries(run, articles, options.limited(self.options))]
        found = rouge(written, right)
        loss, coverage = likelihood(run.model, self._batches(run, pairs))
        shares = {"repeated_trigrams": repeated_trigrams(written), "copied_words": copied_words(written, articles)}
        same = sum(a.strip() == b.strip() for a, b in zip(written, right, strict=True)) / len(pairs)
        others = {"lead-1": [lead(one, 1) for one in articles], "lead-3": [lead(one, 3) for one in articles], "reference": right}
        rows = [_row("model", found, written, articles)]
        rows += [_row(name, rouge(texts, right), texts, articles) for name, texts in others.items()]
        by = f"beam {options.beam}" if options.beam > 1 else "greedy"
        o, cut = self.options, sum(n > self.options.max_source_length for n in map(len, run.processor.tokenizer.encode_all(articles)))
        notes = [f"{self.test_name(data)}: {len(pairs):,} articles, {by}; signature: {rouge.signature}"]
        notes += [f"{cut:,} articles were cut to their first {o.max_source_length} tokens"] if cut else []
        return Report(
            metrics={**found, "exact_match": same, "loss": loss, "coverage_loss": coverage, **shares},
            notes=notes,
            columns=("summary", *TYPES, "repeated_trigrams", "copied_words", "words"),
            rows=rows,
            details={"data": self.test_name(data), "articles": len(pairs), "cut": cut, "beam": options.beam, "signature": rouge.signature},
            outputs=[text.replace("\n", " ") for text in written],
        )

    def predict(self, run: Run[CopyModel], inputs: Sequence[str], options: SummarizeOptions) -> list[Prediction]:
        answers = []
        for _, found in self._summaries(run, inputs, options.limited(self.options, options.nbest)):
            texts = [(text.replace("\n", " "), one.score) for text, one in found[: options.nbest]]
            lines = [f"{score:.4f}\t{text}" if options.nbest > 1 else text for text, score in texts]
            answers.append(Prediction("\n".join(lines), {"summaries": [{"text": text, "score": score} for text, score in texts]}))
        return answers

    @torch.no_grad()
    def score(self, run: Run[CopyModel], pairs: Sequence[tuple[str, str]]) -> list[Prediction]:
        scores: dict[int, Prediction] = {}
        for batch in self._batches(run, pairs):
            log_p_BL, _, _ = _log_probs(run.model, batch)
            assert batch.index_B is not None
            for number, total, tokens in zip(batch.index_B.tolist(), log_p_BL.sum(1).tolist(), batch.target_n_B.tolist(), strict=True):
                summary = pairs[number][1]
                scores[number] = Prediction(f"{total:.4f}\t{summary}", {"summary": summary, "log_probability": total, "tokens": tokens})
        return [scores[n] for n in range(len(pairs))]

    @torch.no_grad()
    def attention_maps(self, run: Run[CopyModel], text: str, layers: Layers, heads: Indices, options: SummaryOptions) -> tuple[str, Maps]:
        """A summary with p_gen of each word, where it attended to in the article, and how much each word of the article was covered."""
        tokenizer, model = run.processor.tokenizer, run.model
        ((summary, found),) = self._summaries(run, [text], options.limited(self.options))
        source, unknown = encode_article(tokenizer, text, self.options.max_source_length)
        special = decoder_tokens(tokenizer)
        written = [*found[0][1].ids, special.end]
        source_BM, target_BL = torch.tensor([source]), torch.tensor([[special.first, *written[:-1]]])
        inside = (layers is not None or heads is not None) and model.attentions()  # a recurrent one has no further layers
        with capture(model, layers, heads) if inside else nullcontext(Maps([])) as maps:
            outputs = model.outputs(source_BM, torch.tensor([len(source)]), target_BL)
        queries, keys = tokenizer.strings(written, unknown), tokenizer.strings(source, unknown)
        drawn = _map(model, outputs.log_weights_BLM.exp(), outputs.gate_BL.sigmoid()).label(queries, keys)
        given = tokenizer.strings(target_BL[0].tolist(), unknown)

        def log_probs(model: CopyModel) -> Tensor:
            return model(source_BM, torch.tensor([len(source)]), target_BL)[0]

        gradients = InputGradients(
            model, (model.embeddable(source_BM),), log_probs, torch.tensor(written), queries, {drawn.layer: 0}, logits=lambda _, x_N: x_N
        )
        return summary, Maps(
            [*(label_layer(model, one, keys, given, queries) for one in maps.all), drawn],
            maps.idle,
            answer=summary,
            score=found[0][1].score,
            gradients=gradients,
        )

    def _summaries(self, run: Run[CopyModel], articles: Sequence[str], options: Beam) -> list[tuple[str, list[tuple[str, Hypothesis]]]]:
        return summaries(run.model, run.processor.tokenizer, articles, options, self.options.max_source_length)

    def _batches(self, run: Run[CopyModel], pairs: Pairs) -> list[PairBatch]:
        return _in_order(_corpus(pairs, run.processor.tokenizer, self.options), self.options.batch_tokens)

    @classmethod
    def example(cls, folder: Path) -> Example:
        path, names = folder / "articles.tsv", ["Ada", "Bo", "Cyd", "Dee", "Eve", "Flo", "Gus", "Hal"]
        lines = (f"today {a} met {b} in town .\t{a} met {b}\n" for a in names for b in names if a != b)
        path.write_text("".join(lines), encoding="utf-8")
        options = SummarizationOptions(data=str(path), vocab_size=12, batch_tokens=128, valid_summaries=2, max_target_length=8)
        return Example(options=options, settings={"embedding": 8, "width": 8}, input="today Zoe met Bo in town .", broken="no summary\t\n")


class SummarizationObjective:
    """What the training loop asks."""

    metric = Metric("loss_with_coverage", higher=False)

    def __init__(self, pairs: Dataset[Pairs], tokenizer: Tokenizer, options: SummarizationOptions, seed: int = 0):
        require_parts(options.data, len(pairs.train), len(pairs.valid), "articles")
        self.options, self.tokenizer, self.valid = options, tokenizer, pairs.valid
        self.corpus = _corpus(pairs.train, tokenizer, options)
        self.order = Batches(self.corpus, options.batch_tokens, seed=seed, long="alone")
        self.unseen = _in_order(_corpus(pairs.valid[:1000], tokenizer, options), options.batch_tokens)
        self.covering = options.coverage_start == 0

    def before_step(self, used: float) -> None:
        self.covering = used >= self.options.coverage_start

    def batches(self, epoch: int) -> Sequence[Any]:
        return self.order.plan(epoch)

    def batch(self, item: Any) -> PairBatch:
        return collate(self.corpus, item)

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        assert isinstance(model, CopyModel)
        log_p_BL, coverage, p_gen = _log_probs(model, batch)
        total = -log_p_BL.sum()
        if self.covering and self.options.coverage:
            total = total + self.options.coverage * coverage
        return Loss(total, int(batch.target_n_B.sum()), {"coverage_loss": float(coverage.detach()), "p_gen": float(p_gen)})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, CopyModel)
        loss, coverage = likelihood(model, self.unseen)
        o, some = self.options, [article for article, _ in self.valid[: self.options.valid_summaries]]
        search = replace(GREEDY, max_tokens=o.max_target_length + 1)
        written = [text for text, _ in summaries(model, self.tokenizer, some, search, o.max_source_length)]
        return {
            "loss": loss,
            "coverage_loss": coverage,
            "loss_with_coverage": loss + o.coverage * coverage,
            "repeated_trigrams": repeated_trigrams(written),
            "copied_words": copied_words(written, some),
        }


def _log_probs(model: CopyModel, batch: PairBatch) -> tuple[Tensor, Tensor, Tensor]:
    """log_p_BL of the tokens of each summary, 0 where it has ended; the summed coverage loss, and the summed p_gen."""
    wanted_BL = batch.target_BL[:, 1:]
    real_BL = torch.arange(wanted_BL.shape[1], device=wanted_BL.device) < batch.target_n_B[:, None]
    found = model.outputs(batch.source_BM, batch.source_n_B, batch.target_BL[:, :-1])
    log_p_BL = model.target_log_probs(found, batch.source_BM, wanted_BL).masked_fill(~real_BL, 0.0)
    return log_p_BL, coverage_loss(found.log_weights_BLM.exp(), real_BL), (found.gate_BL.detach().sigmoid() * real_BL).sum()


@torch.no_grad()
def likelihood(model: CopyModel, batches: Sequence[PairBatch]) -> tuple[float, float]:
    """Loss in nats and coverage loss, both per token of the summaries, under teacher forcing."""
    count = max(1, sum(int(batch.target_n_B.sum()) for batch in batches))
    parts = [_log_probs(model, batch) for batch in batches]
    return -sum(float(log_p_BL.sum()) for log_p_BL, _, _ in parts) / count, sum(float(coverage) for _, coverage, _ in parts) / count


def summaries(
    model: CopyModel, tokenizer: Tokenizer, articles: Sequence[str], options: Beam, longest: int
) -> list[tuple[str, list[tuple[str, Hypothesis]]]]:
    """The best summary of each article, and all that were found. Unknown words of an article are copied, so ⟨unk⟩ is never written."""
    encoded = [encode_article(tokenizer, article, longest) for article in articles]
    tokens = decoder_tokens(tokenizer)
    tokens = DecoderTokens(first=tokens.first, end=tokens.end, banned=(*tokens.banned, unknown_id(tokenizer)))
    found = translate(model, [source for source, _ in encoded], options, tokens=tokens)
    texts = [[(tokenizer.decode(one.ids, unknown), one) for one in each] for (_, unknown), each in zip(encoded, found, strict=True)]
    return [(each[0][0], each) for each in texts]


def unknown_id(tokenizer: Tokenizer) -> int:
    """The token that a word outside the vocabulary is read as; a vocabulary of subwords may lack it, and needs none."""
    return tokenizer.roles.get("unk", tokenizer.roles.get("pad", 0)) if isinstance(tokenizer, HFTokenizer) else UNK


def _corpus(pairs: Pairs, tokenizer: Tokenizer, o: SummarizationOptions) -> Corpus:
    return open_corpus(pairs, tokenizer, o.max_source_length, o.max_target_length)


def _in_order(corpus: Corpus, batch_tokens: int) -> list[PairBatch]:
    return [collate(corpus, index) for index in Batches(corpus, batch_tokens, shuffle=False, long="alone").plan(0)]


def _row(name: str, rouge: Mapping[str, float], texts: Sequence[str], articles: Sequence[str]) -> tuple[str | float, ...]:
    length = sum(len(words(text)) for text in texts) / len(texts)
    return name, *(rouge[one] for one in TYPES), repeated_trigrams(texts), copied_words(texts, articles), length


# -- attention maps ----------------------------------------------------------------------------------------------------


def _map(model: CopyModel, weights_BLM: Tensor, p_gen_BL: Tensor) -> Map:
    """What each word of the summary attended to, with p_gen beside it, and below the article how much each of its words was covered."""
    L, M = weights_BLM.shape[1:]
    return Map(
        layer="summary → article",
        mechanism=model.facts.name,
        call=0,
        run=0,
        heads=(MEAN,),
        rows=tuple(range(L)),
        columns=tuple(range(M)),
        queries=L,
        weights_BHLM=weights_BLM[:, None].float().cpu(),
        normalised=True,
        query_values=Values("p_gen", tuple(p_gen_BL[0].tolist())) if model.config.pointer else None,
        key_values=Values("coverage", tuple(weights_BLM[0].sum(0).tolist())),
    )
