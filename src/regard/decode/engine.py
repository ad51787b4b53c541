"""Continuous batching: prompts join a running batch as they arrive, completions leave it as they end, and no row depends on the others.

    engine = Engine(model, tokenizer.decode)
    engine.submit(Request(prompt=ids, options=GenerationOptions(max_tokens=50, n=2)))
    while engine.busy:
        for chunk in engine.step():          # reads some tokens of new prompts, then generates one token per completion
            print(chunk.completion.index, chunk.text)

Prompts are read (prefilled) together, aligned at their ends: the longest begins, and a shorter one joins when as many tokens are left as it
has. Nothing is padded, and a step reads at most `prefill_chunk` tokens, so running completions never wait long. Rows whose states cannot be
joined run as batches of their own.

Paper: Yu et al. 2022 ("Orca", continuous batching), OSDI; Agrawal et al. 2023 (chunked prefills), arXiv:2308.16369.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..attention import State
from ..data import BOS, EOS, PAD
from ..errors import NotSupported, QueueFull, StateNotSupported
from ..models import LanguageModel, device_of
from .prompt_lookup import PromptLookup
from .requests import Chunk, Completion, Decode, Request
from .sampling import NEVER, choose_tokens, full_precision


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Limits of the engine, and how it decodes. None of them changes a completion."""

    max_batch: int = 16
    """Maximum number of completions generated at once, including those whose prompts are being read."""
    max_context_tokens: int = 16_384
    """Maximum number of tokens held in caches: completions times the longest of them, prompt included."""
    max_queue: int = 64
    """Maximum number of prompts waiting for a free slot; further ones are refused."""
    prefill_chunk: int = 128
    """Maximum number of prompt tokens read per step."""
    prompt_lookup: int = 0
    """Tokens proposed per step by prompt-lookup decoding, while a single completion is running; 0 turns it off."""

    def __post_init__(self) -> None:
        if min(self.max_batch, self.max_context_tokens, self.max_queue, self.prefill_chunk) < 1 or self.prompt_lookup < 0:
            raise NotSupported(f"{self}: expected limits of at least 1, and prompt_lookup of at least 0")


@dataclass
class _Batch:
    """Completions that are decoded together."""

    rows: list[Completion]
    state: State


class _Prefill:
    """Prompts that are being read, the longest first."""

    def __init__(self, requests: list[Request]):
        self.requests = sorted(requests, key=lambda request: -len(request.prompt))
        self.left = len(self.requests[0].prompt)  # tokens still to read, of every prompt that has started; they end together
        self.started = 0
        self.state: State | None = None

    def without_cancelled(self, device: torch.device) -> _Prefill | None:
        """The requests still wanted. If none of them has started, they need not wait for a longer one that left."""
        kept = [b for b, request in enumerate(self.requests) if not request.cancelled]
        if len(kept) == len(self.requests):
            return self
        requests, started = [self.requests[b] for b in kept], [b for b in kept if b < self.started]
        if not started:
            return _Prefill(requests) if requests else None
        assert self.state is not None
        if len(started) < self.started:
            self.state, self.started = self.state.reorder(torch.tensor(started, device=device)), len(started)
        self.requests = requests
        return self


