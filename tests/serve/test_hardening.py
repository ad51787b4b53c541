"""Nobody is shut out: slow and silent clients beside good ones, limits of connections and headers, origins, time limits, file descriptors."""

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from abuse import SlowClients, good_beside_slow
from h11 import LocalProtocolError
from small_server import KEY, Served
from starlette.responses import Response

import regard
from regard.errors import NotSupported
from regard.serve.access import Access, AccessMiddleware, check_origins
from regard.serve.guards import RESERVE, Bodies, Capacity, Connections, Timeouts, find_capacity
from regard.serve.responses import ApiError
from regard.serve.worker import Metrics

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def exchange(served, raw: bytes) -> bytes:
    """All that comes back until the server closes the connection, or nothing comes for a while."""
    with socket.create_connection(("127.0.0.1", served.port)) as plug:
        plug.settimeout(60)
        plug.sendall(raw)
        got = b""
        while piece := plug.recv(65536):
            got += piece
        return got


@pytest.mark.parametrize("same_address", [True, False])
def test_good_clients_beside_slow_ones(same_address):
    """More slow clients than connections: headers that never end, silent bodies, idle ones. Every good request is answered."""
    capacity = Capacity(connections=40, backlog=64)
    with Served(None, capacity=capacity) as served:
        found = good_beside_slow(
            served, slow=100, good=40, addresses=["127.0.0.1" if same_address else f"127.0.1.{n}" for n in range(1, 5)]
        )
        assert found.answered == found.asked == 40
        assert len(served.connections) <= 40 and served.connections.closed >= 60
        assert served.idle()


def test_responses_do_not_wait_for_acknowledgements(served):
    """Without TCP_NODELAY, each response on a connection that is kept alive waits 40 ms for the client's delayed acknowledgement."""
    with socket.create_connection(("127.0.0.1", served.port)) as plug:
        plug.sendall(GET + b"\r\n")
        assert plug.recv(65536).startswith(b"HTTP/1.1 200")
        port = plug.getsockname()[1]
        (accepted,) = [one for one in served.server.server_state.connections if one.client and one.client[1] == port]
        assert accepted.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Plug:
    def __init__(self, address, waiting_since):
        self.address, self.waiting_since, self.open = address, waiting_since, True

    def abort(self):
        self.open = False


def test_who_gives_way():
    """The connection that has waited longest, of the address that reached its share, else of the one with most; never one being answered."""
    connections = Connections(total=4, share=3)
    busy, old, new, other = Plug("a", None), Plug("a", 1.0), Plug("a", 2.0), Plug("b", 0.0)
    assert all(connections.add(plug) for plug in (busy, old, new, other)) and len(connections) == 4
    assert connections.add(Plug("a", 3.0)) and not old.open and other.open  # of its own share
    assert connections.add(Plug("c", 4.0)) and not new.open and other.open and len(connections) == 4
    full = Connections(total=2)
    assert full.add(Plug("a", None)) and full.add(Plug("b", None)) and not full.add(Plug("c", 0.0)) and len(full) == 2
    full.discard(Plug("d", 0.0))
    assert len(full) == 2


def test_several_new_connections_do_not_give_way_to_one_that_is_slow():
    """A good client with four requests at a time beside slow ones with a connection each: 3 of 2,000 requests were lost."""
    connections, now = Connections(total=4, share=4), time.monotonic()
    good, slow = [Plug("good", now) for _ in range(2)], [Plug(f"slow {n}", now - 5 - n) for n in range(2)]
    assert all(connections.add(plug) for plug in (*good, *slow))
    assert connections.add(Plug("good", now)) and all(plug.open for plug in good) and sum(plug.open for plug in slow) == 1
    young = Connections(total=2)
    first, second = Plug("a", now), Plug("b", now)
    assert young.add(first) and young.add(second) and young.add(Plug("c", now)) and first.open + second.open == 1  # somebody must


