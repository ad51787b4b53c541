"""Continuous batching: prompts join a running batch as they arrive, completions leave it as they end, and no row depends on the others.

    engine = Engine(model, tokenizer.decode)
    engine.submit(Request(prompt=ids, options=GenerationOptions(max_tokens=50, n=2)))
    while engine.busy:
        for chunk in engine.step():          # reads some tokens of new prompts, then generates one token per completion
            print(chunk.completion.index, chunk.text)

Prompts are read (prefilled) together, aligned at their ends: the longest begins, and a shorter one joins when as many tokens are left as it
has. Nothing is padded, and a step reads at most `prefill_chunk` tokens, so running completions never wait long. Rows whose states cannot be
joined run as batches of their own.

A text longer than the context slides: when it is full, the completion leaves the batch, its oldest tokens are dropped, and the newer half is
read again from position 0. So positions are those of training with any positional encoding, and a new token costs one token of reading on
average. Which tokens a prediction depends on is a function of the text's length alone (`context_start`).

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
from .options import EngineOptions
from .prefill import Prefill, Text, context_start
from .prompt_lookup import PromptLookup
from .requests import Chunk, Completion, Decode, Request
from .sampling import NEVER, choose_tokens, full_precision, log_total, penalize_repetition, token_scores


@dataclass
class _Batch:
    """Completions that are decoded together."""

    rows: list[Completion]
    state: State


class Engine:
    """Decodes many completions at once with one model. To be used from one thread; `regard.serve` puts it behind HTTP.

    Args:
        model: language model, in evaluation mode.
        decode: token ids → text.
        options: limits of the batch, the context and the queue.
        eos_ids: tokens that end a completion.
        banned_ids: tokens that are never generated.
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
        self._admitted: list[Text] = []  # to be read next
        self._prefill: Prefill | None = None
        self._batches: list[_Batch] = []
        self._lookups: dict[Completion, PromptLookup] = {}
        if options.prompt_lookup:
            self._check_rewind()

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> list[Completion]:
        """Queue a request; its completions, numbered 0, 1, 2, …, share one pass over the prompt."""
        count, limits, length = request.options.num_completions, self.options, len(request.prompt)
        size = min(length + request.max_tokens, self.context_length)
        if request.completions:
            raise NotSupported("this request was submitted before; make a new one with dataclasses.replace(request)")
        if length > self.context_length and request.options.echo and request.options.logprobs is not None:
            raise NotSupported(
                f"log-probabilities were asked for a prompt of {length} tokens, and this model reads at most {self.context_length} at once: shorten the prompt"
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
        request.completions.extend(Completion(request, index, self.decode, self.eos_ids) for index in range(count))
        self._queue.append(request)
        return request.completions

    def cancel(self, completion: Completion) -> None:
        """Stop generating this completion; its slot is free after the next step."""
        completion.cancelled = True

    def clear(self) -> None:
        """Drop all requests, for instance after an error of the model."""
        self._queue.clear()
        self._admitted.clear()
        self._batches.clear()
        self._lookups.clear()
        self._prefill = None

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._admitted or self._prefill or self._batches)

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
            self._slide(batch)
        self._batches = [batch for batch in self._batches if batch.rows]
        return chunks

    def _drop_cancelled(self) -> None:
        self._queue = deque(request for request in self._queue if not request.cancelled)
        self._admitted = [text for text in self._admitted if not text.cancelled]
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
        texts = [*self._admitted, *(self._prefill.texts if self._prefill else ())]
        reading = [row for text in texts for row in text.rows]
        return reading + [row for batch in self._batches for row in batch.rows]

    def _tokens_held(self, row: Completion) -> int:
        """The largest number of tokens its cache may have to hold."""
        return min(len(row.request.prompt) + row.max_tokens, self.context_length)

    def _admit(self) -> list[Text]:
        """Return what was admitted before, or else admit requests from the head of the queue that fit in. A longer prompt must not make the first wait."""
        if self._admitted:
            texts, self._admitted = self._admitted, []
            return texts
        running = self._running()
        rows, longest = len(running), max(map(self._tokens_held, running), default=0)
        admitted: list[Text] = []
        tokens = 0
        while self._queue:
            request = self._queue[0]
            rows += len(request.completions)
            longest = max(longest, self._tokens_held(request.completions[0]))
            text = Text(list(request.prompt[context_start(len(request.prompt), self.context_length) :]), request.completions)
            tokens += len(text.ids)
            if rows > self.options.max_batch or rows * longest > self.options.max_context_tokens:
                break
            if admitted and len(text.ids) > len(admitted[0].ids) and tokens > self.options.prefill_chunk:
                break
            admitted.append(text)
            self._queue.popleft()
        return admitted

    def _read_prompts(self, chunks: list[Chunk]) -> None:
        budget = self.options.prefill_chunk
        while budget > 0:
            if self._prefill is None:
                texts = self._admit()
                if not texts:
                    return
                self._prefill = Prefill(texts)
            x_BLD = self._read_chunk(self._prefill, budget)
            budget -= x_BLD.shape[:2].numel()
            if not self._prefill.left:
                prefill, self._prefill = self._prefill, None
                self._start_completions(prefill, x_BLD[:, -1], chunks)

    def _read_chunk(self, prefill: Prefill, budget: int) -> Tensor:
        """Features of the next tokens of all texts that have started."""
        texts = prefill.texts
        while prefill.started < len(texts) and len(texts[prefill.started].ids) == prefill.left:
            fresh = self.model.start(1)
            try:
                prefill.state = fresh if prefill.state is None else prefill.state.join(fresh)
            except StateNotSupported:  # a mechanism that compresses its past, say: the others are read after these
                self._admitted = texts[prefill.started :] + self._admitted
                del texts[prefill.started :]
                break
            prefill.started += 1
        assert prefill.state is not None
        until = len(texts[prefill.started].ids) if prefill.started < len(texts) else 0
        count = min(prefill.left - until, max(1, budget // prefill.started))
        starts = [len(text.ids) - prefill.left for text in texts[: prefill.started]]
        ids_BL = self._tensor([texts[b].ids[at : at + count] for b, at in enumerate(starts)])
        x_BLD = self.model.features(ids_BL, state=prefill.state)
        for b, at in enumerate(starts):
            if not texts[b].rows[0].ids:
                self._score_prompt(texts[b].rows[0].request, x_BLD[b], at)
        prefill.left -= count
        return x_BLD

    def _score_prompt(self, request: Request, x_LD: Tensor, at: int) -> None:
        """Log-probabilities of an echoed prompt's tokens from `at` + 1 on, as far as these features predict them."""
        targets = list(request.prompt[at + 1 : at + 1 + len(x_LD)])
        if request.options.echo and request.options.logprobs is not None and targets:
            logits_LN = full_precision(self.model.logits(x_LD[: len(targets)]))
            request.prompt_scores += token_scores(logits_LN, log_total(logits_LN), self._tensor(targets), request.options.logprobs)

    def _start_completions(self, prefill: Prefill, x_BD: Tensor, chunks: list[Chunk]) -> None:
        """All texts were read: each completion gets its next token and joins the running ones."""
        assert prefill.state is not None
        rows = [(row, b) for b, text in enumerate(prefill.texts) for row in text.rows]
        starts = [row.start() for row, _ in rows if not row.ids]
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
        batch = _Batch([row for row, _ in rows], state)
        self._slide(batch)
        if batch.rows:
            self._start_batch(batch)

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

    def _slide(self, batch: _Batch) -> None:
        """Completions whose context is full leave the batch, and are read again from where their next context begins."""
        kept = []
        for b, row in enumerate(batch.rows):
            start = context_start(row.length, self.context_length)
            if start == context_start(row.length - 1, self.context_length):
                kept.append(b)
            elif not row.cancelled:
                self._admitted.append(Text(row.tokens_from(start), [row]))
        self._keep(batch, kept)

    def _speculate(self, row: Completion, state: State) -> Iterator[Chunk]:
        """One token, and as many proposed ones after it as turn out to be those that would have been chosen."""
        available = context_start(row.length, self.context_length) + self.context_length - row.length
        proposed = self._lookups[row].propose(min(self.options.prompt_lookup, row.max_tokens - len(row.ids) - 1, available))
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
        total_B = log_total(logits_BN)
        alternatives = max((row.request.options.logprobs or 0 for row in rows), default=0)
        token_B = self._choose(rows, logits_BN)
        chunks = []
        for row, token, score in zip(rows, token_B.tolist(), token_scores(logits_BN, total_B, token_B, alternatives), strict=True):
            if row in self._lookups:
                self._lookups[row].add(token)
            chunks.append(row.add(token, *score))
        return chunks

    def _choose(self, rows: list[Completion], logits_BN: Tensor) -> Tensor:
        if len(self._banned) or any(row.logit_changes or row.seen or row.guide for row in rows):
            logits_BN = logits_BN.index_fill(-1, self._banned, NEVER)
        for b, row in enumerate(rows):
            if row.seen:
                logits_BN[b] = penalize_repetition(logits_BN[b], self._tensor(list(row.seen)), row.request.options.repetition_penalty)
            if row.logit_changes:
                changes = torch.tensor(list(row.logit_changes.values()), device=self.device).to(logits_BN)
                logits_BN[b, self._tensor(list(row.logit_changes))] += changes
            if row.guide is not None:
                allowed_N = torch.from_numpy(row.guide.allowed()).to(self.device)
                if not row.guide.stuck:  # else the completion ends here, whatever is chosen
                    logits_BN[b].masked_fill_(~allowed_N, NEVER)
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
            self.model.features(self._tensor([[PAD]]), state=state)
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
