"""The one thread that owns the model: it takes in what routes ask, steps the engine, and hands out what was written.

Routes live in an event loop and never touch the engine; they put a job into a box, and pieces of text come back as tickets are told.
How much may lie in the box is counted before it is put there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ..decode import Engine, Piece, Request, Row, Said
from ..decode.requests import Finish
from ..errors import Busy, NotSupported
from .errors import BROKEN, Refused, busy
from .metrics import Metrics

T = TypeVar("T")
log = logging.getLogger("regard.serve")


class News(NamedTuple):
    """What an answer, by the number of its prompt and its own, has grown by since last asked."""

    prompt: int
    choice: int
    text: str
    said: list[Said]
    finish: Finish | None


class Ticket:
    """The answers to one request, as they grow. Whoever is slow to ask gets larger pieces: no more is kept than the answers themselves."""

    def __init__(self, worker: Worker, prompts: int):
        self.prompts = prompts
        self.rows: list[list[Row]] = []
        self._worker, self._open = worker, 0
        self._place: dict[Row, tuple[int, int]] = {}
        self._news: dict[Row, News] = {}
        self._told = asyncio.Event()
        self._failed: Refused | None = None
        self._closed = False
        self._begun, self._first = time.perf_counter(), True

    def begin(self, rows: list[list[Row]]) -> None:
        self.rows = rows
        self._place = {row: (prompt, row.number) for prompt, some in enumerate(rows) for row in some}
        self._open = len(self._place)

    def tell(self, piece: Piece) -> None:
        """The engine has written on."""
        if self._closed or piece.row not in self._place:
            return
        if self._first:
            self._first = False
            self._worker.metrics.waited(time.perf_counter() - self._begun)
        before = self._news.get(piece.row)
        news = News(*self._place[piece.row], piece.text, piece.said, piece.finish)
        self._news[piece.row] = news if before is None else news._replace(text=before.text + news.text, said=before.said + news.said)
        self._told.set()

    def fail(self, why: Refused) -> None:
        self._failed = why
        self._told.set()

    def close(self) -> None:
        """Nobody reads on: what is not finished stops."""
        if not self._closed:
            self._closed = True
            self._worker.release(self)
            self._told.set()

    async def news(self) -> AsyncIterator[News]:
        """Pieces until all answers have ended, or the ticket was closed."""
        while self._open and not self._closed:
            await self._told.wait()
            self._told.clear()
            if self._failed is not None:
                raise self._failed
            arrived, self._news = list(self._news.values()), {}
            for one in arrived:
                self._open -= one.finish is not None
                yield one


class Worker:
    """The thread, and the counts of what it holds."""

    def __init__(self, engine: Engine, metrics: Metrics):
        self.engine, self.metrics = engine, metrics
        self.open = 0  # prompts and looks that were asked for and have not ended
        self._arriving = 0  # requests whose bodies are being read or cut into tokens
        self.most_open = engine.most_waiting + engine.rows
        self._box: deque[Callable[[], None]] = deque()
        self._awake = threading.Condition()
        self._stopping = False
        self._tickets: dict[Row, Ticket] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    # -- in the event loop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Leave after what is being written."""
        self._put(lambda: setattr(self, "_stopping", True))
        await asyncio.to_thread(self._thread.join, 60)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """While a request is read: of those, too, there are no more than may be answered or wait."""
        if self.open + self._arriving >= self.most_open:
            raise busy(f"{self.open} prompts are being answered or waiting, and {self._arriving} requests are arriving; ask again later")
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    async def submit(self, requests: Sequence[Request], copies: int) -> Ticket:
        """A ticket for the answers to all of these, or Refused."""
        ticket = Ticket(self, len(requests))
        self._reserve(len(requests))

        def begin() -> None:
            rows: list[list[Row]] = []
            try:
                for request in requests:
                    rows.append(self.engine.submit(request, copies))
            except Exception:  # all of them or none
                for row in (row for some in rows for row in some):
                    self.engine.cancel(row)
                raise
            self._tickets.update({row: ticket for some in rows for row in some})
            ticket.begin(rows)  # here, before the first step: what it writes is told before this returns to the loop

        try:
            await self._asked(begin)
        except BaseException as error:
            ticket.close()  # also if the client went while the engine was busy: what was begun stops
            if isinstance(error, Busy):
                raise busy(str(error)) from None
            if isinstance(error, NotSupported):
                raise Refused(str(error)) from None
            raise
        return ticket

    async def look(self, job: Callable[[], T]) -> T:
        """Something else that needs the model, done between two steps."""
        self._reserve(1)
        try:
            return await self._asked(job)
        finally:
            self.open -= 1

    def release(self, ticket: Ticket) -> None:
        self.open -= ticket.prompts
        self._put(lambda: self._forget(ticket))

    def _reserve(self, count: int) -> None:
        if self.open + count > self.most_open:
            raise busy(f"{self.open} prompts are being answered or waiting, and {count} more are too many; ask again later")
        self.open += count

    async def _asked(self, job: Callable[[], T]) -> T:
        assert self._loop is not None
        answer: asyncio.Future[T] = self._loop.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if answer.done():
                return  # whoever asked has gone
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def work() -> None:
            try:
                self._tell(tell, job(), None)
            except Exception as error:
                self._tell(tell, None, error)

        self._put(work)
        return await answer

    def _put(self, job: Callable[[], None]) -> None:
        with self._awake:
            self._box.append(job)
            self._awake.notify()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        engine = self.engine
        while not (self._stopping and not engine.busy):
            with self._awake:
                while not self._box and not engine.busy and not self._stopping:
                    self._awake.wait()
                jobs, self._box = self._box, deque()
            for job in jobs:
                job()
            if engine.busy:
                self._step()

    def _step(self) -> None:
        start = time.perf_counter()
        try:
            pieces = self.engine.step()
        except Exception:  # whatever a model raises: the server lives on
            log.exception("a step of the model failed; all answers in the making are lost")
            self.engine.clear()
            self.metrics.held(0, 0)
            lost, self._tickets = set(self._tickets.values()), {}
            for ticket in lost:
                self._tell(ticket.fail, BROKEN)
            return
        self.metrics.stepped(time.perf_counter() - start)
        self.metrics.held(self.engine.running, self.engine.waiting)
        told = [(self._tickets[piece.row], piece) for piece in pieces if piece.row in self._tickets]
        for _, piece in told:
            if piece.finish:
                del self._tickets[piece.row]
        if told:
            self._tell(_tell_all, told)

    def _forget(self, ticket: Ticket) -> None:
        for row in [row for row, one in self._tickets.items() if one is ticket]:
            self.engine.cancel(row)
            del self._tickets[row]

    def _tell(self, what: Callable[..., Any], *arguments: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)


def _tell_all(told: list[tuple[Ticket, Piece]]) -> None:
    for ticket, piece in told:
        ticket.tell(piece)
