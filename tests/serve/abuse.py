"""Send malformed requests to a server, and let slow clients hold it: wrong values in known fields, random JSON, random bytes, silence.

Run:  python tests/serve/abuse.py --requests 10000 --slow 1000        starts a server of its own in this process (make abuse)
Every response must be a completion or an error in OpenAI's form: no 500, no timeout. At the end nothing is left open, and a well-formed
request is answered as before. While slow clients are open, every good request must be answered.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import random
import resource
import socket
import threading
import time
from typing import NamedTuple

from small_server import KEY, NAME, Served

from regard.serve.guards import Capacity

FIELDS = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "best_of", "stop", "seed", "logprobs", "echo", "logit_bias",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "messages", "input", "encoding_format", "top_logprobs", "stream", "stream_options", "suffix", "user", "layers", "heads", "rows", "unknown",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "tools", "tool_choice", "tokens", "dimensions", "store", "metadata",
)  # fmt: skip
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431}


def value(rng, depth=0):
    """Any JSON value, often a boundary case."""
    kinds = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.choice([-1, 0, 1, 2, 3, 16, 127, 128, 129, 259, 260, 2**31, 2**63, 2**64, -(2**63), 10**40]),
        lambda: rng.choice([0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 2.1, -2.0, 1e-300, 1e300, -1e300]),
        lambda: rng.choice(["", "a", "tiny", "é", "\ud800", "\0", "x" * 300, "x" * 9000, "\n\n", "😀" * 50, "1", "-1", "٣"]),
        lambda: "".join(chr(rng.randrange(32, 0x2FF)) for _ in range(rng.randrange(20))),
    ]
    if depth < 3:
        kinds += [
            lambda: [value(rng, depth + 1) for _ in range(rng.randrange(5))],
            lambda: [rng.randrange(4, 260) for _ in range(rng.randrange(200))],
            lambda: ["ab"] * rng.randrange(80),
            lambda: [[rng.randrange(300)] for _ in range(rng.randrange(4))],
            lambda: {str(value(rng, 3))[:20]: value(rng, depth + 1) for _ in range(rng.randrange(4))},
            lambda: schema(rng),
            lambda: {"type": "json_schema", "json_schema": {"schema": schema(rng)}},
            lambda: {rng.choice(["json", "regex", "choice"]): rng.choice([schema(rng), "[ab]{2}", ["a"], "(" * 50, "a{1000}{1000}"])},
            lambda: [{"type": "function", "function": {"name": "f", "parameters": schema(rng)}}],
            lambda: {str(rng.randrange(300)): rng.choice([-100, -101, 5, 0.5]) for _ in range(rng.randrange(400))},
        ]
    return rng.choice(kinds)()


def schema(rng, depth=0):
    """A JSON schema, or something like one."""
    inner = schema(rng, depth + 1) if depth < 4 else {}
    return rng.choice(
        [
            {"type": rng.choice(["string", "integer", "number", "boolean", "null", "object", "array", "other", 5])},
            {"type": "object", "properties": {"a": inner}, "required": rng.choice([["a"], ["b"], 3]), "additionalProperties": False},
            {"type": "array", "items": inner, "maxItems": rng.choice([0, 3, 10**9, -1])},
            {"enum": ["a", 1, None]},
            {"anyOf": [inner, {"type": "null"}]},
            {"$ref": rng.choice(["#", "#/$defs/x", "http://localhost/x"])},
            {"type": "string", "pattern": rng.choice(["^a+$", "(", "(a|b)*c{2,3}"]), "maxLength": rng.choice([3, 10**9])},
            {"not": inner},
            {"type": "integer", "multipleOf": rng.choice([3, 0, -1, 0.1])},
        ]
    )


def good(rng, path="/v1/completions"):
    """A request that should be answered."""
    if path == "/v1/chat/completions":
        return {"model": NAME, "messages": [{"role": rng.choice(["user", "system"]), "content": "hello"}], "max_tokens": rng.randrange(4)}
    if path == "/v1/embeddings":
        return {"model": NAME, "input": rng.choice(["hello", ["a", "b"], [1, 50, 60]])}
    return {"model": NAME, "prompt": rng.choice(["hello", ["a", "b"], [1, 50, 60], [[1, 5], [1]]]), "max_tokens": rng.randrange(4)}


def request(rng):
    """(method, path, body, headers)"""
    method = rng.choice(["POST"] * 60 + ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
    path = rng.choice(
        ["/v1/completions"] * 10
        + ["/v1/attention", "/v1/chat/completions", "/v1/embeddings"] * 4
        + ["/tokenize", "/detokenize", "/openapi.json", "/docs"]
        + ["/v1/models", "/health", "/metrics", "/", "/v1/models/%ff%00", "/v1/x?y=" + "z" * 500]
    )
    headers = (
        {}
        if rng.random() < 0.95
        else rng.choice([{"Authorization": "Bearer nonsense"}, {"Content-Type": "text/html"}, {"X-Long": "y" * 5000}])
    )
    how = rng.random()
    if how < 0.15:
        body = good(rng, path)
    elif how < 0.75:  # by the schema, with some fields wrong
        body = good(rng, path)
        for name in rng.sample(FIELDS, rng.randrange(1, 4)):
            body[name] = value(rng)
    elif how < 0.85:
        body = value(rng)
    else:
        raw = bytearray(json.dumps(good(rng, path)).encode()) if rng.random() < 0.5 else bytearray(rng.randbytes(rng.randrange(400)))
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(len(raw) or 1) : rng.randrange(len(raw) or 1) + 1] = rng.randbytes(rng.randrange(3))
        return method, path, bytes(raw), headers
    return method, path, json.dumps(body).encode(), headers


def battered(served, requests: int, seed: int, progress: bool = False) -> dict[int, int]:
    """How often each status occurred; raises AssertionError if a response is wrong."""
    rng, seen = random.Random(seed), {}
    before = served.complete(prompt="a good client", max_tokens=8, temperature=0)
    held = 0
    for number in range(requests):
        if rng.random() < 0.05:
            _noise(served.port, rng)
            continue
        method, path, body, headers = request(rng)
        status, _, found = served.ask(method, path, body, headers)
        seen[status] = seen.get(status, 0) + 1
        assert status in ALLOWED, (status, method, path, body, found)
        if status >= 400 and method != "HEAD":
            assert set(found["error"]) == {"message", "type", "param", "code"}, (status, found)
        if number == requests // 5:
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if progress and number % 500 == 499:
            print(number + 1, seen, flush=True)
    assert served.idle()
    after = served.complete(prompt="a good client", max_tokens=8, temperature=0)
    assert after[0] == before[0] == 200 and after[2]["choices"] == before[2]["choices"]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
    assert grown < 100 * 1024, f"memory has grown by {grown // 1024} MiB since a fifth of the requests"
    assert seen.get(200) and seen.get(400)
    return seen


def _noise(port: int, rng: random.Random) -> None:
    """Bytes that are not HTTP, or half a request, from a client that does not wait for a response."""
    start = rng.choice([b"", b"POST /v1/completions HTTP/1.1\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{", b"GET /\xff HTTP/1.1\r\n\r\n"])  # fmt: skip
    with socket.create_connection(("127.0.0.1", port)) as plug:
        try:
            plug.sendall(start + rng.randbytes(rng.randrange(2000)))
            if rng.random() < 0.3:
                plug.settimeout(0.05)
                plug.recv(100)
        except OSError:
            pass  # it was hung up on


# -- slow clients ------------------------------------------------------------------------------------------------------

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW = (
    b"",  # nothing at all
    b"POST /v1/comp",
    POST + b"X-Slow: ",  # headers that never end
    POST + b"Content-Length: 1000\r\n\r\n",  # a silent body
    POST + b"Content-Length: 500000\r\n\r\n" + b" " * 4000,
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",  # a request, and then nothing
)


class SlowClients:
    """Connections that send next to nothing. Those that the server closes are opened again, so that as many stay open as it permits."""

    def __init__(self, server: tuple[str, int], count: int, addresses=("127.0.0.1",)):
        self.server, self.count = server, count
        self.opened = 0
        self._addresses, self._kinds = itertools.cycle(addresses), itertools.cycle(SLOW)
        self._plugs: list[socket.socket] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True)

    def __enter__(self):
        for _ in range(self.count):
            self._open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for plug in self._plugs:
            plug.close()

    @property
    def open(self) -> int:
        return len(self._plugs)

    def _open(self) -> None:
        plug = socket.socket()
        try:
            plug.bind((next(self._addresses), 0))
            plug.connect(self.server)
            plug.setblocking(False)
            plug.send(next(self._kinds))
        except OSError:
            plug.close()
            return
        self._plugs.append(plug)
        self.opened += 1

    def _hold(self) -> None:
        while not self._stop.wait(0.5):
            kept = []
            for plug in self._plugs:
                try:
                    plug.send(b"y" if plug.fileno() % 3 == 0 else b"")  # a third trickles
                    if plug.recv(4096):
                        kept.append(plug)
                    else:
                        plug.close()
                except BlockingIOError:
                    kept.append(plug)
                except OSError:
                    plug.close()
            self._plugs = kept
            for _ in range(self.count - len(kept)):
                self._open()


class Beside(NamedTuple):
    """Good requests beside slow clients: how many were asked and answered, and how long each took."""

    asked: int
    answered: int
    seconds: list[float]
    slow_open: list[int]  # at each request, as the slow clients see it
    slow_opened: int

    def __str__(self) -> str:
        ordered = sorted(self.seconds)
        return (
            f"{self.answered} of {self.asked} good requests answered beside {min(self.slow_open)} to {max(self.slow_open)} slow clients "
            f"({self.slow_opened} connections); median {ordered[len(ordered) // 2] * 1000:.0f} ms, slowest {ordered[-1] * 1000:.0f} ms"
        )


def good_beside_slow(served, slow: int, good: int, addresses=("127.0.0.1",), threads: int = 4) -> Beside:
    seconds, statuses, open_ = [], [], []

    def ask(number: int) -> None:
        open_.append(clients.open)
        start = time.monotonic()
        try:
            statuses.append(served.ask("POST", "/v1/completions", {"prompt": f"good {number}", "max_tokens": 4}, timeout=60)[0])
        except OSError as error:
            statuses.append(str(error))
        seconds.append(time.monotonic() - start)

    with SlowClients(("127.0.0.1", served.port), slow, addresses) as clients, concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, range(good)))
    return Beside(good, statuses.count(200), seconds, open_, clients.opened)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=int, default=1000, help="slow clients that are open at a time; 0: none")
    parser.add_argument("--good", type=int, default=2000, help="good requests beside them")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000) if hard != resource.RLIM_INFINITY else 20_000, hard))
    start = time.monotonic()
    with Served(KEY) as served:
        seen = battered(served, given.requests, given.seed, progress=True)
    print(
        f"{given.requests} requests in {time.monotonic() - start:.0f} s, by status: {dict(sorted(seen.items()))}; all given back",
        flush=True,
    )
    one, many = ["127.0.0.1"], [f"127.0.1.{n}" for n in range(1, 201)]
    for name, addresses, capacity in (
        ("one address", one, None),
        ("200 addresses", many, None),
        (
            "200 addresses, a quarter as many connections",
            many,
            Capacity(connections=max(16, given.slow // 4), backlog=max(2, given.slow // 32)),
        ),
    ):
        if given.slow:
            with Served(KEY, capacity=capacity) as served:  # half as many again, because the server closes some all the time
                found = good_beside_slow(served, given.slow * 3 // 2, given.good, addresses)
                print(f"slow clients of {name}: {found}; {served.connections.closed} had to give way", flush=True)
                assert found.answered == found.asked and served.idle()


if __name__ == "__main__":
    main()
