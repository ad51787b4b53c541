"""A server with a tiny model, for the tests and for abuse.py."""

from __future__ import annotations

import http.client
import json
import threading
import time

import torch

from regard.data import Tokenizer
from regard.decode import EngineOptions, PromptEncoder, build_engine
from regard.models import LanguageModel, build
from regard.serve.app import Service
from regard.serve.guards import Timeouts
from regard.serve.server import bind, build_server
from regard.serve.service import ModelService
from regard.tasks import Embedder

KEY = "a-key-for-tests"
NAME = "tiny"


def tiny(length: int = 128, vocab_size: int = 260):
    torch.manual_seed(0)
    model = build("gpt2", {"vocab_size": vocab_size, "context_length": length, "width": 32, "heads": 2, "depth": 2}).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 3
    return model, Tokenizer.train([], "byte", 260)


class Wrapped(LanguageModel):
    """A model around another, whose steps take `seconds` longer: long enough for clients to disconnect in between."""

    def __init__(self, model, seconds: float = 0):
        super().__init__()
        self.config, self.model, self.seconds, self.steps = model.config, model, seconds, 0
        self.eval()

    def features(self, ids_BL, document_BL=None, state=None):
        time.sleep(self.seconds)
        self.steps += 1
        return self.model.features(ids_BL, document_BL, state)

    def head(self):
        return self.model.head()

    def start(self, batch):
        return self.model.start(batch)


class Served:
    """A server in a thread of this process, as a context manager."""

    def __init__(
        self,
        key: str | None,
        model=None,
        timeouts: Timeouts | None = None,
        slow: float = 0,
        cors=(),
        access_log=False,
        capacity=None,
        service=None,
        **options: int,
    ):
        model, self.tokenizer = model or tiny()
        timeouts = timeouts or Timeouts()
        self.model = Wrapped(model, slow) if slow else model
        if service is not None:
            self.service = service
        elif isinstance(model, LanguageModel):
            encoder = PromptEncoder(self.tokenizer, model.config.vocab_size)
            self.service = Service(build_engine(self.model, encoder, EngineOptions(**{"max_batch": 8, **options})), encoder, NAME, timeouts)
        else:
            self.service = ModelService(Embedder(model, self.tokenizer), NAME, timeouts=timeouts)
        self.key = key
        self.server = build_server(self.service, key, cors=cors, access_log=access_log, capacity=capacity)
        self.connections = self.server.config.http.keywords["open_connections"]
        self.socket = bind("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))

    def __enter__(self) -> Served:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()

    def ask(self, method: str, path: str, body=None, headers=None, timeout: float = 300):
        """(status, headers, parsed or raw body) by a plain HTTP client."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            given = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {}), **(headers or {})}
            connection.request(method, path, raw, given)
            answer = connection.getresponse()
            found = answer.read()
            kind = answer.headers.get("content-type", "")
            return answer.status, dict(answer.headers), json.loads(found) if found and kind == "application/json" else found.decode()
        finally:
            connection.close()

    def complete(self, **body):
        return self.ask("POST", "/v1/completions", {"model": NAME, **body})

    def idle(self, seconds: float = 120) -> bool:
        """Whether nothing is left open or running after at most so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.service.worker.idle:
                return True
            time.sleep(0.02)
        return False
