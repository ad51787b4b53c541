"""The explorer of one run on this machine: `regard look RUN`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.types import ASGIApp

from .access import Access
from .explorer import Explorer
from .guards import Bodies, Timeouts
from .playground import Playground
from .server import bind, build_server
from .service import build_app
from .worker import Metrics

T = TypeVar("T")


class LocalExplorer:
    """A model to play with, and the thread that owns it."""

    def __init__(self, playground: Playground, name: str):
        self.timeouts = Timeouts()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.explorer = Explorer(playground, name, self._call, Bodies(self.timeouts.body), self.timeouts.request)

    def app(self, key: str | None = None, *, cors: Sequence[str] = (), access_log: bool = False) -> ASGIApp:
        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            self._thread.shutdown(cancel_futures=True)

        return build_app(self.explorer.routes(), lifespan, Access(key, cors, access_log), Metrics())

    async def _call(self, task: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, task)


def run_explorer(playground: Playground, name: str, port: int, browser: bool) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    bound = bind("127.0.0.1", port)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
    print(f"{name} at {url}  (Ctrl-C stops it)", flush=True)
    if browser:
        webbrowser.open(url)
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        build_server(LocalExplorer(playground, name), None).run([bound])
    print("stopped", flush=True)