class Engine:
    """Decodes many completions at once with one model. To be used from one thread; `regard.serve` puts it behind HTTP.

    decode      token ids → text
    eos_ids     tokens that end a completion
    banned_ids  tokens that are never generated
    """

    def __init__(
        self,
        model: LanguageModel,
        decode: Decode,
        options: EngineOptions = EngineOptions(),  # noqa: B008  frozen
        *,
        eos_ids: Collection[int] = (EOS,),
        banned_ids: Collection[int] = (PAD, BOS),
    ):
        if model.training:
            raise NotSupported(
                f"this {type(model).__name__} is training, and dropout would change its completions; call model.eval() first"
            )
        self.model, self.decode, self.options = model, decode, options
        self.vocab_size = model.config.vocab_size
        self.context_length = model.max_length
        self.eos_ids = frozenset(eos_ids)
        self.device = device_of(model)
        self._banned = torch.tensor(sorted(token for token in banned_ids if token < self.vocab_size), dtype=torch.long, device=self.device)
        self._queue: deque[Request] = deque()
        self._prefill: _Prefill | None = None
        self._batches: list[_Batch] = []
        self._lookups: dict[Completion, PromptLookup] = {}
        if options.prompt_lookup:
            self._check_rewind()

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> list[Completion]:
        """Queue a request; its completions, numbered 0, 1, 2, …, share one pass over the prompt."""
        count, limits = request.options.num_completions, self.options
        max_tokens = request.max_tokens(min(self.context_length, limits.max_context_tokens // count))
        size = len(request.prompt) + max_tokens
        if request.completions:
            raise NotSupported("this request was submitted before; make a new one with dataclasses.replace(request)")
        if size > self.context_length:
            raise NotSupported(
                f"a prompt of {len(request.prompt)} tokens and max_tokens={max_tokens} make {size} tokens; this model reads at most "
                f"{self.context_length}: shorten the prompt or lower max_tokens"
            )
        if count > limits.max_batch or count * size > limits.max_context_tokens:
            raise NotSupported(
                f"{count} completions of up to {size} tokens each; expected at most max_batch={limits.max_batch} completions and "
                f"max_context_tokens={limits.max_context_tokens} tokens in all"
            )
        for token in (*request.prompt, *request.options.logit_bias):
            if not 0 <= token < self.vocab_size:
                raise NotSupported(f"token {token}: this model's vocabulary is 0 to {self.vocab_size - 1}")
        if len(self._queue) >= limits.max_queue:
            raise QueueFull(f"the queue is full: {len(self._queue)} prompts are waiting; try again later")
        request.completions.extend(Completion(request, index, max_tokens, self.decode, self.eos_ids) for index in range(count))
        self._queue.append(request)
        return request.completions

    def cancel(self, completion: Completion) -> None:
        """Stop generating this completion; its slot is free after the next step."""
        completion.cancelled = True

    def clear(self) -> None:
        """Drop all requests, for instance after an error of the model."""
        self._queue.clear()
        self._batches.clear()
        self._lookups.clear()
        self._prefill = None

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._prefill or self._batches)

    @property
    def running(self) -> int:
        """Completions in progress, including those whose prompts are being read."""
        return len(self._running())

    @property
    def queued(self) -> int:
        """Prompts waiting for a free slot."""
        return len(self._queue)

    @property
    def cached_tokens(self) -> int:
        """The length of the longest cache in use."""
        return max((batch.state.length for batch in self._batches), default=0)

    # -- one step ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self) -> list[Chunk]:
        """Read further into new prompts, then generate one token per completion; returns what completions have grown by."""
        chunks: list[Chunk] = []
        self._drop_cancelled()
        self._read_prompts(chunks)
        for batch in self._batches:
            self._advance(batch, chunks)
        self._batches = [batch for batch in self._batches if batch.rows]
        return chunks

    def _drop_cancelled(self) -> None:
        self._queue = deque(request for request in self._queue if not request.cancelled)
        if self._prefill is not None:
            self._prefill = self._prefill.without_cancelled(self.device)
        for batch in self._batches:
            self._keep(batch, [b for b, row in enumerate(batch.rows) if not row.cancelled])
        self._batches = [batch for batch in self._batches if batch.rows]

    def _keep(self, batch: _Batch, kept: list[int]) -> None:
        if len(kept) < len(batch.rows):
            for row in set(batch.rows) - {batch.rows[b] for b in kept}:
                self._lookups.pop(row, None)
            batch.rows = [batch.rows[b] for b in kept]
            if kept:
                batch.state = batch.state.reorder(torch.tensor(kept, device=self.device))

    # -- prompts -------------------------------------------------------------------------------------------------------

    def _running(self) -> list[Completion]:
        reading = [] if self._prefill is None else [row for request in self._prefill.requests for row in request.completions]
        return reading + [row for batch in self._batches for row in batch.rows]

    def _admit(self) -> list[Request]:
        """Requests from the head of the queue that fit in. A longer prompt must not make the first one wait."""
        running = self._running()
        rows, longest = len(running), max((row.tokens_held for row in running), default=0)
        admitted: list[Request] = []
        tokens = 0
        while self._queue:
            request = self._queue[0]
            rows += len(request.completions)
            longest = max(longest, request.completions[0].tokens_held)
            tokens += len(request.prompt)
            if rows > self.options.max_batch or rows * longest > self.options.max_context_tokens:
                break
            if admitted and len(request.prompt) > len(admitted[0].prompt) and tokens > self.options.prefill_chunk:
                break
            admitted.append(self._queue.popleft())
        return admitted

    def _read_prompts(self, chunks: list[Chunk]) -> None:
        budget = self.options.prefill_chunk
        while budget > 0:
            if self._prefill is None:
                requests = self._admit()
                if not requests:
                    return
                self._prefill = _Prefill(requests)
            x_BLD = self._read_chunk(self._prefill, budget)
            budget -= x_BLD.shape[:2].numel()
            if not self._prefill.left:
                prefill, self._prefill = self._prefill, None
                self._start_completions(prefill, x_BLD[:, -1], chunks)

    def _read_chunk(self, prefill: _Prefill, budget: int) -> Tensor:
        """Features of the next tokens of all prompts that have started."""
        requests = prefill.requests
        while prefill.started < len(requests) and len(requests[prefill.started].prompt) == prefill.left:
            fresh = self.model.start(1)
            try:
                prefill.state = fresh if prefill.state is None else prefill.state.join(fresh)
            except StateNotSupported:  # a mechanism that compresses its past, say: the others are read after these
                self._queue.extendleft(reversed(requests[prefill.started :]))
                del requests[prefill.started :]
                break
            prefill.started += 1
        assert prefill.state is not None
        until = len(requests[prefill.started].prompt) if prefill.started < len(requests) else 0
        count = min(prefill.left - until, max(1, budget // prefill.started))
        starts = [len(request.prompt) - prefill.left for request in requests[: prefill.started]]
        ids_BL = self._tensor([list(requests[b].prompt[at : at + count]) for b, at in enumerate(starts)])
        x_BLD = self.model.features(ids_BL, state=prefill.state)
        for b, at in enumerate(starts):
            self._score_prompt(requests[b], x_BLD[b], at)
        prefill.left -= count
        return x_BLD

    def _score_prompt(self, request: Request, x_LD: Tensor, at: int) -> None:
        """Log-probabilities of an echoed prompt's tokens from `at` + 1 on, as far as these features predict them."""
        targets = list(request.prompt[at + 1 : at + 1 + len(x_LD)])
        if request.options.echo and request.options.logprobs is not None and targets:
            logits_LN = full_precision(self.model.logits(x_LD[: len(targets)]))
            request.prompt_scores += _token_scores(logits_LN, _log_total(logits_LN), self._tensor(targets), request.options.logprobs)

    def _start_completions(self, prefill: _Prefill, x_BD: Tensor, chunks: list[Chunk]) -> None:
        """All prompts were read: each completion gets its first token and joins the running ones."""
        assert prefill.state is not None
        rows = [(row, b) for b, request in enumerate(prefill.requests) for row in request.completions]
        starts = [row.start() for row, _ in rows]
        chunks += [chunk for chunk in starts if chunk.text or chunk.logprobs or chunk.finish_reason]
        rows = [(row, b) for row, b in rows if not (row.finish_reason or row.cancelled)]
        if not rows:
            return
        logits_BN = self.model.logits(x_BD)
        chunks += self._add_tokens([row for row, _ in rows], logits_BN[[b for _, b in rows]])
        rows = [(row, b) for row, b in rows if not row.finish_reason]
        if not rows:
            return
        if self.options.prompt_lookup:
            self._lookups.update({row: PromptLookup([*row.request.prompt, *row.ids]) for row, _ in rows})
        origin, state = [b for _, b in rows], prefill.state
        if origin != list(range(state.batch)):
            state = state.reorder(torch.tensor(origin, device=self.device))
        self._start_batch(_Batch([row for row, _ in rows], state))

    def _start_batch(self, new: _Batch) -> None:
        for batch in self._batches:
            if batch.rows:
                try:
                    batch.state = batch.state.join(new.state)
                except StateNotSupported:
                    continue
                batch.rows += new.rows
                return
        self._batches.append(new)

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _advance(self, batch: _Batch, chunks: list[Chunk]) -> None:
        if self.options.prompt_lookup and len(batch.rows) == 1:
            chunks += self._speculate(batch.rows[0], batch.state)
        else:
            logits_BN = self.model.step(self._tensor([row.last_token for row in batch.rows]), batch.state).logits_BN
            chunks += self._add_tokens(batch.rows, logits_BN)
        self._keep(batch, [b for b, row in enumerate(batch.rows) if not row.finish_reason])

    def _speculate(self, row: Completion, state: State) -> Iterator[Chunk]:
        """One token, and as many proposed ones after it as turn out to be those that would have been chosen."""
        proposed = self._lookups[row].propose(min(self.options.prompt_lookup, row.max_tokens - len(row.ids) - 1))
        x_LD = self.model.features(self._tensor([[row.last_token, *proposed]]), state=state)[0]
        logits_LN = self.model.logits(x_LD)
        for accepted in range(len(proposed) + 1):
            yield from self._add_tokens([row], logits_LN[accepted : accepted + 1])
            if row.finish_reason or accepted == len(proposed) or row.last_token != proposed[accepted]:
                break
        if accepted < len(proposed):
            state.back(len(proposed) - accepted)

    def _add_tokens(self, rows: list[Completion], logits_BN: Tensor) -> list[Chunk]:
        """The next token of each completion, by its own options."""
        logits_BN = full_precision(logits_BN)
        total_B = _log_total(logits_BN)
        alternatives = max((row.request.options.logprobs or 0 for row in rows), default=0)
        token_B = self._choose(rows, logits_BN)
        chunks = []
        for row, token, score in zip(rows, token_B.tolist(), _token_scores(logits_BN, total_B, token_B, alternatives), strict=True):
            if row in self._lookups:
                self._lookups[row].add(token)
            chunks.append(row.add(token, *score))
        return chunks

    def _choose(self, rows: list[Completion], logits_BN: Tensor) -> Tensor:
        if len(self._banned) or any(row.logit_changes for row in rows):
            logits_BN = logits_BN.index_fill(-1, self._banned, NEVER)
        for b, row in enumerate(rows):
            if row.logit_changes:
                changes = torch.tensor(list(row.logit_changes.values()), device=self.device).to(logits_BN)
                logits_BN[b, self._tensor(list(row.logit_changes))] += changes
        groups: dict[tuple[float, int, float, float], list[int]] = {}  # rows that sample alike
        for b, row in enumerate(rows):
            o = row.request.options
            groups.setdefault((o.temperature, o.top_k, o.top_p, o.min_p) if o.temperature else (0.0, 0, 1.0, 0.0), []).append(b)
        token_B = torch.zeros(len(rows), dtype=torch.long, device=self.device)
        for members in groups.values():
            options = rows[members[0]].request.options
            these_BN = logits_BN if len(members) == len(rows) else logits_BN[members]
            token_B[members] = choose_tokens(these_BN, options, partial(_uniforms, [rows[b] for b in members]))
        return token_B

    def _check_rewind(self) -> None:
        """Prompt lookup needs states that can be rewound: caches can, recurrent states cannot."""
        state = self.model.start(1)
        with torch.no_grad():
            self.model.features(self._tensor([[PAD, PAD]]), state=state)
        try:
            state.back(1)
        except StateNotSupported as cannot:
            raise NotSupported(
                f"prompt_lookup={self.options.prompt_lookup}: rejected tokens must be taken back, and {cannot}; use prompt_lookup=0"
            ) from cannot

    def _tensor(self, ids: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)


def _uniforms(rows: list[Completion]) -> Tensor:
    return torch.tensor([row.next_uniform() for row in rows], dtype=torch.float64)


def _log_total(logits_BN: Tensor) -> Tensor:
    """log Σ exp of the logits of each row, the normaliser of log-probabilities."""
    total_B = logits_BN.logsumexp(-1)
    if not bool(torch.isfinite(total_B).all()):
        raise NotSupported("the model's logits are not finite; its parameters are damaged, or its training diverged")
    return total_B


def _token_scores(
    logits_BN: Tensor, total_B: Tensor, token_B: Tensor, alternatives: int
) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
    """The log-probability of each row's token, and the most likely tokens with theirs."""
    log_probs = (logits_BN.gather(-1, token_B[:, None])[:, 0] - total_B).tolist()
    if not alternatives:
        return [(log_prob, ()) for log_prob in log_probs]
    best = logits_BN.topk(min(alternatives, logits_BN.shape[-1]), -1)
    ids, values = best.indices.tolist(), (best.values - total_B[:, None]).tolist()
    return [(log_prob, tuple(zip(i, v, strict=True))) for log_prob, i, v in zip(log_probs, ids, values, strict=True)]
