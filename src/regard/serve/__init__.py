"""A language model behind an OpenAI-compatible HTTP API; `regard serve RUN` starts it.

| route | what it does |
|---|---|
| `POST /v1/completions` | completes prompts, in one response or as server-sent events; of a translator, translates them |
| `POST /v1/chat/completions` | continues a conversation, by the tokenizer's chat template |
| `POST /v1/embeddings` | texts as vectors; of encoders, too |
| `POST /v1/attention` | completes one prompt, and returns the attention weights of its layers |
| `POST /tokenize`, `/detokenize` | text to token ids and back |
| `GET /docs`, `/openapi.json` | all routes with their fields, as a page and in OpenAPI's form |
| `GET /v1/models` | the model served |
| `GET /metrics` | metrics in Prometheus' text format |
| `GET /` | the explorer, as a playground of the model; `serve.explorer` has its routes |
| `GET /health` | whether the server is alive; needs no API key |

Routes validate, submit and stream; one thread owns the model and decodes all completions together (`decode.Engine`).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._extras import extra
from ..decode import EngineOptions, PromptEncoder, build_engine, quantize
from ..decode.options import ParameterDtype
from ..errors import NotSupported
from ..models import LanguageModel, Translator
from ..runs import Run
from ..tasks import task_of
from ..tasks.embedding import embedder_of

if TYPE_CHECKING:
    from .service import ServedModel


def serve(
    load: Callable[[], Run[Any]],
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    dtype: ParameterDtype = "float32",
    engine_options: EngineOptions | None = None,
    cors: Sequence[str] = (),
    access_log: bool = False,
    request_seconds: float = 600.0,
) -> None:
    """Serve the model of a run until SIGTERM or Ctrl-C; running completions are finished first.

    Args:
        load: function that loads the run; it is called after the other arguments have been checked.
        name: name of the model in responses.
        host: address to listen on.
        port: port to listen on.
        key: API key that clients must send; None: accept requests from this machine only.
        dtype: number format of the parameters.
        engine_options: limits of the batch, the context and the queue.
        cors: origins of web pages that may use the server.
        access_log: print a line per request to standard error.
        request_seconds: maximum duration of a request.
    """
    _check_installed()
    from .access import check_origins
    from .app import Service
    from .guards import Timeouts
    from .server import check_address
    from .service import ModelService
    from .translator import TranslatorService

    check_address(host, key)
    check_origins(cors, key)
    if not request_seconds > 0:
        raise NotSupported(f"a time limit of {request_seconds} seconds per request; expected more than 0")
    run, timeouts = load(), Timeouts(request=request_seconds)
    service: ServedModel
    if isinstance(run.model, Translator):
        if dtype != "float32":
            raise NotSupported(f"dtype {dtype} of a translator; expected float32")
        run.model.eval()
        service = TranslatorService(run, name, engine_options, timeouts)
        return _listen(service, host, port, key, cors, access_log)
    embedder = embedder_of(run)
    model, tokenizer = embedder.model, embedder.tokenizer
    if isinstance(model, LanguageModel):
        encoder = PromptEncoder(tokenizer, model.config.vocab_size)
        engine = build_engine(quantize(model, dtype), encoder, engine_options or EngineOptions())
        service = Service(engine, encoder, name, timeouts, embedder.pooling, task_of(run).own_input)
    elif dtype != "float32":
        raise NotSupported(f"dtype {dtype} of an encoder; expected float32")
    else:
        model.eval()
        service = ModelService(embedder, name, timeouts=timeouts)
    _listen(service, host, port, key, cors, access_log)


def _listen(service: ServedModel, host: str, port: int, key: str | None, cors: Sequence[str], access_log: bool) -> None:
    from .server import bind, build_server

    bound = bind(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    access = "with an API key" if key else "no API key, this machine only"
    print(f"{service.name} at {url}/v1, page at {url}/; context of {service.limits.context_length} tokens, {access}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn has handled it by then; the process exits with 0
    with contextlib.suppress(KeyboardInterrupt):
        build_server(service, key, cors=cors, access_log=access_log).run([bound])
    print("stopped", flush=True)


def explore(run: Run[Any], name: str, *, port: int = 0, browser: bool = True) -> None:
    """Serve the explorer of a run of any task on this machine, and open it in the browser, until Ctrl-C.

    Args:
        run: run of any task.
        name: name of the run on the page.
        port: port to listen on; 0: any free one.
        browser: open the page in the browser.
    """
    _check_installed()
    from .local import run_explorer
    from .playground import Playground

    run_explorer(Playground.of_run(run), name, port, browser)


def _check_installed() -> None:
    with extra("serve"):
        import jinja2
        import prometheus_client
        import starlette
        import uvicorn
