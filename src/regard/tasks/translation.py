"""Translation: pairs of sentences in, a translator out.

The loss is the label-smoothed cross-entropy of every target token (padding is left out before the output projection, so it costs
nothing there). Quality is BLEU and chrF by sacrebleu on detokenised, cased text, with the signature, and exact match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from ..data import Corpus, PairBatch, Splits
from ..decode import GREEDY, Beam, DecoderTokens, Hypothesis, Sampling, align, translate, watch
from ..look import Indices, Layers, Map, Maps
from ..metrics.bleu import score_translations
from ..models import Translator, device_of
from ..runs import Run
from ..train import Loss, Metric
from .measuring import measure_loss
from .options import BeamOptions, GreedyOptions, Pairs
from .options.translation import TranslateOptions, TranslationDeclaration, TranslationOptions
from .seq2seq import PairRows, Seq2SeqTask, beam_of, ranked, real_tokens
from .task import BeamPrefix, Plan, Prediction, Report
from .text_processor import TextProcessor
from .translation_maps import forced_maps
from .vocabulary import tokenizers_of_pairs


class Translation(TranslationDeclaration, Seq2SeqTask[TranslationOptions]):
    unit = "pairs"
    live_options = GreedyOptions(beam=4, nbest=4)
    model_kind = Translator
    small_sizes = {"transformer": {"width": 128, "hidden": 512}}  # noqa: RUF012
    metric = Metric("chrf", higher=True)  # BLEU is 0 for sentences of fewer than four words

    # -- data and model ------------------------------------------------------------------------------------------------

    def make_processor(self, data: Splits[Pairs], base: TextProcessor | None) -> TextProcessor:
        return TextProcessor(tokenizers_of_pairs(self.options, data.train, self.options.joint)) if base is None else base

    def settings(self, model: str, data: Splits[Pairs]) -> dict[str, Any]:
        pair = self.processor.tokenizers
        untied = {"tied": "output"} if model == "transformer" and not pair.joint else {}
        return {"source_vocab_size": len(pair.source), "target_vocab_size": len(pair.target), **untied}

    def corpus(self, pairs: Pairs, dropout: float = 0.0, seed: int = 0) -> Corpus:
        return Corpus.of(pairs, self.processor.tokenizers, dropout, seed)

    def plan(self, rows: PairRows, epoch: int | None, seed: int = 0) -> Plan:
        """With BPE-dropout each epoch of training has token ids of its own."""
        if epoch is not None and self.options.bpe_dropout:
            rows = replace(rows, corpus=self.corpus(rows.pairs, self.options.bpe_dropout, (seed << 20) + epoch))
        return super().plan(rows, epoch, seed)

    # -- loss ----------------------------------------------------------------------------------------------------------

    def loss(self, model: Translator, batch: PairBatch) -> Loss:
        total, right, count = summed_loss(model, batch, self.options.label_smoothing if model.training else 0.0)
        return Loss(total, count, {"accuracy": right})

    def log_probs(self, model: Translator, batch: PairBatch) -> Tensor:
        logp_BLN = model(batch.source_BM, batch.source_n_B, batch.target_BL[:, :-1]).float().log_softmax(-1)
        return logp_BLN.gather(-1, batch.target_BL[:, 1:, None])[..., 0].masked_fill(~real_tokens(batch), 0.0)

    # -- answers -------------------------------------------------------------------------------------------------------

    @property
    def answered(self) -> int:
        return self.options.valid_sentences

    def generate(self, model: Translator, examples: Pairs, options: Any) -> list[list[Hypothesis]]:
        nbest, weights = getattr(options, "nbest", 1), getattr(options, "alignments", "none") == "pharaoh"
        return self.translate(model, [source for source, _ in examples], beam_of(options, nbest), weights)

    def translate(
        self, model: Translator, sentences: Sequence[str], options: Beam | Sampling, want_weights: bool = False
    ) -> list[list[Hypothesis]]:
        """Hypotheses for each sentence, best first.

        Args:
            model: translator on any device.
            sentences: source sentences.
            options: beam search or sampling.
            want_weights: keep the attention to the source of each token.
        """
        source, tokens = self.processor.tokenizers.source, DecoderTokens.of(self.processor.tokenizers.target)
        sources = [[*ids, tokens.end] for ids in source.encode_all(list(sentences))]
        return translate(model, sources, options, tokens=tokens, want_weights=want_weights)

    def text(self, answer: Hypothesis) -> str:
        return self.processor.tokenizers.target.decode(answer.ids)

    def metrics(self, sums: Mapping[str, float], answers: Sequence[list[Hypothesis]], examples: Pairs) -> dict[str, float]:
        found = score_translations([self.text(one[0]) for one in answers], [target for _, target in examples])
        return {**super().metrics(sums, answers, examples), **found.metrics()}

    def baselines(self, train: Pairs, examples: Pairs) -> dict[str, dict[str, float]]:
        return {"copy of the source": score_translations([source for source, _ in examples], [target for _, target in examples]).metrics()}

    def report(self, sums: Mapping[str, float], answers: Sequence[list[Hypothesis]], examples: Pairs, options: BeamOptions) -> Report:
        sources, right = [source for source, _ in examples], [target for _, target in examples]
        found = score_translations(written := [self.text(one[0]) for one in answers], right, sources)
        return Report(
            metrics={**super().metrics(sums, answers, examples), **found.metrics()},
            notes=(f"{options.words}; signature: {found.signature}",),
            columns=("source_words", "sentences", *(("bleu",) if found.has_bleu else ()), "exact_match"),
            rows=[
                (words.replace("–", "-"), n, *((bleu,) if found.has_bleu else ()), same)
                for words, (n, bleu, same) in found.by_length.items()
            ],
            details={"beam": options.beam, "signature": found.signature},
            outputs=[text.replace("\n", " ") for text in written],
        )

    def prediction(self, example: tuple[str, str], answer: list[Hypothesis], options: TranslateOptions) -> Prediction:
        lines, found = map(list, zip(*ranked([self.text(one) for one in answer], answer, options.nbest), strict=True))
        if options.alignments == "pharaoh":
            links = [self._pharaoh(example[0], one) for one in answer[: options.nbest]]
            lines = [f"{line}\t{pairs}" for line, pairs in zip(lines, links, strict=True)]
            found = [{**one, "alignment": pairs} for one, pairs in zip(found, links, strict=True)]
        return Prediction("\n".join(lines), {"translations": found})

    def _pharaoh(self, sentence: str, hypothesis: Hypothesis) -> str:
        """Source word that each target word attended to most, as `i-j` pairs of word numbers."""
        source, target = self.processor.tokenizers.source, self.processor.tokenizers.target
        assert hypothesis.weights_LM is not None
        weights_LM = align.words(hypothesis.weights_LM, target.word_numbers(hypothesis.ids), source.word_numbers(source.encode(sentence)))
        return align.pharaoh(align.best(weights_LM))

    # -- attention maps ------------------------------------------------------------------------------------------------

    def attention_maps(self, run: Run[Translator], text: str, layers: Layers, heads: Indices, options: GreedyOptions) -> tuple[str, Maps]:
        """Alignment of source and translation; with `layers` the maps of these layers while the source is read and the target written."""
        if layers is None and heads is None:
            translated, drawn = alignment(run, text, beam_of(options))
            return translated, Maps([drawn])
        answers = self.translate(run.model, [text], beam_of(options, options.nbest))[0]
        maps, *others = (forced_maps(run, text, answer, layers, heads) for answer in answers[: options.nbest])
        maps.alternatives = tuple(others)
        return self.text(answers[0]), maps

    def watch(self, run: Run[Translator], text: str) -> Iterator[list[BeamPrefix]]:
        model, tokenizers, options = run.model, self.processor.tokenizers, self.live_options
        tokens, device = DecoderTokens.of(tokenizers.target), device_of(model)
        source = [*tokenizers.source.encode(text), tokens.end]
        source_n_B = torch.tensor([len(source)], device=device)
        with torch.no_grad():
            state = model.start(torch.tensor([source], device=device), source_n_B)
        search = beam_of(options, options.nbest)
        for now in watch(model, state, search, source_n_B=source_n_B, tokens=tokens, want_weights=True):
            named = tokenizers.target.strings
            ended = [BeamPrefix(named(one.ids), one.log_prob, cast(Tensor, one.weights_LM)[-1].cpu(), ended=True) for one in now.ended]
            yield ended + [BeamPrefix(named(one.ids), one.log_prob, cast(Tensor, one.weights_M).cpu()) for one in now.alive]


def summed_loss(model: Translator, batch: PairBatch, label_smoothing: float) -> tuple[Tensor, Tensor, int]:
    """Summed loss of all real target tokens, how many were predicted correctly, and how many there are."""
    x_TD = model.real_features(batch.source_BM, batch.source_n_B, batch.target_BL[:, :-1], batch.target_n_B)
    total, right = model.cross_entropy(x_TD, batch.target_BL[:, 1:][real_tokens(batch)], label_smoothing)
    return total, right, len(x_TD)


def bound_task(run: Run[Translator]) -> Translation:
    """The task of a run of any data."""
    return Translation(TranslationOptions(data=""), run.processor)


def likelihood(run: Run[Translator], pairs: Pairs, batch_tokens: int = 2048) -> tuple[float, float]:
    """Loss in nats per target token without smoothing, and token accuracy, under teacher forcing.

    Args:
        run: run of a translator.
        pairs: source and target of each pair.
        batch_tokens: tokens per batch, of the longer side.
    """
    sums = measure_loss(Translation(TranslationOptions(data="", batch_tokens=batch_tokens), run.processor), run.model, pairs)
    return sums["loss"] / sums["count"], sums["accuracy"] / sums["count"]


def translations(
    run: Run[Translator], sentences: Sequence[str], options: Beam | Sampling = GREEDY, *, want_weights: bool = False
) -> list[tuple[str, list[Hypothesis]]]:
    """The best translation of each sentence, and all hypotheses behind it.

    Args:
        run: run of a translator.
        sentences: source sentences.
        options: beam search or sampling; greedy if not given.
        want_weights: keep the attention to the source of each token.
    """
    task = bound_task(run)
    return [(task.text(found[0]), found) for found in task.translate(run.model, sentences, options, want_weights)]


def alignment(run: Run[Translator], sentence: str, options: Beam = GREEDY) -> tuple[str, Map]:
    """Translation of one sentence, and which source tokens each of its tokens attended to.

    Args:
        run: run of a translator.
        sentence: source sentence.
        options: beam search; greedy if not given.
    """
    ((text, answers),) = translations(run, [sentence], options, want_weights=True)
    best, source, target = answers[0], run.processor.tokenizers.source, run.processor.tokenizers.target
    assert best.weights_LM is not None
    end, weights_LM = target.target_end_id, best.weights_LM.float().cpu()
    L, M = weights_LM.shape
    queries, keys = target.strings([*best.ids, end])[:L], source.strings([*source.encode(sentence), end])[:M]
    normalised = torch.allclose(weights_LM.sum(-1), torch.ones(L), atol=1e-3)
    return text, Map.of_matrix(weights_LM, "target → source", run.model.facts.name, queries, keys, normalised=normalised)
