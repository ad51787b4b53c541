"""The thread that owns the model: it takes in requests, steps the engine, and hands out what was generated.

Routes run in an event loop and never touch the engine: they put functions into an inbox, and chunks come back to their jobs. How many
prompts may be open is checked before anything is put there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

from ..decode import Chunk, Completion, Engine, EngineOptions, Request
from ..errors import NotSupported, QueueFull
from .responses import MODEL_FAILED, ApiError, queue_full

T = TypeVar("T")
log = logging.getLogger("regard.serve")


class Metrics:
    """Counters, gauges and timings of one server, in a registry of its own; several threads may update them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        to: Any = {"namespace": "regard", "registry": self.registry}
        self.requests = Counter("requests", "HTTP requests, by route and status", ("route", "status"), **to)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens read", **to)
        self.completion_tokens = Counter("completion_tokens", "Tokens generated", **to)
        self.step_seconds = Summary("step_seconds", "Duration of the engine's steps", **to)
        self.time_to_first_token = Histogram("time_to_first_token_seconds", "Time from a request to its first text", **to)
        self.completions_running = Gauge("completions_running", "Completions in progress", **to)
        self.prompts_queued = Gauge("prompts_queued", "Prompts waiting in the queue", **to)
        self.prompts_open = Gauge("prompts_open", "Prompts accepted and not yet answered", **to)

    def add_usage(self, usage: dict[str, int]) -> None:
        self.prompt_tokens.inc(usage["prompt_tokens"])
        self.completion_tokens.inc(usage["completion_tokens"])

    def set_load(self, running: int, queued: int) -> None:
        self.completions_running.set(running)
        self.prompts_queued.set(queued)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Job:
    """The completions of one HTTP request as they grow. A slow reader gets larger chunks: no more is kept than the completions themselves."""

    def __init__(self, worker: Worker, requests: Sequence[Request]):
        self.requests = requests
        self._worker, self._unfinished = worker, sum(request.options.num_completions for request in requests)
        self._chunks: dict[Completion, Chunk] = {}  # not read yet
        self._news = asyncio.Event()
        self._error: ApiError | None = None
        self._closed = False
        self._deadline: asyncio.TimerHandle | None = None
        self._started, self._first = time.perf_counter(), True

    @property
    def finished(self) -> bool:
        return all(completion.finish_reason for request in self.requests for completion in request.completions)

    def add(self, chunk: Chunk) -> None:
        """The engine has generated more."""
        if self._closed:
            return
        if self._first:
            self._first = False
            self._worker.metrics.time_to_first_token.observe(time.perf_counter() - self._started)
        before = self._chunks.get(chunk.completion)
        if before is not None:
            chunk = chunk._replace(text=before.text + chunk.text, logprobs=before.logprobs + chunk.logprobs)
        self._chunks[chunk.completion] = chunk
        self._news.set()

    def fail(self, error: ApiError) -> None:
        self._error = error
        self._news.set()

    def fail_after(self, seconds: float) -> None:
        error = ApiError(f"the request took longer than {seconds:g} seconds; lower max_tokens or n", status=504, code="timeout")
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.fail, error)

    def close(self) -> None:
        """Nobody reads any further: unfinished completions are cancelled."""
        if not self._closed:
            self._closed = True
            if self._deadline is not None:
                self._deadline.cancel()
            self._worker.release(self)
            self._news.set()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Chunks until all completions have ended, or the job was closed."""
        while self._unfinished and not self._closed:
            await self._news.wait()
            self._news.clear()
            if self._error is not None:
                raise self._error
            arrived, self._chunks = list(self._chunks.values()), {}
            for chunk in arrived:
                self._unfinished -= chunk.finish_reason is not None
                yield chunk


class NoEngine:
    """Stand-in for an engine, for models that generate no text: nothing is ever running."""

    busy, running, queued = False, 0, 0

    def __init__(self, options: EngineOptions):
        self.options = options

    def submit(self, request: Request) -> list[Completion]:
        raise NotSupported("this model generates no text")

    def cancel(self, completion: Completion) -> None: ...

    def clear(self) -> None: ...

    def step(self) -> list[Chunk]:
        return []


class Worker:
    """The thread, and the number of prompts it has accepted."""

    def __init__(self, engine: Engine | NoEngine, metrics: Metrics):
        self.engine, self.metrics = engine, metrics
        self.open = 0  # prompts and other tasks accepted and not finished
        self.preparing = 0  # requests that are being tokenized
        self.max_open = engine.options.max_queue + engine.options.max_batch
        self._inbox: deque[Callable[[], None]] = deque()
        self._awake = threading.Condition()
        self._stopping = False
        self._jobs: dict[Completion, Job] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- in the event loop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Finish what is running, then end."""
        self._put(lambda: setattr(self, "_stopping", True))
        await asyncio.to_thread(self._thread.join, 60)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """True if nothing is open, running or queued."""
        return not (self.open or self.engine.busy or self._jobs)

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """While a request is tokenized: these count towards the maximum too. A body that is still arriving is not work, and does not count."""
        if self.open + self.preparing >= self.max_open:
            raise queue_full(f"the queue is full: {self.open} prompts are open and {self.preparing} are being read; try again later")
        self.preparing += 1
        try:
            yield
        finally:
            self.preparing -= 1

    async def submit(self, requests: Sequence[Request], seconds: float) -> Job:
        """A job for the completions of all of these requests, which fails after `seconds`; or an ApiError."""
        job = Job(self, requests)
        job.fail_after(seconds)
        self._reserve(len(requests))

        def submit() -> None:
            try:
                for request in requests:
                    self.engine.submit(request)
            except Exception:  # all of them or none
                for completion in (completion for request in requests for completion in request.completions):
                    self.engine.cancel(completion)
                raise
            self._jobs.update({completion: job for request in requests for completion in request.completions})

        try:
            await self._call(submit)
        except BaseException as error:
            job.close()  # also if the client disconnected in the meantime: what was started is cancelled
            if isinstance(error, QueueFull):
                raise queue_full(str(error)) from None
            if isinstance(error, NotSupported):
                raise ApiError(str(error)) from None
            raise
        return job

    async def call(self, task: Callable[[], T]) -> T:
        """The result of a function that needs the model, called between two steps."""
        self._reserve(1)
        try:
            return await self._call(task)
        finally:
            self.open -= 1

    def release(self, job: Job) -> None:
        self.open -= len(job.requests)
        self._put(lambda: self._cancel(job))

    def _reserve(self, count: int) -> None:
        if self.open + count > self.max_open:
            raise queue_full(
                f"the queue is full: {self.open} prompts are open, and {count} more would exceed {self.max_open}; try again later"
            )
        self.open += count

    async def _call(self, task: Callable[[], T]) -> T:
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()

        def resolve(result: Any, error: BaseException | None) -> None:
            if future.done():
                return  # the client has disconnected
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def run() -> None:
            try:
                self._to_loop(resolve, task(), None)
            except Exception as error:
                self._to_loop(resolve, None, error)

        self._put(run)
        return await future

    def _put(self, task: Callable[[], None]) -> None:
        with self._awake:
            self._inbox.append(task)
            self._awake.notify()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        engine = self.engine
        while not (self._stopping and not engine.busy):
            with self._awake:
                while not self._inbox and not engine.busy and not self._stopping:
                    self._awake.wait()
                tasks, self._inbox = self._inbox, deque()
            for task in tasks:
                task()
            if engine.busy:
                self._step()

    def _step(self) -> None:
        start = time.perf_counter()
        try:
            chunks = self.engine.step()
        except Exception:  # whatever a model raises, the server goes on
            log.exception("a step of the model failed; all completions in progress are lost")
            self.engine.clear()
            self.metrics.set_load(0, 0)
            lost, self._jobs = set(self._jobs.values()), {}
            for job in lost:
                self._to_loop(job.fail, MODEL_FAILED)
            return
        self.metrics.step_seconds.observe(time.perf_counter() - start)
        self.metrics.set_load(self.engine.running, self.engine.queued)
        deliveries = [(self._jobs[chunk.completion], chunk) for chunk in chunks if chunk.completion in self._jobs]
        for _, chunk in deliveries:
            if chunk.finish_reason:
                del self._jobs[chunk.completion]
        if deliveries:
            self._to_loop(_deliver, deliveries)

    def _cancel(self, job: Job) -> None:
        for completion in [completion for completion, owner in self._jobs.items() if owner is job]:
            self.engine.cancel(completion)
            del self._jobs[completion]

    def _to_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _deliver(deliveries: list[tuple[Job, Chunk]]) -> None:
    for job, chunk in deliveries:
        job.add(chunk)
