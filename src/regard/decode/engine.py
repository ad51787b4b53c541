"""Many completions at once: prompts join a running batch as they come, answers leave it as they end, and no row can tell who else is there.

    engine = Engine(model, tokenizer.decode)
    rows = engine.submit(Request(prompt=ids, most=50), copies=2)
    while engine.busy:
        for piece in engine.step():          # a little reading of new prompts, then one token for every row
            print(piece.row.number, piece.text)

Prompts are read together, aligned at their ends: the longest begins, and a shorter one joins when as much is left as it has. Nothing is
padded, and a step reads at most `chunk` tokens, so that running rows never wait long. Rows of states that cannot be put together
go on as batches of their own.

Paper: Yu et al. 2022 ("Orca", batches that change at every step), OSDI; Agrawal et al. 2023 (prompts in chunks), arXiv:2308.16369.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention import State
from ..data import BOS, EOS, PAD
from ..errors import Busy, NotSupported, StateNotSupported
from ..models import LanguageModel
from ._base import device_of, full_precision
from .lookup import Lookup
from .requests import Decode, Piece, Request, Row
from .sample import NEVER, Sampling, draw, filtered

Likeliest = tuple[tuple[int, float], ...]


@dataclass(eq=False)
class _Prompt:
    """A prompt, the rows that will go on from it, and the scores of its tokens if they were asked for."""

    request: Request
    rows: list[Row]
    scores: list[tuple[float, Likeliest]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.prompt)

    @property
    def gone(self) -> bool:
        return all(row.gone for row in self.rows)


@dataclass
class _Batch:
    """Rows that go on together."""

    rows: list[Row]
    state: State


class _Reading:
    """Prompts on their way into the model, the longest first."""

    def __init__(self, prompts: list[_Prompt]):
        self.prompts = sorted(prompts, key=lambda prompt: -prompt.length)
        self.left = self.prompts[0].length  # tokens still to come; the same for all, as they end together
        self.begun = 0
        self.state: State | None = None

    def without_gone(self, device: torch.device) -> _Reading | None:
        """Those that somebody still waits for. If none of them has begun, they need not wait for the end of a longer one that left."""
        kept = [b for b, prompt in enumerate(self.prompts) if not prompt.gone]
        if len(kept) == len(self.prompts):
            return self
        prompts, begun = [self.prompts[b] for b in kept], [b for b in kept if b < self.begun]
        if not begun:
            return _Reading(prompts) if prompts else None
        assert self.state is not None
        if len(begun) < self.begun:
            self.state, self.begun = self.state.reorder(torch.tensor(begun, device=device)), len(begun)
        self.prompts = prompts
        return self


class Engine:
    """Steps a model over a batch that changes. One thread may use it; see `regard.serve` for many.

    rows       answers at once, those whose prompts are being read counted
    positions  tokens that caches may have to hold: rows times the longest text among them, prompt and answer
    waiting    prompts that may wait for a place; one more raises Busy
    chunk      tokens of prompts read in a step
    lookup     tokens guessed at once from what was said before, while there is one row only; the answers are the same (see `Lookup`)
    ends       tokens that end an answer
    never      tokens that are never chosen
    """

    def __init__(
        self,
        model: LanguageModel,
        decode: Decode,
        *,
        ends: Collection[int] = (EOS,),
        never: Collection[int] = (PAD, BOS),
        length: int | None = None,
        rows: int = 16,
        positions: int = 16_384,
        waiting: int = 256,
        chunk: int = 128,
        lookup: int = 0,
    ):
        if model.training:
            raise NotSupported(f"this {type(model).__name__} is training, and dropout would change its answers; call model.eval() first")
        if min(rows, positions, waiting, chunk) < 1 or lookup < 0:
            raise NotSupported(f"Engine(rows={rows}, positions={positions}, waiting={waiting}, chunk={chunk}, lookup={lookup}): too small")
        self.model, self.decode = model, decode
        self.vocab = model.config.vocab
        self.length = model.config.length if length is None else length  # of a prompt with its answer
        self.ends, self.rows, self.positions, self.most_waiting, self.chunk = frozenset(ends), rows, positions, waiting, chunk
        self.device = device_of(model)
        self._never = torch.tensor(sorted(token for token in never if token < self.vocab), dtype=torch.long, device=self.device)
        self._waiting: deque[_Prompt] = deque()
        self._reading: _Reading | None = None
        self._batches: list[_Batch] = []
        self._lookups: dict[Row, Lookup] = {}
        self._joins, self.lookup = self._can_join(), lookup
        if lookup:
            self._must_go_back()

    # -- asking --------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, copies: int = 1) -> list[Row]:
        """Rows numbered 0, 1, 2 … that will answer this prompt; it is read once for all of them."""
        size = len(request.prompt) + request.most
        if size > self.length:
            raise NotSupported(
                f"a prompt of {len(request.prompt)} tokens and {request.most} more are {size}, and this model reads at most {self.length}"
            )
        if copies < 1 or copies > self.rows or copies * size > self.positions:
            raise NotSupported(
                f"{copies} answers of up to {size} tokens each; at once there may be 1 to {self.rows}, of {self.positions} tokens in all"
            )
        for token in (*request.prompt, *request.bias):
            if not 0 <= token < self.vocab:
                raise NotSupported(f"token {token}: this model knows 0 to {self.vocab - 1}")
        if len(self._waiting) >= self.most_waiting:
            raise Busy(f"{len(self._waiting)} prompts are waiting already; ask again later")
        rows = [Row(request, number, self.decode, self.ends) for number in range(copies)]
        self._waiting.append(_Prompt(request, rows))
        return rows

    def cancel(self, row: Row) -> None:
        """Nobody wants this answer any more; its place is free after the next step."""
        row.gone = True

    def clear(self) -> None:
        """Forget every row, as after an error of the model."""
        self._waiting.clear()
        self._batches.clear()
        self._lookups.clear()
        self._reading = None

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._reading or self._batches)

    @property
    def running(self) -> int:
        """Rows that have a place."""
        return len(self._placed())

    @property
    def waiting(self) -> int:
        """Prompts that have none yet."""
        return len(self._waiting)

    # -- going on ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self) -> list[Piece]:
        """Read on in new prompts, then a token for every row: what the answers have grown by."""
        found: list[Piece] = []
        self._drop()
        self._read(found)
        for batch in self._batches:
            self._advance(batch, found)
        self._batches = [batch for batch in self._batches if batch.rows]
        return found

    def _drop(self) -> None:
        """Rows that nobody wants leave."""
        self._waiting = deque(prompt for prompt in self._waiting if not prompt.gone)
        if self._reading is not None:
            self._reading = self._reading.without_gone(self.device)
        for batch in self._batches:
            self._keep(batch, [b for b, row in enumerate(batch.rows) if not row.gone])
        self._batches = [batch for batch in self._batches if batch.rows]

    def _keep(self, batch: _Batch, kept: list[int]) -> None:
        if len(kept) < len(batch.rows):
            for row in set(batch.rows) - {batch.rows[b] for b in kept}:
                self._lookups.pop(row, None)
            batch.rows = [batch.rows[b] for b in kept]
            if kept:
                batch.state = batch.state.reorder(torch.tensor(kept, device=self.device))

    # -- prompts -------------------------------------------------------------------------------------------------------

    def _placed(self) -> list[Row]:
        reading = [] if self._reading is None else [row for prompt in self._reading.prompts for row in prompt.rows]
        return reading + [row for batch in self._batches for row in batch.rows]

    def _admitted(self) -> list[_Prompt]:
        """Prompts from the head of the queue that find a place. None that is longer than the first may make it wait."""
        placed = self._placed()
        rows, longest, taken, tokens = len(placed), max((_size(row.request) for row in placed), default=0), list[_Prompt](), 0
        while self._waiting:
            prompt = self._waiting[0]
            rows, longest, tokens = rows + len(prompt.rows), max(longest, _size(prompt.request)), tokens + prompt.length
            if rows > self.rows or rows * longest > self.positions:
                break
            if taken and (not self._joins or (prompt.length > taken[0].length and tokens > self.chunk)):
                break
            taken.append(self._waiting.popleft())
        return taken

    def _read(self, found: list[Piece]) -> None:
        budget = self.chunk
        while budget > 0:
            if self._reading is None:
                prompts = self._admitted()
                if not prompts:
                    return
                self._reading = _Reading(prompts)
            x_BLD = self._read_piece(self._reading, budget)
            budget -= x_BLD.shape[:2].numel()
            if not self._reading.left:
                reading, self._reading = self._reading, None
                self._first(reading, x_BLD[:, -1], found)

    def _read_piece(self, reading: _Reading, budget: int) -> Tensor:
        """Features of the next tokens of all prompts that have begun."""
        prompts = reading.prompts
        while reading.begun < len(prompts) and prompts[reading.begun].length == reading.left:
            fresh = self.model.begin(1)
            try:
                reading.state = fresh if reading.state is None else reading.state.join(fresh)
            except StateNotSupported:  # as rows whose blocks are not complete: they are read after these
                self._waiting.extendleft(reversed(prompts[reading.begun :]))
                del prompts[reading.begun :]
                break
            reading.begun += 1
        assert reading.state is not None
        until = prompts[reading.begun].length if reading.begun < len(prompts) else 0
        count = min(reading.left - until, max(1, budget // reading.begun))
        at = [prompt.length - reading.left for prompt in prompts[: reading.begun]]
        ids_BL = self._tensor([list(prompts[b].request.prompt[n : n + count]) for b, n in enumerate(at)])
        x_BLD = self.model.features(ids_BL, state=reading.state)
        for b, n in enumerate(at):
            self._score(prompts[b], x_BLD[b], n)
        reading.left -= count
        return x_BLD

    def _score(self, prompt: _Prompt, x_LD: Tensor, at: int) -> None:
        """Log-probabilities of an echoed prompt's tokens from `at` + 1 on, as far as these features speak of them."""
        request = prompt.request
        follow = list(request.prompt[at + 1 : at + 1 + len(x_LD)])
        if request.echo and request.alternatives is not None and follow:
            logits_LN = full_precision(self.model.logits(x_LD[: len(follow)]))
            prompt.scores += _scores(logits_LN, _total(logits_LN), self._tensor(follow), request.alternatives)

    def _first(self, reading: _Reading, x_BD: Tensor, found: list[Piece]) -> None:
        """All prompts were read: each of their rows gets its first token, and joins those that run."""
        assert reading.state is not None
        rows = [(row, b) for b, prompt in enumerate(reading.prompts) for row in prompt.rows]
        for prompt in reading.prompts:
            found += [piece for piece in (row.read(prompt.scores) for row in prompt.rows) if piece.text or piece.said or piece.finish]
        rows = [(row, b) for row, b in rows if not (row.finish or row.gone)]
        if not rows:
            return
        logits_BN = self.model.logits(x_BD)
        found += self._take([row for row, _ in rows], logits_BN[[b for _, b in rows]])
        going = [(row, b) for row, b in rows if not row.finish]
        if not going:
            return
        if self.lookup:
            self._lookups.update({row: Lookup([*row.request.prompt, *row.ids]) for row, _ in going})
        origin = [b for _, b in going]
        state = reading.state
        if origin != list(range(state.batch)):
            state = state.reorder(torch.tensor(origin, device=self.device))
        self._start(_Batch([row for row, _ in going], state))

    def _start(self, new: _Batch) -> None:
        for batch in self._batches if self._joins else []:
            if batch.rows:
                try:
                    batch.state = batch.state.join(new.state)
                except StateNotSupported:
                    continue
                batch.rows += new.rows
                return
        self._batches.append(new)

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _advance(self, batch: _Batch, found: list[Piece]) -> None:
        if self.lookup and len(batch.rows) == 1:
            found += self._leap(batch.rows[0], batch.state)
        else:
            logits_BN = self.model.step(self._tensor([row.last for row in batch.rows]), batch.state).logits_BN
            found += self._take(batch.rows, logits_BN)
        self._keep(batch, [b for b, row in enumerate(batch.rows) if not row.finish])

    def _leap(self, row: Row, state: State) -> Iterator[Piece]:
        """A token, and those guessed after it that turn out to be the ones that would have been chosen."""
        guessed = self._lookups[row].guess(min(self.lookup, row.request.most - len(row.ids) - 1))
        x_LD = self.model.features(self._tensor([[row.last, *guessed]]), state=state)[0]
        logits_LN = self.model.logits(x_LD)
        for right in range(len(guessed) + 1):
            yield from self._take([row], logits_LN[right : right + 1])
            if row.finish or right == len(guessed) or row.last != guessed[right]:
                break
        if right < len(guessed):
            state.back(len(guessed) - right)

    def _take(self, rows: list[Row], logits_BN: Tensor) -> list[Piece]:
        """The next token of each row, by its own options."""
        logits_BN = full_precision(logits_BN)
        total_B, most = _total(logits_BN), max((row.request.alternatives or 0 for row in rows), default=0)
        chosen_B = self._choose(rows, logits_BN)
        pieces = []
        for row, token, score in zip(rows, chosen_B.tolist(), _scores(logits_BN, total_B, chosen_B, most), strict=True):
            if row in self._lookups:
                self._lookups[row].add(token)
            pieces.append(row.take(token, *score))
        return pieces

    def _choose(self, rows: list[Row], logits_BN: Tensor) -> Tensor:
        if len(self._never) or any(row.change for row in rows):
            logits_BN = logits_BN.index_fill(-1, self._never, NEVER)
        for b, row in enumerate(rows):
            if row.change:
                logits_BN[b, self._tensor(list(row.change))] += torch.tensor(list(row.change.values()), device=self.device).to(logits_BN)
        alike: dict[tuple[float, int, float, float], list[int]] = {}
        for b, row in enumerate(rows):
            s = row.request.sampling
            alike.setdefault((s.temperature, s.top_k, s.top_p, s.min_p) if s.temperature else (0.0, 0, 1.0, 0.0), []).append(b)
        chosen_B = torch.zeros(len(rows), dtype=torch.long, device=self.device)
        for (temperature, top_k, top_p, min_p), who in alike.items():
            these_BN = logits_BN if len(who) == len(rows) else logits_BN[who]
            if temperature == 0:
                chosen_B[who] = these_BN.argmax(-1)
            else:
                uniform_B = torch.tensor([rows[b].uniform() for b in who], dtype=torch.float64, device=self.device)
                options = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
                chosen_B[who] = draw(filtered(these_BN, options), uniform_B)
        return chosen_B

    def _can_join(self) -> bool:
        try:
            self.model.begin(1).join(self.model.begin(1))
        except StateNotSupported:
            return False
        return True

    def _must_go_back(self) -> None:
        state = self.model.begin(1)
        with torch.no_grad():
            self.model.features(self._tensor([[PAD, PAD]]), state=state)
        try:
            state.back(1)
        except StateNotSupported as cannot:
            raise NotSupported(f"lookup={self.lookup}: guessed tokens must be taken back where they are wrong, and {cannot}") from cannot

    def _tensor(self, ids: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)


def _size(request: Request) -> int:
    return len(request.prompt) + request.most


def _total(logits_BN: Tensor) -> Tensor:
    """The logarithm of what probabilities are divided by."""
    total_B = logits_BN.logsumexp(-1)
    if not bool(torch.isfinite(total_B).all()):
        raise NotSupported("the model's logits are not numbers; its weights are damaged, or its training diverged")
    return total_B


def _scores(logits_BN: Tensor, total_B: Tensor, token_B: Tensor, alternatives: int) -> list[tuple[float, Likeliest]]:
    """The log-probability of each row's token, and the likeliest tokens with theirs."""
    mine = (logits_BN.gather(-1, token_B[:, None])[:, 0] - total_B).tolist()
    if not alternatives:
        return [(log_prob, ()) for log_prob in mine]
    best = logits_BN.topk(min(alternatives, logits_BN.shape[-1]), -1)
    ids, values = best.indices.tolist(), (best.values - total_B[:, None]).tolist()
    return [(log_prob, tuple(zip(i, v, strict=True))) for log_prob, i, v in zip(mine, ids, values, strict=True)]
