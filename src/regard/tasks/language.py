"""Language modelling: running text in, a model that says what comes next out; and how well it does.

The loss is the cross-entropy of every token given those before it in its window, and in its document (`documents`). Quality is nats a
token, perplexity (e to that), and bits a byte of the text, which compares models with different vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..data import Encoded, Texts, TokenBatch, Tokenizer, Tokenizers, Tokens, Windows, encoded
from ..data.corpus import Numbers
from ..data.text import SUFFIXES
from ..data.windows import NONE, gather
from ..decode.batches import evaluating
from ..errors import BadConfig, NotSupported
from ..kernels import smoothed_cross_entropy
from ..layers import Packing
from ..models import LanguageModel, build
from ..train import Loss, Metric, Result, TrainConfig, fit
from .run import Run, begin_run


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Which text, cut into which tokens."""

    data: str = "python-docs"
    valid: str | None = None
    test: str | None = None
    field: str = "text"  # of JSON lines
    separator: str | None = None  # a line that ends a document of a text file
    suffixes: tuple[str, ...] = SUFFIXES  # of the files of a folder
    bad: Literal["stop", "skip"] = "stop"  # what to do with a bad line
    shares: tuple[float, float] = (0.05, 0.05)  # of validation and test, where they are not named
    tokens: Literal["bpe", "words", "characters", "bytes"] = "bpe"
    vocab: int = 4000

    def texts(self) -> Texts:
        return Texts(
            self.data, valid=self.valid, test=self.test, field=self.field, separator=self.separator, suffixes=self.suffixes, bad=self.bad,
            shares=(self.shares[0], self.shares[1]),
        )  # fmt: skip

    def tokenizer(self, texts: Texts) -> Tokenizer:
        """Learned from the training part. Characters and words that occur once are kept too: what is unknown cannot be said."""
        return Tokenizer.train(texts.train(), self.tokens, self.vocab, least=2 if self.tokens == "bpe" else 1)


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(TextConfig):
    """What a language model reads, in which windows."""

    length: int = 256  # tokens of a window
    batch: int = 16  # windows
    documents: bool | None = None  # each is read as if it were alone; None: if there are several
    stride: int | None = None  # between windows of an evaluation; None: half their length
    judged: int = 50_000  # validation tokens at each evaluation

    def __post_init__(self) -> None:
        if self.length < 1 or self.batch < 1 or self.judged < 1 or not 1 <= (self.stride or 1) <= self.length:
            raise BadConfig(
                f"length={self.length}, batch={self.batch}, judged={self.judged}, stride={self.stride}; "
                "expected 1 or more each, and a stride not above the length"
            )


class LanguageTask:
    """What the training loop asks."""

    metric = Metric("nats", higher=False)

    def __init__(self, train: Tokens, valid: Tokens, config: LanguageConfig, seed: int = 0):
        if not train.documents or not valid.documents:
            raise NotSupported(
                f"{config.data}: {train.documents} documents to train on and {valid.documents} for validation; training needs both"
            )
        self.config, self.valid = config, valid
        self.apart = config.documents is not False
        self.windows = Windows(train, config.length, config.batch, seed=seed, apart=self.apart)

    def batches(self, epoch: int) -> Sequence[Any]:
        return self.windows.plan(epoch)

    def batch(self, item: Any) -> TokenBatch:
        return self.windows.batch(item)

    def loss(self, model: nn.Module, batch: TokenBatch) -> Loss:
        assert isinstance(model, LanguageModel)
        total, right, count = summed_loss(model, batch)
        return Loss(total, count, {"right": float(right)})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, LanguageModel)
        c = self.config
        found = perplexity(model, self.valid, length=c.length, stride=c.stride, batch=c.batch, documents=self.apart, at_most=c.judged)
        return {name: getattr(found, name) for name in ("nats", "perplexity", "bits_per_byte", "right")}


def summed_loss(model: LanguageModel, batch: TokenBatch) -> tuple[Tensor, Tensor, int]:
    """The summed loss of all tokens that are asked for, how many were right, and how many there are."""
    x_BLD, wanted_BL = model.features(batch.ids_BL, batch.document_BL), batch.wanted_BL
    index_T = (wanted_BL != NONE).flatten().nonzero()[:, 0]
    if len(index_T) < wanted_BL.numel():
        x_TD, wanted_T = Packing(*batch.shape, index_T).pack(x_BLD)[0], wanted_BL.flatten()[index_T]
    else:
        x_TD, wanted_T = x_BLD.flatten(0, 1), wanted_BL.flatten()
    total, right = smoothed_cross_entropy(x_TD, *model.head(), wanted_T, 0.0)
    return total, right, len(index_T)


@dataclass(frozen=True)
class TextScore:
    """How well a model says a text."""

    nats: float  # a token
    perplexity: float
    bits_per_byte: float
    right: float  # share of tokens that were the likeliest
    tokens: int  # predicted
    bytes: int  # of the text they make
    unknown: float  # share of tokens the vocabulary lacks: above 0, bits_per_byte leaves out what they were


