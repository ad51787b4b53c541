"""Translation: pairs of sentences in, a translator out.

The loss is the label-smoothed cross-entropy of every target token (padding is left out before the output projection, so it costs
nothing there). Quality is BLEU and chrF by sacrebleu on detokenised, cased text, with the signature, and exact match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from ..data import Batches, Corpus, HFTokenizer, PairBatch, Parallel, Tokenizer, Tokenizers, collate, read_pairs
from ..data.hf_tokenizer import TranslationTokens
from ..decode import GNMT, GREEDY, Beam, DecoderTokens, Hypothesis, Sampling, align, translate, watch
from ..errors import BadConfig
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients
from ..look.map import MEAN
from ..models import Model, Translator
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import BeamPrefix, Dataset, Example, Prediction, Report, Task, require_parts
from ._bleu import score
from ._options import Files, Pairs, TokenizerOptions
from ._processor import TextProcessor

SMALL = 20_000  # pairs: below, a model of width 128 learns more in the same time


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(TokenizerOptions):
    """Data, vocabulary and batches."""

    data: Files = "numbers:en-de"
    """Two files; a .tsv, .csv, .jsonl (also .gz, .xz) or .parquet; hf:FOLDER, a dataset; or numbers:en-de, dates:en-fr, gettext:fr."""
    fields: tuple[str, ...] = ()
    """Names of the columns or fields of source and target, or numbers of columns from 1."""
    joint: bool = True
    """False: a vocabulary each for source and target; by default they share one."""
    bpe_dropout: float = 0.0
    """Probability of skipping each BPE merge, drawn again every epoch; 0.1 helps with little data."""
    batch_tokens: int = 2048
    """Tokens per batch, of the longer side."""
    label_smoothing: float = 0.1
    """Label smoothing."""
    valid_sentences: int = 200
    """Validation sentences that are translated at each evaluation."""

    def __post_init__(self) -> None:
        if not 0 <= self.bpe_dropout < 1 or (self.bpe_dropout and self.tokenizer != "bpe"):
            raise BadConfig(f"bpe_dropout={self.bpe_dropout} with {self.tokenizer} tokens; expected 0 ≤ bpe_dropout < 1, and only with bpe")


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """How to search."""

    beam: int = 4
    """Beam width; 1: greedy."""
    length_penalty: float = 0.6
    """Exponent of the length penalty ((5 + length) / 6)^x; 0: none; larger values favour longer translations."""

    def search(self, nbest: int = 1) -> Beam:
        """The same for the decoder."""
        return Beam(size=max(self.beam, nbest), nbest=nbest, length_penalty=GNMT(self.length_penalty))


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(BeamOptions):
    """How to search, and what to print."""

    nbest: int = 1
    """Translations per sentence, best first, with their scores."""
    alignments: Literal["none", "pharaoh"] = "none"
    """pharaoh: after each translation a tab and pairs source-target of word numbers."""


@dataclass(frozen=True, kw_only=True)
class GreedyOptions(BeamOptions):
    beam: int = 1
    nbest: int = 1
    """Translations to choose from in the explorer, best first; a beam of at least as many."""


class Translation(Task[TranslationOptions]):
    """Train a translator on pairs of sentences.

    As in:  regard train translation --data numbers:en-de --out runs/numbers --minutes 2
            regard train translation --data train.en train.de --valid val.en val.de --out runs/mine --minutes 10
            regard train translation --data pairs.csv --fields en de --out runs/mine --minutes 10
    """

    name = "translation"
    Options = TranslationOptions
    EvaluateOptions = BeamOptions
    PredictOptions = TranslateOptions
    LookOptions = GreedyOptions
    live_options = GreedyOptions(beam=4, nbest=4)
    searches = True
    model_kind = Translator
    default_model = "transformer"
    default_train = TrainOptions(lr=4e-3, evaluate_every=150)
    most_warmup = 60
    small = False  # few pairs

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> Parallel:
        fields: Any = self.options.fields or None
        return read_pairs(self.options.data, fields=fields, **self.options.parts())

    def make_processor(self, raw: Parallel, base: TextProcessor | None) -> TextProcessor:
        return TextProcessor(self.options.tokenizers_of_pairs(raw.train, self.options.joint)) if base is None else base

    def encode(self, raw: Parallel, processor: TextProcessor, cache: Path) -> Dataset[Pairs]:
        return Dataset(raw.train, raw.valid, raw.test, raw.digest, str(raw.skipped) if len(raw.skipped) else "", "pairs")

    def settle(self, dataset: Dataset[Pairs]) -> Self:
        decided = type(self)(self.options)
        decided.small = len(dataset.train) < SMALL
        return decided

    def size_settings(self, model: str) -> dict[str, Any]:
        return {"width": 128, "hidden": 512} if self.small and model == "transformer" else {}

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        self.check_kind(model)
        source, target = processor.tokenizers.source, processor.tokenizers.target
        untied = {"tied": "output"} if model == "transformer" and not processor.tokenizers.joint else {}
        return {"source_vocab_size": len(source), "target_vocab_size": len(target), **untied}

    def objective(self, dataset: Dataset[Pairs], processor: TextProcessor, model: Model, seed: int) -> TranslationObjective:
        return TranslationObjective(dataset, processor.tokenizers, self.options, seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[Translator], data: Files | None, options: BeamOptions) -> Report:
        pairs = self.test_data(run, data)
        sources, right = [s for s, _ in pairs], [t for _, t in pairs]
        written = [text for text, _ in translations(run, sources, options.search())]
        found = score(written, right, sources)
        by = f"beam {options.beam}" if options.beam > 1 else "greedy"
        return Report(
            metrics=found.metrics(),
            notes=(f"{self.test_name(data)}: {len(pairs):,} sentences, {by}; signature: {found.signature}",),
            columns=("source_words", "sentences", *(("bleu",) if found.has_bleu else ()), "exact_match"),
            rows=[
                (length.replace("–", "-"), n, *((bleu,) if found.has_bleu else ()), same)
                for length, (n, bleu, same) in found.by_length.items()
            ],
            details={"data": self.test_name(data), "sentences": len(pairs), "beam": options.beam, "signature": found.signature},
            outputs=[text.replace("\n", " ") for text in written],
        )

    def predict(self, run: Run[Translator], inputs: Sequence[str], options: TranslateOptions) -> list[Prediction]:
        found = translations(run, inputs, options.search(options.nbest), want_weights=options.alignments == "pharaoh")
        return [
            self._prediction(run, source, answers[: options.nbest], options) for source, (_, answers) in zip(inputs, found, strict=True)
        ]

    def score(self, run: Run[Translator], pairs: Sequence[tuple[str, str]]) -> list[Prediction]:
        answers = []
        for (_, target), (total, tokens) in zip(pairs, target_scores(run, pairs), strict=True):
            values = {"target": target, "log_probability": total, "tokens": tokens}
            answers.append(Prediction(f"{total:.4f}\t{target}", values))
        return answers

    def _prediction(self, run: Run[Translator], source: str, answers: Sequence[Hypothesis], options: TranslateOptions) -> Prediction:
        found, lines = [], []
        for answer in answers:
            text = run.processor.tokenizers.target.decode(answer.ids).replace("\n", " ")
            links = {"alignment": _pharaoh(run, source, answer)} if options.alignments == "pharaoh" else {}
            found.append({"text": text, "score": answer.score, **links})
            lines.append("\t".join([*([f"{answer.score:.4f}"] if options.nbest > 1 else []), text, *links.values()]))
        return Prediction("\n".join(lines), {"translations": found})

    def attention_maps(self, run: Run[Translator], text: str, layers: Layers, heads: Indices, options: GreedyOptions) -> tuple[str, Maps]:
        """The alignment of source and translation; with `layers` the maps of these layers while the source is read and the target written."""
        if layers is None and heads is None:
            translated, drawn = alignment(run, text, options.search())
            return translated, Maps([drawn])
        return layer_maps(run, text, options.search(options.nbest), layers, heads)

    def watch(self, run: Run[Translator], text: str) -> Iterator[list[BeamPrefix]]:
        return watch_beam(run, text, self.live_options.search(self.live_options.nbest))

    @classmethod
    def example(cls, folder: Path) -> Example:
        numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
        path = folder / "pairs.tsv"
        path.write_text("".join(f"{a} {b}\t{b} {a}\n" for a in numbers for b in numbers), encoding="utf-8")
        options = TranslationOptions(data=str(path), tokenizer="word", vocab_size=50, batch_tokens=64, valid_sentences=3)
        settings = {"width": 16, "heads": 2, "depth": (1, 1), "hidden": 16}
        return Example(options=options, settings=settings, input="two nine", broken="one column\n")


class TranslationObjective:
    """What the training loop asks."""

    metric = Metric("chrf", higher=True)  # BLEU is 0 for sentences of fewer than four words

    def __init__(self, pairs: Dataset[Pairs] | Parallel, tokenizers: Tokenizers, options: TranslationOptions, seed: int = 0):
        require_parts(options.data, len(pairs.train), len(pairs.valid), "pairs")
        self.options, self.tokenizers, self.valid = options, tokenizers, pairs.valid

        def cut(epoch: int) -> Corpus:  # a function of seed, epoch and sentence: the same when resumed and in every process
            return Corpus.of(pairs.train, tokenizers, options.bpe_dropout, (seed << 20) + epoch)

        self.order = Batches(cut if options.bpe_dropout else cut(0), options.batch_tokens, seed=seed, long="alone")
        self.unseen = _in_order(pairs.valid[:1000], tokenizers, options.batch_tokens)

    def batches(self, epoch: int) -> Sequence[Any]:
        self.corpus = self.order.corpus(epoch)
        return self.order.plan(epoch)

    def batch(self, item: Any) -> PairBatch:
        return collate(self.corpus, item)

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        assert isinstance(model, Translator)
        total, right, count = summed_loss(model, batch, self.options.label_smoothing)
        return Loss(total, count, {"accuracy": float(right)})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Translator)
        loss, accuracy = _likelihood(model, self.unseen)
        some = self.valid[: self.options.valid_sentences]
        answers = _translations(model, self.tokenizers, [s for s, _ in some], GREEDY)
        found = score([text for text, _ in answers], [t for _, t in some])
        return {"loss": loss, "accuracy": accuracy, **found.metrics()}


def summed_loss(model: Translator, batch: PairBatch, label_smoothing: float) -> tuple[Tensor, Tensor, int]:
    """The summed loss of all real target tokens, how many were predicted correctly, and how many there are."""
    given_BL, wanted_BL = batch.target_BL[:, :-1], batch.target_BL[:, 1:]
    x_TD = model.real_features(batch.source_BM, batch.source_n_B, given_BL, batch.target_n_B)
    real_BL = torch.arange(wanted_BL.shape[1], device=wanted_BL.device) < batch.target_n_B[:, None]
    total, right = model.cross_entropy(x_TD, wanted_BL[real_BL], label_smoothing)
    return total, right, int(batch.target_n_B.sum())


def _in_order(pairs: Pairs, tokenizers: Tokenizers, batch_tokens: int) -> list[PairBatch]:
    corpus = Corpus.of(pairs, tokenizers)
    return [collate(corpus, index) for index in Batches(corpus, batch_tokens, shuffle=False, long="alone").plan(0)]


def _likelihood(model: Translator, batches: Sequence[PairBatch]) -> tuple[float, float]:
    parts = [summed_loss(model, batch, 0.0) for batch in batches]
    count = sum(n for _, _, n in parts)
    return sum(float(total) for total, _, _ in parts) / count, sum(float(right) for _, right, _ in parts) / count


@torch.no_grad()
def likelihood(run: Run[Translator], pairs: Pairs, batch_tokens: int = 2048) -> tuple[float, float]:
    """Loss in nats per target token without smoothing, and token accuracy, under teacher forcing."""
    return _likelihood(run.model, _in_order(pairs, run.processor.tokenizers, batch_tokens))


@torch.no_grad()
def target_scores(run: Run[Translator], pairs: Pairs, batch_tokens: int = 2048) -> list[tuple[float, int]]:
    """The log-probability of each target given its source, the end token included, and its number of tokens."""
    scores: dict[int, tuple[float, int]] = {}
    for batch in _in_order(pairs, run.processor.tokenizers, batch_tokens):
        wanted_BL = batch.target_BL[:, 1:]
        logp_BLN = run.model(batch.source_BM, batch.source_n_B, batch.target_BL[:, :-1]).float().log_softmax(-1)
        logp_BL = logp_BLN.gather(-1, wanted_BL[..., None])[..., 0]
        real_BL = torch.arange(wanted_BL.shape[1]) < batch.target_n_B[:, None]
        assert batch.index_B is not None
        totals = logp_BL.masked_fill(~real_BL, 0.0).sum(1).tolist()
        scores |= dict(zip(batch.index_B.tolist(), zip(totals, batch.target_n_B.tolist(), strict=True), strict=True))
    return [scores[n] for n in range(len(pairs))]


def translations(
    run: Run[Translator], sentences: Sequence[str], options: Beam | Sampling = GREEDY, *, want_weights: bool = False
) -> list[tuple[str, list[Hypothesis]]]:
    """The best translation of each sentence, and all hypotheses behind it."""
    return _translations(run.model, run.processor.tokenizers, sentences, options, want_weights)


def _translations(
    model: Translator, tokenizers: Tokenizers, sentences: Sequence[str], options: Beam | Sampling, want_weights: bool = False
) -> list[tuple[str, list[Hypothesis]]]:
    tokens = decoder_tokens(tokenizers.target)
    sources = [[*ids, tokens.end] for ids in tokenizers.source.encode_all(list(sentences))]
    answers = translate(model, sources, options, tokens=tokens, want_weights=want_weights)
    return [(tokenizers.target.decode(each[0].ids), each) for each in answers]


def decoder_tokens(tokenizer: Tokenizer) -> DecoderTokens:
    """What a target begins and ends with, for the search."""
    if not isinstance(tokenizer, HFTokenizer):
        return DecoderTokens()
    tokens = TranslationTokens.of(tokenizer)
    padding = () if tokens.pad is None or tokens.pad == tokens.end else (tokens.pad,)
    banned = padding if tokenizer.banned_ids is None else tokenizer.banned_ids
    return DecoderTokens(first=tokens.first, end=tokens.end, banned=banned)


def watch_beam(run: Run[Translator], sentence: str, options: Beam) -> Iterator[list[BeamPrefix]]:
    """The translation of one sentence as it is searched: after each step what has ended and the prefixes that go on, each best first."""
    model, tokenizers = run.model, run.processor.tokenizers
    tokens = decoder_tokens(tokenizers.target)
    source = [*tokenizers.source.encode(sentence), tokens.end]
    source_n_B = torch.tensor([len(source)])
    with torch.no_grad():
        state = model.start(torch.tensor([source]), source_n_B)
    for now in watch(model, state, options, source_n_B=source_n_B, tokens=tokens, want_weights=True):
        named = tokenizers.target.strings
        ended = [BeamPrefix(named(one.ids), one.log_prob, cast(Tensor, one.weights_LM)[-1], ended=True) for one in now.ended]
        yield ended + [BeamPrefix(named(one.ids), one.log_prob, cast(Tensor, one.weights_M)) for one in now.alive]


# -- attention maps ----------------------------------------------------------------------------------------------------


def alignment(run: Run[Translator], sentence: str, options: Beam = GREEDY) -> tuple[str, Map]:
    """The translation of one sentence, and which source tokens each of its tokens attended to."""
    ((text, answers),) = translations(run, [sentence], options, want_weights=True)
    best, source, target = answers[0], run.processor.tokenizers.source, run.processor.tokenizers.target
    assert best.weights_LM is not None
    end = decoder_tokens(target).end
    keys, queries = source.strings([*source.encode(sentence), end]), target.strings([*best.ids, end])
    weights_BHLM = best.weights_LM[None, None].float().cpu()
    L, M = weights_BHLM.shape[2:]
    drawn = Map(
        layer="target → source",
        mechanism=run.model.facts.name,
        call=0,
        run=0,
        heads=(MEAN,),
        rows=tuple(range(L)),
        columns=tuple(range(M)),
        queries=L,
        weights_BHLM=weights_BHLM,
        normalised=torch.allclose(weights_BHLM.sum(-1), torch.ones(1, 1, L), atol=1e-3),
    )
    return text, drawn.label(queries[:L], keys[:M])


@torch.no_grad()
def layer_maps(
    run: Run[Translator], sentence: str, options: Beam = GREEDY, layers: Layers = None, heads: Indices = None
) -> tuple[str, Maps]:
    """The translation of a sentence, and the maps of all layers under teacher forcing; with `nbest`, those of the others as alternatives."""
    ((text, answers),) = translations(run, [sentence], options)
    maps, *others = (forced_maps(run, sentence, answer, layers, heads) for answer in answers[: options.nbest])
    maps.alternatives = tuple(others)
    return text, maps


@torch.no_grad()
def forced_maps(run: Run[Translator], sentence: str, answer: Hypothesis, layers: Layers = "*", heads: Indices = None) -> Maps:
    """The maps of all layers while this translation is read as the target. A row is named after the token it predicts."""
    tokenizers, model = run.processor.tokenizers, run.model
    special, ids = decoder_tokens(tokenizers.target), answer.ids
    source = [*tokenizers.source.encode(sentence), special.end]
    source_BM, source_n_B, target_BL = torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[special.first, *ids]])

    def features(model: Translator) -> Tensor:
        return model.features(source_BM, source_n_B, target_BL)[0]

    with capture(model, layers, heads) as maps:
        features(model)
    read_labels = tokenizers.source.strings(source)
    target_labels = tokenizers.target.strings([special.first, *ids])
    written_labels = tokenizers.target.strings([*ids, special.end])
    own, paths = model.attentions(), {layer: layer.rpartition(".")[0] for layer in maps.layers}
    # of the layers whose queries write the target: their keys are the source, 0, or the target so far, 1
    inputs = {layer: int(path in own) for layer, path in paths.items() if path not in own or path.startswith(model.causal_parts)}
    # a view per layer: a recurrent decoder attends once per step
    labelled = [label_layer(model, maps.view(layer), read_labels, target_labels, written_labels) for layer in maps.layers]
    gradients = InputGradients(model, (source_BM, target_BL), features, torch.tensor([*ids, special.end]), written_labels, inputs)
    text = tokenizers.target.decode(ids)
    return Maps(labelled, maps.idle, answer=text, score=answer.score, gradients=gradients)


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


def _pharaoh(run: Run[Translator], sentence: str, hypothesis: Hypothesis) -> str:
    """The source word each target word attended to most, as `i-j` pairs of word numbers."""
    source, target = run.processor.tokenizers.source, run.processor.tokenizers.target
    assert hypothesis.weights_LM is not None
    weights_LM = align.words(hypothesis.weights_LM, target.word_numbers(hypothesis.ids), source.word_numbers(source.encode(sentence)))
    return align.pharaoh(align.best(weights_LM))
