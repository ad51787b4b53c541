"""Translation: pairs of sentences in, a translator out; and what to do with it then.

The loss is the label-smoothed cross-entropy of every target token (padding left out before the output projection, so it costs
nothing there). Quality is BLEU and chrF by sacrebleu on detokenised text, cased, with the signature, and exact match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data import EOS, Batches, Corpus, PairBatch, Parallel, Tokenizers, collate, read
from ..decode import Beam, Hypothesis, Sampling, translate
from ..errors import BadConfig, NotSupported
from ..kernels import smoothed_cross_entropy
from ..look import Map
from ..look.maps import MEAN
from ..models import Translator, build
from ..train import Loss, Metric, Result, TrainConfig, fit
from .run import Run, begin_run

GREEDY = Beam(width=1)
END = "‹end›"  # the label of the end token


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """What to translate, cut into which tokens, in batches of which size."""

    data: str = "numbers:en-de"
    valid: str | None = None
    test: str | None = None
    tokens: Literal["bpe", "words", "characters", "bytes"] = "bpe"
    vocab: int = 8000
    joint: bool = True
    budget: int = 2048  # tokens a batch, of the longer side
    smoothing: float = 0.1
    judged: int = 200  # validation sentences that are translated at each evaluation
    bad: Literal["stop", "skip"] = "stop"  # what to do with a bad line
    bpe_dropout: float = 0.0  # each merge is left out with this probability: every epoch cuts the words anew; 0.1 in the paper

    def __post_init__(self) -> None:
        if not 0 <= self.bpe_dropout < 1 or (self.bpe_dropout and self.tokens != "bpe"):
            raise BadConfig(f"bpe_dropout is {self.bpe_dropout} with {self.tokens} tokens; expected 0 or more, below 1, and bpe")

    def read(self) -> Parallel:
        return read(self.data, valid=self.valid, test=self.test, bad=self.bad)


class TranslationTask:
    """What the training loop asks."""

    metric = Metric("chrf", higher=True)  # BLEU is 0 for sentences of fewer than four words, whatever they say

    def __init__(self, pairs: Parallel, tokenizers: Tokenizers, config: TranslationConfig, seed: int = 0):
        if not pairs.train or not pairs.valid:
            raise NotSupported(f"{config.data}: {pairs}; training needs pairs in both")
        self.config, self.tokenizers, self.valid = config, tokenizers, pairs.valid

        def cut(epoch: int) -> Corpus:  # by seed, epoch and sentence alone: resumed, or in another process, it is the same
            return Corpus.of(pairs.train, tokenizers, config.bpe_dropout, (seed << 20) + epoch)

        self.order = Batches(cut if config.bpe_dropout else cut(0), config.budget, seed=seed, long="alone")
        self.unseen = _in_order(pairs.valid[:1000], tokenizers, config.budget)

    def batches(self, epoch: int) -> Sequence[Any]:
        self.corpus = self.order.corpus(epoch)
        return self.order.plan(epoch)

    def batch(self, item: Any) -> PairBatch:
        return collate(self.corpus, item)

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        assert isinstance(model, Translator)
        total, right, count = summed_loss(model, batch, self.config.smoothing)
        return Loss(total, count, {"right": float(right)})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Translator)
        nats, right = _likelihood(model, self.unseen)
        judged = self.valid[: self.config.judged]
        found = score([t for t, *_ in translations(model, self.tokenizers, [s for s, _ in judged], GREEDY)], [t for _, t in judged])
        return {"nats": nats, "right": right, "bleu": found.bleu, "chrf": found.chrf, "exact": found.exact}


def summed_loss(model: Translator, batch: PairBatch, smoothing: float) -> tuple[Tensor, Tensor, int]:
    """The summed loss of all real target tokens, how many were right, and how many there are."""
    given_BL, wanted_BL = batch.target_BL[:, :-1], batch.target_BL[:, 1:]
    x_TD = model.real_features(batch.source_BM, batch.source_n_B, given_BL, batch.target_n_B)
    real_BL = torch.arange(wanted_BL.shape[1], device=wanted_BL.device) < batch.target_n_B[:, None]
    total, right = smoothed_cross_entropy(x_TD, *model.head(), wanted_BL[real_BL], smoothing)
    return total, right, int(batch.target_n_B.sum())


def _in_order(pairs: Sequence[tuple[str, str]], tokenizers: Tokenizers, budget: int) -> list[PairBatch]:
    corpus = Corpus.of(pairs, tokenizers)
    return [collate(corpus, index) for index in Batches(corpus, budget, shuffle=False, long="alone").plan(0)]


def _likelihood(model: Translator, batches: Sequence[PairBatch]) -> tuple[float, float]:
    parts = [summed_loss(model, batch, 0.0) for batch in batches]
    count = sum(n for _, _, n in parts)
    return sum(float(total) for total, _, _ in parts) / count, sum(float(right) for _, right, _ in parts) / count


@torch.no_grad()
def likelihood(model: Translator, tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]], budget: int = 2048) -> tuple[float, float]:
    """Nats a target token, and how often the right token is the likeliest, each time after the right ones before it; no smoothing."""
    return _likelihood(model, _in_order(pairs, tokenizers, budget))


def train_translator(
    out: Path,
    config: TranslationConfig,
    train: TrainConfig,
    model: str = "transformer",
    settings: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Read the data, make the vocabulary, train, and leave a run directory."""
    pairs = config.read()
    kept = out / "tokenizer.json"
    tokenizers = (
        Tokenizers.load(kept) if resume and kept.exists() else Tokenizers.train(pairs.train, config.tokens, config.vocab, config.joint)
    )
    torch.manual_seed(train.seed)
    sizes = {"source_vocab": len(tokenizers.source), "target_vocab": len(tokenizers.target)}
    if model == "transformer" and not config.joint:
        sizes |= {"tied": "output"}  # type: ignore[dict-item]
    translator = build(model, {**sizes, **(settings or {})})
    begin_run(Path(out), "translation", asdict(config) | {"digest": pairs.digest}, translator, train, tokenizers, resume=resume)
    return fit(translator, TranslationTask(pairs, tokenizers, config, train.seed), train, out, resume=resume, progress=progress)


