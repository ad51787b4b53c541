"""Masked words: some tokens of a text are hidden, and an encoder that reads from both sides says what they were.

    BOS a a a ■ a a EOS b ■ b b EOS            kinds 0 0 0 0 0 0 0 0 1 1 1 1 1
            ↳ a         ↳ b                    and does b follow a?  (`following`)

15 % of the tokens are chosen, others each time: 80 % of these are shown as ■, 10 % as any other token, 10 % as they are; the loss is
asked at the chosen places only. Rows are filled with text of one document each; with `following`, the second half of every other row
comes from another document, and the encoder also says whether it does. Every token is in one row of an epoch (but for what is cut
off a row that would be too long).

Paper: Devlin et al. 2019, "BERT", arXiv:1810.04805.
We differ: rows are cut at tokens, not at sentences; random tokens are never special ones; in vocabularies of ours BOS and EOS do what
[CLS] and [SEP] do, and ■ has the number after the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import PAD, Tokenizers, Tokens
from ..data.corpus import Numbers
from ..data.frames import Frame
from ..errors import BadConfig, NotSupported
from ..kernels import smoothed_cross_entropy
from ..layers import Packing
from ..models import MODELS, TextEncoder, build
from ..train import Loss, Metric, Result, TrainConfig, fit
from .language import TextConfig, check_length, prepared, text_for
from .run import Run, begin_run


@runtime_checkable
class Follower(Protocol):
    """An encoder that can say whether the second text follows the first."""

    def follows(self, y_BD: Tensor) -> Tensor:
        """logits_B2 of what `pooled` gave: 0, it follows; 1, it does not."""


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(TextConfig):
    """What an encoder reads, and how much of it is hidden."""

    length: int = 128  # tokens of a row, BOS and EOS included
    batch: int = 32  # rows
    hidden: float = 0.15  # share of tokens that are chosen
    following: bool | None = None  # also ask whether the second half follows the first; None: if there are several documents
    judged: int = 200  # rows of validation at each evaluation

    def __post_init__(self) -> None:
        if self.length < 8 or self.batch < 1 or self.judged < 1 or not 0 < self.hidden < 1:
            raise BadConfig(
                f"length={self.length}, batch={self.batch}, judged={self.judged}, hidden={self.hidden}; "
                "expected rows of at least 8 tokens, 1 or more of them, and a share between 0 and 1"
            )


@dataclass
class MaskedBatch:
    """Rows as they are shown, and what was there."""

    ids_BL: Tensor
    n_B: Tensor
    kind_BL: Tensor
    chosen_T: Tensor  # places in the flattened rows
    wanted_T: Tensor
    apart_B: Tensor | None = None  # 0: the second half follows the first; 1: it is from elsewhere

    def __len__(self) -> int:
        return len(self.ids_BL)


class Rows:
    """Which text stands in which row, as numbers: begin and length of the first half, of the second, and 1 if that is from elsewhere."""

    def __init__(self, tokens: Tokens, frame: Frame, length: int, following: bool, seed: int):
        self.tokens, self.frame, self.following, self.seed = tokens, frame, following, seed
        self.words, self.special = frame.words(), torch.tensor(sorted(frame.special))
        self.room = length - (3 if following else 2)  # BOS and one EOS a half

    def plan(self, epoch: int) -> Numbers:
        """(rows, 5), in a random order of (seed, epoch)."""
        generator = np.random.default_rng([self.seed, epoch])
        begin, size, document = self._cut(int(generator.integers(0, self.room)))
        rows = np.zeros((len(begin), 5), dtype=np.int64)
        rows[:, 0], rows[:, 1] = begin, size
        if self.following:
            first = np.clip((size * generator.uniform(0.3, 0.7, len(size))).round().astype(np.int64), 1, np.maximum(size - 1, 1))
            rows[:, 1], rows[:, 2], rows[:, 3] = first, begin + first, size - first
            _exchange(rows, document, generator, self.room)
        return rows[generator.permutation(len(rows))]

    def _cut(self, offset: int) -> tuple[Numbers, Numbers, Numbers]:
        """Begin, size and document of rows: the text of each document in equal parts, the first of them shorter by what an epoch says."""
        begins, sizes, documents = [], [], []
        least = 2 if self.following else 1
        for number, (start, end) in enumerate(zip(self.tokens.starts.tolist(), self.tokens.ends.tolist(), strict=True)):
            last = end - (int(self.tokens.ids[end - 1]) == self.frame.end)
            edges = np.arange(start + 1 + offset - self.room, last + self.room, self.room).clip(start + 1, last)
            size = np.diff(edges)
            begins.append(edges[:-1][size >= least])
            sizes.append(size[size >= least])
            documents.append(np.full(len(begins[-1]), number))
        return np.concatenate(begins), np.concatenate(sizes), np.concatenate(documents)


def _exchange(rows: Numbers, document: Numbers, generator: np.random.Generator, room: int) -> None:
    """Half of the rows give their second half to each other, always to one of another document; the rest keep it."""
    some = generator.permutation(len(rows))[: len(rows) // 2]
    some = some[np.argsort(document[some], kind="stable")]  # documents side by side: moving on by the largest number reaches another
    if len(some) == 0:
        return
    step = int(np.bincount(document[some]).max())
    given = np.roll(some, -step)
    other = document[given] != document[some]
    taken, source = some[other], given[other]
    second = rows[source, 2:4].copy()
    rows[taken, 2] = second[:, 0]
    rows[taken, 3] = np.minimum(second[:, 1], room - rows[taken, 1])
    rows[taken, 4] = 1


class MaskedTask:
    """What the training loop asks, of an encoder."""

    metric = Metric("nats", higher=False)

    def __init__(self, train: Tokens, valid: Tokens, frame: Frame, config: MaskedConfig, seed: int = 0):
        if not train.documents or not valid.documents:
            raise NotSupported(
                f"{config.data}: {train.documents} documents to train on and {valid.documents} for validation; training needs both"
            )
        self.config, self.following = config, follows(config, train)
        self.train = Rows(train, frame, config.length, self.following, seed)
        self.unseen = Rows(valid, frame, config.length, self.following and valid.documents > 1, 0)

    def batches(self, epoch: int) -> Sequence[Any]:
        rows = self.train.plan(epoch)
        return [rows[at : at + self.config.batch] for at in range(0, len(rows), self.config.batch)]

    def batch(self, item: Any) -> MaskedBatch:
        return hide(self.train, item, self.config.hidden)

    def loss(self, model: nn.Module, batch: MaskedBatch) -> Loss:
        total, right, asked, followed = _losses(model, batch)
        count = len(batch.wanted_T)
        if asked is not None:  # the mean of one and the mean of the other
            total = total + asked * (count / len(batch))
        return Loss(total, count, {"right": float(right)} | ({} if asked is None else {"followed": followed * count / len(batch)}))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return judge(model, self.unseen, self.config)


def follows(config: MaskedConfig, tokens: Tokens) -> bool:
    """Whether to ask what follows."""
    if config.following and tokens.documents < 2:
        raise BadConfig("following=True needs text of at least two documents, to take a half from another; this has one")
    return tokens.documents > 1 if config.following is None else config.following


def hide(rows: Rows, some: Numbers, share: float, generator: torch.Generator | None = None) -> MaskedBatch:
    """Some rows of a plan, with a share of their words chosen and mostly hidden."""
    frame = rows.frame
    ids, kind, n = _filled(rows, some)
    ids_BL, kind_BL, n_B = torch.from_numpy(ids), torch.from_numpy(kind), torch.from_numpy(n)
    word_BL = ~torch.isin(ids_BL, rows.special) & (torch.arange(ids_BL.shape[1]) < n_B[:, None])
    # so many of each row, at least one: those with the smallest random numbers
    chance_BL = torch.rand(ids_BL.shape, generator=generator).masked_fill(~word_BL, 2.0)
    count_B = (word_BL.sum(1) * share).round().long().clamp(min=1)
    rank_BL = chance_BL.argsort(1).argsort(1)
    chosen_T = ((rank_BL < count_B[:, None]) & word_BL).flatten().nonzero()[:, 0]
    wanted_T = ids_BL.flatten()[chosen_T]
    random_T = rows.words[torch.randint(len(rows.words), wanted_T.shape, generator=generator)]
    lot_T = torch.rand(wanted_T.shape, generator=generator)
    shown_T = torch.where(lot_T < 0.8, frame.mask, torch.where(lot_T < 0.9, random_T, wanted_T))
    ids_BL = ids_BL.flatten().index_copy(0, chosen_T, shown_T).view_as(ids_BL)
    return MaskedBatch(ids_BL, n_B, kind_BL, chosen_T, wanted_T, torch.from_numpy(some[:, 4]) if rows.following else None)


def _filled(rows: Rows, some: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Numbers]:
    read, frame = rows.tokens.ids, rows.frame
    n = some[:, 1] + some[:, 3] + (3 if rows.following else 2)
    ids = np.full((len(some), int(n.max())), PAD, dtype=np.int64)
    kind = np.zeros_like(ids)
    for row, (first, size, second, more, _) in enumerate(some.tolist()):
        ids[row, 0], ids[row, size + 1] = frame.begin, frame.end
        ids[row, 1 : size + 1] = read[first : first + size]
        if rows.following:
            ids[row, size + 2 : size + 2 + more] = read[second : second + more]
            ids[row, size + 2 + more] = frame.end
            kind[row, size + 2 : size + 3 + more] = 1
    return ids, kind, n


def _losses(model: nn.Module, batch: MaskedBatch) -> tuple[Tensor, Tensor, Tensor | None, float]:
    """Summed loss of hidden tokens, how many were right; summed loss of what follows, how many rows were right."""
    assert isinstance(model, TextEncoder)
    x_BLD = model.features(batch.ids_BL, batch.n_B, batch.kind_BL)
    B, L = batch.ids_BL.shape
    x_TD = Packing(B, L, batch.chosen_T).pack(x_BLD)[0]
    total, right = smoothed_cross_entropy(model.spoken(x_TD), *model.head(), batch.wanted_T, 0.0)
    if batch.apart_B is None:
        return total, right, None, 0.0
    assert isinstance(model, Follower)
    logits_B2 = model.follows(model.pooled(x_BLD))
    return total, right, F.cross_entropy(logits_B2, batch.apart_B, reduction="sum"), float((logits_B2.argmax(1) == batch.apart_B).sum())


@torch.no_grad()
def judge(model: nn.Module, rows: Rows, config: MaskedConfig, at_most: int | None = None) -> dict[str, float]:
    """Nats a hidden token, the share guessed right, and of rows told rightly whether they follow. The same rows and places every time."""
    generator = torch.Generator().manual_seed(0)
    plan = rows.plan(0)[: at_most or config.judged]
    total, right, count, followed = 0.0, 0.0, 0, 0.0
    for at in range(0, len(plan), config.batch):
        batch = hide(rows, plan[at : at + config.batch], config.hidden, generator)
        part, hits, _, told = _losses(model, batch)
        total, right, count, followed = total + float(part), right + float(hits), count + len(batch.wanted_T), followed + told
    if not count:
        raise NotSupported("no row has two tokens to read; take longer texts")
    found = {"nats": total / count, "right": right / count}
    return found | ({"followed": followed / len(plan)} if rows.following else {})


def judge_masked(run: Run[TextEncoder], data: str | None = None) -> dict[str, float]:
    """`judge` of a run, on other text or on the test part of its own."""
    config = run.settings(MaskedConfig)
    tokens = text_for(run, config, data)
    rows = Rows(tokens, Frame.of(run.tokenizer), config.length, bool(config.following) and tokens.documents > 1, 0)
    return judge(run.model, rows, config, at_most=len(rows.plan(0)))


def train_masked(
    out: Path,
    config: MaskedConfig,
    train: TrainConfig,
    model: str = "bert",
    settings: Mapping[str, Any] | None = None,
    *,
    base: Path | str | None = None,
    cache: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Read the text, make the vocabulary, train an encoder, and leave a run directory.

    With `base`, a run, its model and vocabulary are trained on instead of new ones. Tokens are kept in `cache`, or in the run directory.
    """
    before = Run.load(base, TextEncoder) if base else None
    tokenizer, found = prepared(out, config, cache, resume, before)
    config = replace(config, following=follows(config, found.train))
    torch.manual_seed(train.seed)
    made = before.model if before else build(model, _sizes(model, len(tokenizer) + 1, config) | dict(settings or {}))
    if not isinstance(made, TextEncoder):
        raise NotSupported(f"{model} is no text encoder: it does not read from both sides; bert does")
    if config.following and not isinstance(made, Follower):
        raise NotSupported(f"{made.facts.name} cannot say whether one text follows another; set following=False")
    check_length(made.config.length, config.length, made.facts.name)
    frame = Frame.of(tokenizer)
    if frame.mask >= made.config.vocab:
        raise NotSupported(
            f"{base or model} has {made.config.vocab} tokens, and none is left for hidden words; begin with a run of `regard train masked`"
        )
    task = MaskedTask(found.train, found.valid, frame, config, train.seed)
    about = asdict(config) | {"base": base and str(base), "digest": found.digest, "skipped": found.skipped}
    begin_run(Path(out), "masked", about, made, train, Tokenizers(tokenizer), resume=resume)
    return fit(made, task, train, out, resume=resume, progress=progress)


def _sizes(model: str, vocab: int, config: MaskedConfig) -> dict[str, Any]:
    """Heads that nothing would train are left out, where a model has a choice."""
    heads = {"pooler": config.following, "sentences": config.following}
    known = {field.name for kind in MODELS if kind.facts.name == model for field in fields(kind.Config)}
    return {"vocab": vocab, "length": config.length} | {name: yes for name, yes in heads.items() if name in known}