@torch.no_grad()
def perplexity(
    model: LanguageModel,
    tokens: Tokens,
    *,
    length: int | None = None,
    stride: int | None = None,
    batch: int = 16,
    documents: bool = True,
    at_most: int | None = None,
) -> TextScore:
    """Each token scored once, after at least `length − stride` tokens before it, or all that its document has.

    A window of `length` tokens moves on by `stride` (half of it if not given) and is asked for what the one before has not reached. With
    `documents` each is read alone. Of a long text the first `at_most` tokens may do; its bytes are then those of that share of the tokens.
    """
    length = length or model.config.length
    stride = stride or max(1, length // 2)
    if not 1 <= stride <= length:
        raise NotSupported(f"a stride of {stride} leaves tokens out between windows of {length}; take 1 to {length}")
    if not tokens.documents:
        raise NotSupported("there is no text to judge by; name some")
    span_B2, asked_B = _sliding(tokens, length, stride, documents, at_most)
    order = np.argsort(span_B2[:, 0] - span_B2[:, 1], kind="stable")  # rows of like length together, the longest first
    total, right, count = 0.0, 0, 0
    with evaluating(model):
        for at in range(0, len(order), batch):
            some = order[at : at + batch]
            part, hits, asked = summed_loss(model, gather(tokens, span_B2[some], asked_B=asked_B[some], apart=False))
            total, right, count = total + float(part), right + int(hits), count + asked
    nats = total / count
    size = tokens.bytes if at_most is None else round(tokens.bytes * count / (len(tokens) - tokens.documents))
    bits = total / math.log(2) / max(size, 1)
    return TextScore(nats, math.exp(min(nats, 700.0)), bits, right / count, count, size, tokens.unknown / len(tokens))


def _sliding(tokens: Tokens, length: int, stride: int, documents: bool, at_most: int | None) -> tuple[Numbers, Numbers]:
    """Spans [from, to) of windows, and the first token each is asked after."""
    pairs = zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True) if documents else [(0, len(tokens))]
    spans, asked, left = [], [], len(tokens) if at_most is None else at_most
    for begin, end in pairs:
        last = min(end - 1, begin + left)  # is read by nobody
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


def train_language(
    out: Path,
    config: LanguageConfig,
    train: TrainConfig,
    model: str = "gpt2",
    settings: Mapping[str, Any] | None = None,
    *,
    base: Path | str | None = None,
    cache: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Read the text, make the vocabulary, train, and leave a run directory.

    With `base`, a run, its model and vocabulary are trained on instead of new ones. Tokens are kept in `cache`, or in the run directory.
    """
    before = Run.load(base, LanguageModel) if base else None
    tokenizer, found = prepared(out, config, cache, resume, before)
    torch.manual_seed(train.seed)
    made = before.model if before else build(model, {"vocab": len(tokenizer), "length": config.length, **(settings or {})})
    if not isinstance(made, LanguageModel):
        raise NotSupported(f"{model} is no language model: it does not read from the left and say what comes next; gpt2 does")
    check_length(made.config.length, config.length, made.facts.name)
    about = asdict(config) | {"base": base and str(base), "digest": found.digest, "skipped": found.skipped}
    begin_run(Path(out), "language", about, made, train, Tokenizers(tokenizer), resume=resume)
    return fit(made, LanguageTask(found.train, found.valid, config, train.seed), train, out, resume=resume, progress=progress)


def prepared(out: Path, config: TextConfig, cache: Path | None, resume: bool, base: Run[Any] | None) -> tuple[Tokenizer, Encoded]:
    """The vocabulary (that of `base`, or found in the run directory, or made) and the text in its tokens."""
    texts, kept = config.texts(), Path(out) / "tokenizer.json"
    if base is not None:
        tokenizer = base.tokenizer
    else:
        tokenizer = Tokenizers.load(kept).source if resume and kept.exists() else config.tokenizer(texts)
    return tokenizer, encoded(texts, tokenizer, cache or Path(out) / "tokens")


def check_length(has: int, wants: int, name: str) -> None:
    if has < wants:
        raise BadConfig(f"{wants} tokens at a time for a {name} of length {has}; make one fit the other")


def judge_language(run: Run[LanguageModel], data: str | None = None, stride: int | None = None) -> TextScore:
    """How well a run says other text, or the test part of its own."""
    config = run.settings(LanguageConfig)
    tokens = text_for(run, config, data)
    return perplexity(run.model, tokens, length=config.length, stride=stride, batch=config.batch, documents=config.documents is not False)


def text_for(run: Run[Any], config: TextConfig, data: str | None) -> Tokens:
    """Text to judge a run by: all of `data`, or the test part of what it was trained on."""
    if data is None:
        found, learned = encoded(config.texts(), run.tokenizer, run.folder / "tokens"), run.config["settings"].get("digest")
        if learned and found.digest != learned:
            raise NotSupported(
                f"the text of {run.folder} has changed since it was trained, and its test part may now hold what it has learned from; "
                "name text that it has not seen with --data"
            )
        tokens = found.test
    else:
        whole = replace(config, data=data, valid=None, test=None, shares=(0.0, 0.0))
        with TemporaryDirectory() as passing:  # mapped files live on until they are let go
            tokens = encoded(whole.texts(), run.tokenizer, passing).train
    if not tokens.documents:
        raise NotSupported(f"{data or 'the test part of this run'} holds no text; name some with --data")
    return tokens
