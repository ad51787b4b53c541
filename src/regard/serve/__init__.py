"""A language model behind HTTP, as OpenAI's completions are; `regard serve RUN` starts it.

| route | what it does |
|---|---|
| `POST /v1/completions` | goes on with prompts, whole or by server-sent events |
| `POST /v1/attention` | goes on with one prompt, and tells where every layer looked |
| `GET /v1/models` | the one model there is |
| `GET /metrics` | counters in Prometheus' text format |
| `GET /health` | whether it is alive; needs no key |

Routes parse, bound, submit and stream; one thread owns the model, and steps all answers together (`decode.Engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import NotSupported

if TYPE_CHECKING:
    from ..data import Tokenizer
    from ..decode.weights import Weights
    from ..models import LanguageModel


def serve(
    loader: Callable[[], tuple[LanguageModel, Tokenizer]],
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    weights: Weights = "float32",
    **bounds: int,
) -> None:
    """Serve until SIGTERM or Ctrl-C, which let running answers end first. The bounds are those of `decode.Engine`."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise NotSupported(f"serving needs {missing.name}, which is not installed: pip install 'regard[serve]'") from missing
    from .listen import listen

    listen(loader, name, host, port, key, weights, bounds)
