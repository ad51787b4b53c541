"""A tiny model behind the server: for the tests, and for whoever abuses it."""

from __future__ import annotations

import http.client
import json
import threading
import time

import torch

from regard.data import Tokenizer
from regard.decode.complete import engine_for
from regard.models import build
from regard.serve import listen
from regard.serve.app import Service

KEY = "a-key-for-tests"
NAME = "tiny"


def tiny(length: int = 128, vocab: int = 260):
    torch.manual_seed(0)
    model = build("gpt2", {"vocab": vocab, "length": length, "width": 32, "heads": 2, "depth": 2}).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 3
    return model, Tokenizer.train([], "bytes", 260)


class Served:
    """The server in a thread of this process, while inside `with`."""

    def __init__(self, key: str | None, model=None, **bounds: int):
        model, self.tokenizer = model or tiny()
        self.key, self.service = (
            key,
            Service(engine_for(model, self.tokenizer, **{"rows": 8, "waiting": 64, **bounds}), self.tokenizer, NAME),
        )
        self.server = listen.server_of(self.service, key)
        self.socket = listen._bound("127.0.0.1", 0)
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

    def ask(self, method: str, path: str, body=None, headers=None, timeout: float = 60):
        """(status, headers, parsed or raw body) by a client that knows nothing of OpenAI."""
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

    def idle(self, seconds: float = 20) -> bool:
        """Whether everything was given back: no row, no prompt, no ticket."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            worker = self.service.worker
            if not (worker.open or worker.engine.busy or worker.engine.running or worker._tickets):
                return True
            time.sleep(0.02)
        return False