def test_a_request_in_progress_is_not_closed_for_others():
    with Served(None, capacity=Capacity(connections=6, backlog=16), slow=0.02) as served:
        body = json.dumps({"prompt": "x", "max_tokens": 60, "logit_bias": {"2": -100}}).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as plug:
            plug.settimeout(120)
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            plug.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while not served.service.engine.running:
                time.sleep(0.01)
            with SlowClients(("127.0.0.1", served.port), 30):
                got = b""
                while b'"finish_reason":"length"' not in got:
                    piece = plug.recv(65536)
                    assert piece, got
                    got += piece


def test_headers_are_limited(served):
    for more in (b"X: y\r\n" * 65, b"X: " + b"y" * 20_000 + b"\r\n"):
        got = exchange(served, GET + more + b"Connection: close\r\n\r\n")
        assert got.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")) and b'"error"' in got
    assert exchange(served, GET + b"X: y\r\n" * 60 + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_requests_of_ambiguous_length_are_refused(served):
    """Or a proxy might see another request where this server sees a body."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
    smuggled = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    got = exchange(served, head + smuggled)
    assert got.startswith(b"HTTP/1.1 400") and b"ambiguous_length" in got and got.count(b"HTTP/1.1") == 1


def test_foreign_origins_are_refused(open_served):
    own = f"http://127.0.0.1:{open_served.port}"
    for origin, status in (
        (own, 200),
        ("https://evil.example", 403),
        ("null", 403),
        (f"{own}.evil.example", 403),
        ("http://127.0.0.1", 403),
    ):
        got, headers, found = open_served.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"Origin": origin})
        assert got == status, origin
        assert status == 200 or found["error"]["code"] == "wrong_origin"
        assert "access-control-allow-origin" not in headers and headers["x-content-type-options"] == "nosniff"
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert open_served.ask("OPTIONS", "/v1/completions", headers=preflight)[0] == 403


def test_cors():
    friend = "https://friend.example"
    with Served(KEY, cors=(friend,)) as served:
        asked = {"Origin": friend, "Access-Control-Request-Method": "POST", "Authorization": ""}
        status, headers, _ = served.ask("OPTIONS", "/v1/completions", headers=asked)  # browsers send no key with it
        assert (
            status == 204
            and headers["access-control-allow-origin"] == friend
            and "Authorization" in headers["access-control-allow-headers"]
        )
        for key, status in ({}, 200), ({"Authorization": "Bearer wrong-key"}, 401):
            got, headers, _ = served.ask("GET", "/v1/models", headers={"Origin": friend, **key})
            assert got == status and headers["access-control-allow-origin"] == friend and "Origin" in headers["vary"]
        assert served.ask("GET", "/v1/models", headers={"Origin": "https://other.example"})[0] == 403
    for wrong in ("example.org", "https://example.org/", "https://example.org/path", "ftp://x"):
        with pytest.raises(NotSupported, match="origin"):
            check_origins([wrong], None)
    with pytest.raises(NotSupported, match="key"):
        check_origins(["*"], None)
    check_origins(["*", "http://localhost:3000"], KEY)


def test_the_page(served):
    status, headers, page = served.ask("GET", "/", headers={"Authorization": ""})
    assert status == 200 and 'id="explorer"' in page
    assert "default-src 'self'" in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"
    status, _, found = served.ask("GET", "/v1/engines")
    assert status == 404 and "POST /v1/embeddings" in found["error"]["message"] and "GET /v1/models" in found["error"]["message"]


def test_access_log(capfd):
    with Served(None, access_log=True) as served:
        served.ask("GET", "/health")
        served.ask("GET", "/a%0Ab")
    lines = [line.split(" ", 1)[1] for line in capfd.readouterr().err.splitlines() if " GET " in line]
    assert lines[0].startswith("127.0.0.1 GET /health 200 ") and lines[1].startswith("127.0.0.1 GET /a%0Ab 404 ")


@pytest.mark.parametrize("stream", [False, True])
def test_requests_have_a_time_limit(stream):
    with Served(None, timeouts=Timeouts(request=0.5), slow=0.05) as served:
        status, _, found = served.complete(prompt="x", max_tokens=120, logit_bias={"2": -100}, stream=stream)
        if stream:
            assert status == 200 and '"code":"timeout"' in found and "[DONE]" not in found
        else:
            assert status == 504 and found["error"]["code"] == "timeout" and "0.5 seconds" in found["error"]["message"]
        assert served.idle() and served.complete(prompt="x", max_tokens=1)[0] == 200


def test_readers_that_trickle_are_cut_off(monkeypatch):
    """One that reads just often enough never runs into the timeout of writing; the time limit of the request ends it."""
    monkeypatch.setattr("regard.serve.guards.TELLING", 0.2)
    with Served(None, timeouts=Timeouts(request=0.5)) as served:
        served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        body = json.dumps({"prompt": "x", "max_tokens": 100, "logit_bias": {"2": -100}, "n": 8, "stream": True, "logprobs": 20}).encode()
        plug = socket.socket()
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        plug.connect(("127.0.0.1", served.port))
        plug.settimeout(60)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        plug.sendall(head % len(body) + body)
        got = b""
        try:
            while piece := plug.recv(50):
                got += piece
                time.sleep(0.02)
        except ConnectionResetError:
            pass
        plug.close()
        assert b"200 OK" in got and b"[DONE]" not in got and served.idle()


def test_bodies_share_their_memory():
    """When bodies under way are too large together, the oldest of them is given up, and the newest arrives."""
    with Served(None) as served:
        served.service.bodies = Bodies(60, max_bytes=300_000)
        head = HEAD % 200_000
        plugs = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2)]
        for plug in plugs:
            plug.settimeout(60)
            plug.sendall(head + b" " * 199_999)
        assert b" 408 " in plugs[0].recv(1000)
        plugs[1].sendall(b"{")
        assert b" 400 " in plugs[1].recv(1000)
        for plug in plugs:
            plug.close()
        assert served.complete(prompt="x", max_tokens=1)[0] == 200 and served.service.bodies._bytes == 0


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def test_connections_fit_the_file_descriptors(monkeypatch):
    raised = []
    monkeypatch.setattr("regard.serve.guards._descriptors_in_use", lambda: 10)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: raised.append(limits))
    for soft, hard in ((256, 256), (1024, 1024), (1024, 4096), (10_000, 10_000), (20, 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limits=(soft, hard): limits)
        found = find_capacity()
        available = max(raised.pop()[0] if raised else soft, soft)
        assert found.connections >= 1 and found.backlog >= 1
        assert soft == 20 or found.connections + found.backlog + RESERVE + 10 <= available
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert find_capacity().connections == 4096


SCARCE = """
import resource, socket, sys, time
sys.path.insert(0, sys.argv[1])
from small_server import Served
from regard.serve.guards import Capacity
with Served(None, capacity=Capacity(connections=1000, backlog=50)) as served:  # more than there are descriptors
    assert served.complete(prompt="x", max_tokens=1)[0] == 200
    import os
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, used + 8))
    held = []
    try:
        for _ in range(8):
            held.append(socket.socket())
            held[-1].connect(("127.0.0.1", served.port))
    except OSError:
        pass
    time.sleep(1.2)
    for one in held:
        one.close()
    time.sleep(1.2)
    assert served.complete(prompt="x", max_tokens=1)[0] == 200
print("survived")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts file descriptors in /proc")
def test_a_lack_of_file_descriptors_is_survived_quietly():
    paths = [str(Path(regard.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", SCARCE, str(Path(__file__).parent)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert found.stdout.strip() == "survived" and "Traceback" not in found.stderr, found.stderr
    assert found.stderr.count("no new connections for a second") <= 4


@pytest.mark.parametrize("fails", [ApiError("no"), None], ids=["error", "response"])
def test_a_response_to_a_connection_that_was_closed_is_no_traceback(fails, caplog):
    """h11 refuses to write once the connection must close; uvicorn would log that as an exception of the application."""

    async def app(scope, receive, send):
        if fails is not None:
            raise fails
        await Response("late")(scope, receive, send)

    async def send(message):
        raise LocalProtocolError("can't handle event type Response when role=SERVER and state=MUST_CLOSE")

    metrics = Metrics()
    middleware = AccessMiddleware(app, Access(), metrics, {"/health"})
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/health",
        "raw_path": b"/health",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(middleware(scope, None, send))
    assert not caplog.records and metrics.requests.labels("/health", "499")._value.get() == 1