def translations(
    model: Translator, tokenizers: Tokenizers, sentences: Sequence[str], options: Beam | Sampling = GREEDY, *, want_weights: bool = False
) -> list[tuple[str, list[Hypothesis]]]:
    """The best translation of each sentence, and all hypotheses behind it."""
    sources = [[*ids, EOS] for ids in tokenizers.source.encode_all(list(sentences))]
    answers = translate(model, sources, options, want_weights=want_weights)
    return [(tokenizers.target.decode(each[0].ids), each) for each in answers]


@dataclass(frozen=True)
class Score:
    """How good translations are."""

    bleu: float
    chrf: float
    exact: float
    signature: str
    by_length: dict[str, tuple[int, float, float]]  # source words "1–5" → (sentences, BLEU, exact match)


def score(found: Sequence[str], right: Sequence[str], sources: Sequence[str] | None = None, step: int = 5) -> Score:
    """BLEU and chrF by sacrebleu, exact match; by source length too if the sources are given."""
    import sacrebleu

    bleu = sacrebleu.BLEU(effective_order=False)
    whole = bleu.corpus_score(list(found), [list(right)])
    same = [a.strip() == b.strip() for a, b in zip(found, right, strict=True)]
    groups: dict[int, list[int]] = {}
    for number, source in enumerate(sources or ()):
        groups.setdefault((max(len(source.split()), 1) - 1) // step, []).append(number)
    by_length = {}
    for group, numbers in sorted(groups.items()):
        part = sacrebleu.corpus_bleu([found[n] for n in numbers], [[right[n] for n in numbers]])
        by_length[f"{group * step + 1}–{(group + 1) * step}"] = (len(numbers), part.score, sum(same[n] for n in numbers) / len(numbers))
    chrf = sacrebleu.corpus_chrf(list(found), [list(right)]).score
    return Score(whole.score, chrf, sum(same) / max(len(same), 1), str(bleu.get_signature()), by_length)


def alignment(run: Run[Translator], sentence: str, options: Beam = GREEDY) -> tuple[str, Map]:
    """The translation of one sentence, and where each of its tokens looked."""
    ((text, answers),) = translations(run.model, run.tokenizers, [sentence], options, want_weights=True)
    best = answers[0]
    assert best.weights_LM is not None
    source, target = run.tokenizers.source, run.tokenizers.target
    keys, queries = [*source.strings(source.encode(sentence)), END], [*target.strings(best.ids), END]
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
