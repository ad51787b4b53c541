"""The server's robustness: validation, API keys, errors, timeouts, disconnected clients, shutdown."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from abuse import battered
from small_server import KEY, NAME, Served, Wrapped, tiny

from regard.decode import GenerationOptions
from regard.errors import NotSupported
from regard.serve import schemas, serve, server
from regard.serve.guards import Timeouts
from regard.serve.responses import ApiError
from regard.serve.server import check_address

HALF = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
LONG = {"prompt": "x", "max_tokens": 120, "logit_bias": {"2": -100}}


def is_error(found, code=None):
    assert set(found) == {"error"} and set(found["error"]) == {"message", "type", "param", "code"} and found["error"]["message"]
    return code is None or found["error"]["code"] == code


def test_every_error_has_the_shape(served):
    cases = [
        ("GET", "/nowhere", None, {}, 404),
        ("GET", "/v1/completions", None, {}, 405),
        ("DELETE", "/health", None, {}, 405),
        ("POST", "/v1/completions", b"{", {}, 400),
        ("POST", "/v1/completions", b"[1]", {}, 400),
        ("POST", "/v1/completions", b"\xff\xfe", {}, 400),
        ("POST", "/v1/completions", b"[" * 100_000, {}, 400),
        ("POST", "/v1/completions", b'{"seed": ' + b"9" * 5000 + b"}", {}, 400),
        ("POST", "/v1/completions", b'{"temperature": NaN}', {}, 400),
        ("POST", "/v1/completions", b'{"temperature": 1e999}', {}, 400),
        ("POST", "/v1/completions", b'{"prompt": "\\ud800"}', {}, 400),
        ("POST", "/v1/completions", b'{"\\ud800": 1}', {}, 400),
        ("POST", "/v1/completions", b'{"model": "\\ud800"}', {}, 400),
        ("POST", "/v1/completions", b" " * (2**20 + 1), {}, 413),
        ("POST", "/v1/completions", {}, {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/completions", {"prompt": "x"}, {"Authorization": "Bearer "}, 401),
        ("GET", "/metrics", None, {"Authorization": f"Basic {KEY}"}, 401),
        ("GET", "/nowhere", None, {"Authorization": "x"}, 401),
    ]
    for method, path, body, headers, status in cases:
        got, _, found = served.ask(method, path, body, headers)
        assert got == status, (method, path, got, found)
        is_error(found)
    assert served.ask("GET", "/v1/completions")[1]["allow"] == "POST"


@pytest.mark.parametrize("before", [b'{"temperature": ', b'{"prompt": '])
def test_whatever_depth_is_refused(before):
    """Nested too deeply for a recursive parser or not."""
    limits = schemas.Limits(NAME, vocab_size=100, context_length=50, max_batch=4)
    for depth in range(800, 1010):
        with pytest.raises(ApiError):
            schemas.read_completion(before + b"[" * depth + b"]" * depth + b"}", limits)


WRONG = {
    "prompt": [5, [], [[]], ["a", 5], [[1], "a"], [-1], [1.5], ["a"] * 65, [2**40], {"a": 1}],
    "max_tokens": [-1, 1.0, "5", True, 100_001, 2**40],
    "temperature": [-0.1, 2.1, "1", True],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, 0.5],
    "min_p": [2],
    "seed": ["1", 0.5],
    "stop": ["", [""], 5, ["a"] * 17, "x" * 257],
    "logit_bias": [[1], {"-1": 1}, {"a": 1}, {"100": 1}, {"5": 101}, {"5": "1"}, {str(n): 1 for n in range(301)}],
    "presence_penalty": [2.5],
    "frequency_penalty": [-3],
    "repetition_penalty": [0, -1, 11, 1e-300],
    "n": [0, 5],
    "best_of": [0, 5],
    "logprobs": [-1, 21, True],
    "echo": [1, "true"],
    "stream": [0],
    "stream_options": [{}, [], {"include_usage": 1}, {"other": True}],
    "user": [5],
    "suffix": ["x", 5],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_name(name):
    limits = schemas.Limits(NAME, vocab_size=100, context_length=50, max_batch=4)
    for value in WRONG[name]:
        with pytest.raises(ApiError) as caught:
            schemas.read_completion(json.dumps({name: value}).encode(), limits)
        assert caught.value.param == name and caught.value.status == 400 and caught.value.message.startswith(name), value
    assert schemas.read_completion(json.dumps({name: None}).encode(), limits) == schemas.read_completion(b"{}", limits)


def test_options_of_a_request():
    limits = schemas.Limits(NAME, vocab_size=100, context_length=50, max_batch=4)
    plain = schemas.read_completion(b"{}", limits).options()
    assert (plain.max_tokens, plain.temperature, plain.n, plain.logprobs) == (16, 1.0, 1, None)  # OpenAI's defaults
    assert plain.temperature == GenerationOptions().temperature and plain.seed is None
    body = {"top_p": 0, "top_k": -1, "stop": "a", "logit_bias": {"5": -1}, "seed": -(2**63), "logprobs": 0, "max_tokens": 0}
    options = schemas.read_completion(json.dumps(body).encode(), limits).options()
    assert 0 < options.top_p < 1e-6 and options.top_k == 0 and options.stop == ("a",) and options.logit_bias == {5: -1.0}
    assert (options.seed, options.logprobs, options.max_tokens) == (-(2**63), 0, 0)


def test_health_needs_no_key_and_metrics_count(served):
    assert served.ask("GET", "/health", headers={"Authorization": ""})[0] == 200
    before = numbers(served)
    assert served.complete(prompt="abc", max_tokens=4, logit_bias={"2": -100})[0] == 200
    after = numbers(served)
    assert after["completion_tokens_total"] - before.get("completion_tokens_total", 0) == 4
    assert after["prompt_tokens_total"] - before.get("prompt_tokens_total", 0) == 4
    assert after["completions_running"] == after["prompts_open"] == 0 and after["time_to_first_token_seconds_count"] >= 1


def numbers(served):
    text = served.ask("GET", "/metrics")[2]
    assert 'regard_requests_total{route="/v1/completions",status=' in text or "step_seconds_count 0" in text
    return {name: float(value) for name, value in re.findall(r"^regard_(\w+) (\S+)$", text, re.M)}


def test_without_a_key_only_this_machine(open_served):
    assert open_served.complete(prompt="x", max_tokens=1)[0] == 200
    assert open_served.ask("GET", "/health", headers={"Host": "localhost:1234"})[0] == 200
    assert open_served.ask("GET", "/health", headers={"Host": "[::1]:80"})[0] == 200
    for host in ("evil.example", "evil.example:8000", "10.0.0.1", ""):
        status, _, found = open_served.ask("POST", "/v1/completions", {"prompt": "x"}, {"Host": host})
        assert status == 403 and is_error(found, "wrong_host")


def test_addresses():
    for host in ("0.0.0.0", "::", "", "192.168.1.1"):
        with pytest.raises(NotSupported, match="key"):
            check_address(host, None)
        check_address(host, "long-enough-key")
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        check_address(host, None)
    for key in ("", "short", "with a space", "schlüssel-schlüssel", "two\nlines-long"):
        with pytest.raises(NotSupported, match="key"):
            check_address("127.0.0.1", key)
    with pytest.raises(NotSupported, match="key"):
        serve(lambda: pytest.fail("the model is not even loaded"), "x", host="0.0.0.0")


def test_attention(served):
    body = {"prompt": "abcd", "max_tokens": 3, "temperature": 0, "logit_bias": {"2": -100}}
    status, _, found = served.ask("POST", "/v1/attention", body)
    assert status == 200 and found["prompt_tokens"] == 5 and len(found["tokens"]) == 8 and found["tokens"][1:5] == list("abcd")
    assert len(found["layers"]) == 2
    for layer in found["layers"]:
        assert layer["heads"] == [0, 1] and layer["rows"] == layer["columns"] == list(range(8))
        for head in layer["weights"]:
            for at, row in enumerate(head):
                assert sum(row) == pytest.approx(1, abs=1e-3) and not any(row[at + 1 :])
    narrow = served.ask("POST", "/v1/attention", {**body, "layers": [1], "heads": [0], "rows": [-1]})[2]
    assert len(narrow["layers"]) == 1 and narrow["layers"][0]["weights"] == [[found["layers"][1]["weights"][0][-1]]]
    assert narrow["text"] == found["text"] == served.complete(**body)[2]["choices"][0]["text"]
    for wrong in (
        {"layers": [7]},
        {"heads": [9]},
        {"rows": [90]},
        {"layers": "all"},
        {"prompt": ["a", "b"]},
        {"max_tokens": 128},
        {"layers": ["nothing.*"]},
    ):
        status, _, answer = served.ask("POST", "/v1/attention", {**body, **wrong})
        assert status == 400 and is_error(answer), wrong


def test_overload_is_told_and_passes():
    with Served(None, max_batch=1, max_queue=2) as served, concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: served.complete(**LONG), range(12)))
        statuses = sorted(status for status, _, _ in answers)
        assert set(statuses) == {200, 429}
        refused = [(headers, found) for status, headers, found in answers if status == 429]
        assert all(headers["retry-after"] == "1" and is_error(found, "rate_limit_exceeded") for headers, found in refused)
        assert served.complete(prompt="x", max_tokens=1)[0] == 200 and served.idle()


def test_many_clients_get_what_they_would_alone(served):
    prompts = [f"client {n} says" for n in range(24)]
    alone = [served.complete(prompt=prompt, max_tokens=20, seed=n)[2]["choices"][0]["text"] for n, prompt in enumerate(prompts)]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda n: served.complete(prompt=prompts[n], max_tokens=20, seed=n)[2]["choices"][0]["text"], range(24)))
    assert together == alone


@pytest.mark.parametrize("stream", [True, False])
def test_a_vanished_client_stops_its_generation(served, stream):
    written = numbers(served)["completion_tokens_total"]
    body = json.dumps({**LONG, "n": 4, "stream": stream, "model": NAME}).encode()
    for _ in range(5):
        plug = socket.create_connection(("127.0.0.1", served.port))
        plug.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)  # fmt: skip
        if stream:
            plug.recv(10)
        plug.close()
    assert served.idle()
    assert stream or numbers(served)["completion_tokens_total"] == written  # nothing was finished for them


def test_rows_of_the_vanished_are_free_before_their_end():
    with Served(None, slow=0.02) as served:
        plug = socket.create_connection(("127.0.0.1", served.port))
        body = json.dumps({**LONG, "n": 8}).encode()
        plug.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        while served.service.engine.running < 8:
            time.sleep(0.01)
        plug.close()
        before = served.model.steps
        assert served.complete(prompt="y", max_tokens=1)[0] == 200
        assert served.model.steps - before < 100  # to their end it would be 120


def test_slow_readers_are_cut_off():
    with Served(None, timeouts=Timeouts(write=0.5)) as served:
        body = json.dumps({**LONG, "n": 8, "stream": True, "logprobs": 20}).encode()
        served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # or the kernel would take it all
        plug = socket.socket()
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        plug.connect(("127.0.0.1", served.port))
        request = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        plug.sendall(request)
        assert served.complete(prompt="x", max_tokens=2)[0] == 200  # others do not wait for it
        assert served.idle()
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := plug.recv(65536):
                got += piece
        assert b"200 OK" in got and b"[DONE]" not in got
        plug.close()


def test_slow_headers_are_cut_off():
    with Served(None, timeouts=Timeouts(headers=0.3)) as served:
        plugs = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(5)]
        for plug in plugs:
            plug.sendall(b"POST /v1/completions HTTP/1.1\r\nHo")
        for plug in plugs:
            plug.settimeout(120)
            with contextlib.suppress(ConnectionResetError):
                assert plug.recv(100) == b""
            plug.close()
        assert served.complete(prompt="x", max_tokens=1)[0] == 200


def test_slow_bodies_are_refused():
    with Served(None, timeouts=Timeouts(body=0.3)) as served:
        plug = socket.create_connection(("127.0.0.1", served.port))
        plug.settimeout(120)
        plug.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in plug.recv(1000)
        plug.close()


def test_a_failing_model_fails_its_answers_only():
    class FailsOnce(Wrapped):
        failures = iter([True])

        def logits(self, x):
            if next(self.failures, False):
                raise RuntimeError("out of luck")
            return super().logits(x)

    model, tokenizer = tiny()
    with Served(None, model=(FailsOnce(model), tokenizer)) as served:
        status, _, found = served.complete(prompt="x")
        assert status == 500 and is_error(found, "internal_error") and "luck" not in found["error"]["message"]
        assert numbers(served)["completions_running"] == 0
        assert served.complete(prompt="x", max_tokens=1)[0] == 200 and served.idle()


def test_a_model_with_more_tokens_than_its_tokenizer():
    """Ids without text are refused in prompts, and shown as numbers among the alternatives."""
    with Served(None, model=tiny(vocab_size=300)) as served:
        for body in ({"prompt": [5, 280]}, {"prompt": [5], "logit_bias": {"280": 1}}):
            status, _, found = served.complete(**body, echo=True)
            assert status == 400 and is_error(found)
        status, _, found = served.complete(prompt="x", max_tokens=8, logprobs=20)
        assert status == 200 and any(
            name.isdigit() and int(name) >= 260 for top in found["choices"][0]["logprobs"]["top_logprobs"] for name in top
        )


def test_log_probabilities_are_bounded(served):
    status, _, found = served.complete(prompt=["x" * 100] * 64, n=8, max_tokens=20, logprobs=20, echo=True)
    assert status == 400 and found["error"]["param"] == "logprobs" and "500,000" in found["error"]["message"]


def test_silent_bodies_are_no_work():
    """However many bodies are on their way, the queue is free for requests that are complete."""
    with Served(None, timeouts=Timeouts(body=3), max_batch=1, max_queue=2) as served:
        plugs = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(20)]
        for plug in plugs:
            plug.sendall(HALF)
        assert served.complete(prompt="x", max_tokens=1)[0] == 200
        for plug in plugs:
            plug.settimeout(120)
            assert b"408" in plug.recv(1000)
            plug.close()
        assert served.idle()


def test_requests_behind_each_other_have_time():
    """Two pipelined requests: the timeout for headers must not run while the second is answered."""
    with Served(None, timeouts=Timeouts(headers=0.3), slow=0.02) as served:
        body = json.dumps({**LONG, "max_tokens": 40}).encode()
        one = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        with socket.create_connection(("127.0.0.1", served.port)) as plug:
            plug.settimeout(120)
            plug.sendall(one + one)
            got = b""
            while got.count(b'"finish_reason":"length"') < 2:
                piece = plug.recv(65536)
                assert piece, got
                got += piece


def test_battered(served):
    battered(served, requests=300, seed=0)


def test_two_hundred_clients(served):
    """At once, some of which disconnect: every status is 200 or 429, and nothing is left open."""
    seen, lock = [], threading.Lock()

    def client(n):
        if n % 5 == 0:  # hangs up
            with socket.create_connection(("127.0.0.1", served.port)) as plug:
                body = json.dumps({**LONG, "stream": True}).encode()
                plug.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)  # fmt: skip
            return
        status = served.complete(prompt=f"{n}", max_tokens=5)[0]
        with lock:
            seen.append(status)

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        list(pool.map(client, range(200)))
    assert len(seen) == 160 and set(seen) <= {200, 429} and seen.count(200) >= 20
    assert served.idle() and served.complete(prompt="x", max_tokens=1)[0] == 200


@pytest.fixture
def run(tmp_path):
    """A run directory of the tiny model."""
    from regard.data import Tokenizers
    from regard.runs import save
    from regard.tasks import TextProcessor, make_run

    model, tokenizer = tiny(1024)
    return save(make_run("language", model, TextProcessor(Tokenizers(tokenizer))), tmp_path)


def test_command_drains_and_ends(run):
    """SIGTERM while a completion is running: it is finished, then the process exits with 0."""
    paths = [str(Path(server.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "REGARD_KEY": KEY, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "serve", str(run), "--port", "0", "--name", "x"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        line = process.stdout.readline()
        port = int(re.search(r"127\.0\.0\.1:(\d+)", line)[1])
        assert "with an API key" in line and KEY not in line
        body = json.dumps({"prompt": "x", "max_tokens": 1000, "logit_bias": {"2": -100}, "stream": True}).encode()
        plug = socket.create_connection(("127.0.0.1", port))
        plug.settimeout(120)
        plug.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)  # fmt: skip
        got = plug.recv(20)
        process.send_signal(signal.SIGTERM)
        while piece := plug.recv(65536):
            got += piece
        assert b"[DONE]" in got and b'"finish_reason":"length"' in got
        plug.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_command_refuses_an_open_address_without_a_key(run, capsys, monkeypatch):
    from regard.cli import main

    monkeypatch.delenv("REGARD_KEY", raising=False)
    assert main(["serve", str(run), "--host", "0.0.0.0"]) == 2
    assert "REGARD_KEY" in capsys.readouterr().err
