"""The explorer over HTTP: who may ask, what is computed, what is refused; and the page itself in a browser."""

from __future__ import annotations

import http.client
import json
import math
import random
import re
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_server import KEY, Served, tiny
from tests.look.browser import CHROMIUM, Browser
from tests.tasks.examples import write_example

from regard.data import Tokenizer
from regard.decode import GenerationOptions, PromptEncoder, generate
from regard.errors import NotSupported, StateNotSupported
from regard.look import capture
from regard.look.interventions import Ablation, ablate
from regard.look.lineage import document
from regard.models import build
from regard.serve import explorer
from regard.serve.local import LocalExplorer
from regard.serve.playground import Playground
from regard.serve.responses import token_text
from regard.serve.server import bind, build_server
from regard.serve.whole_text import WholeTextModel
from regard.tasks import find_task, load_run, train

TEXT = "Hello, explorer"


def post(server, path, body):
    return server.ask("POST", path, body)


def raw(server, path, body=None):
    """The bytes of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read()
    finally:
        connection.close()


def test_page_and_files_come_with_a_strict_policy(open_served):
    for path in ("/", "/lineage", "/static/app.js", "/static/style.css"):
        status, headers, _ = open_served.ask("GET", path)
        assert status == 200
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/static/nothing.js", "/static/..%2fmaps.py", "/static/__init__.py"):
        assert open_served.ask("GET", path)[0] == 404


def test_the_lineage_page_is_made_once(monkeypatch):
    made = []
    monkeypatch.setattr(explorer, "document", lambda: made.append(1) or document())
    with Served(None) as served, ThreadPoolExecutor(8) as clients:
        pages = list(clients.map(lambda _: served.ask("GET", "/lineage")[2], range(8)))
    assert len(made) == 1 and len(set(pages)) == 1 and '"softmax"' in pages[0]


def test_host_and_origin_are_checked(open_served):
    host = f"127.0.0.1:{open_served.port}"
    assert open_served.ask("GET", "/explorer/model", headers={"Origin": f"http://{host}"})[0] == 200
    for origin in ("http://evil.example", "null", f"http://{host}.evil.example", "http://127.0.0.1:1"):
        status, _, body = open_served.ask("GET", "/explorer/model", headers={"Origin": origin})
        assert (status, body["error"]["code"]) == (403, "wrong_origin")
    status, _, body = open_served.ask("GET", "/", headers={"Host": "evil.example"})
    assert (status, body["error"]["code"]) == (403, "wrong_host")


def test_everything_but_the_page_needs_the_key(served):
    assert all(served.ask("GET", path)[0] == 200 for path in ("/", "/lineage", "/static/page.js"))
    for method, path in (
        ("GET", "/explorer/model"),
        ("POST", "/explorer/captures"),
        ("POST", "/explorer/files"),
        ("POST", "/explorer/generate"),
        ("GET", "/explorer/captures/1/tile/0/0/0/0/0"),
    ):
        assert served.ask(method, path, headers={"Authorization": "Bearer wrong-key"})[0] == 401
    assert served.ask("GET", "/explorer/model", headers={"Authorization": f"Bearer {KEY}"})[0] == 200


def test_a_capture_has_the_weights_of_the_model(open_served):
    status, _, header = post(open_served, "/explorer/captures", {"text": TEXT})
    assert status == 200
    ids = [open_served.service.encoder.prefix[0], *open_served.tokenizer.encode(TEXT)]
    with torch.no_grad(), capture(open_served.model) as maps:
        logits = open_served.model(torch.tensor([ids]))[0]
    layer = maps.all[1]
    assert header["maps"][1]["name"] == layer.layer and header["maps"][1]["rows"] == len(ids)
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    assert header["loss"] == pytest.approx(float(loss), abs=1e-4)
    rows = raw(open_served, f"/explorer/captures/{header['id']}/values/1/1/3/5")
    assert np.array_equal(np.frombuffer(rows, "<f4").reshape(2, -1), layer.weights_BHLM[0, 1, 3:5].numpy())
    low, high = struct.unpack("<ff", (tile := raw(open_served, f"/explorer/captures/{header['id']}/tile/1/0/0/0/0"))[:8])
    cells = np.frombuffer(tile, np.uint8, offset=8).reshape(len(ids), -1)
    assert np.abs(low + cells / 255 * (high - low) - layer.weights_BHLM[0, 0].numpy()).max() <= high / 510 + 1e-6


def test_ablation_and_another_mechanism_change_the_loss_and_leave_the_model(open_served):
    def loss(**more):
        return post(open_served, "/explorer/captures", {"text": TEXT, **more})[2]

    plain, layer = loss(), "blocks.0.mixer.attention"
    for change in ({"ablate": [{"layer": layer, "head": 0, "how": how}]} for how in ("zero", "uniform")):
        changed = loss(**change)
        assert changed["loss"] != plain["loss"] and changed["baseline"]["loss"] == plain["loss"]
    local = loss(mechanism="local")
    assert {one["mechanism"] for one in local["maps"] if not one["derived"]} == {"local"}
    assert loss()["loss"] == plain["loss"]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"text": ""}, {"text": 5}, {"text": "x", "more": 1}, {"text": "x", "mechanism": "nothing"}, {"text": "x", "step": 7}, {"text": "x" * 600},
        {"text": "x", "ablate": [{"layer": "nowhere", "head": 0}]}, {"text": "x", "ablate": [{"layer": "blocks.0.mixer.attention", "head": 99}]},
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_a_client_error(open_served, body):
    status, _, answer = post(open_served, "/explorer/captures", body)
    assert status == 400 and answer["error"]["message"]


def test_unknown_pieces_are_not_found(open_served):
    header = post(open_served, "/explorer/captures", {"text": TEXT})[2]
    for path in (f"{header['id']}/tile/0/0/0/0/9", f"{header['id']}/tile/x", f"{header['id']}/../../v1/models", "999/tile/0/0/0/0/0"):
        assert open_served.ask("GET", f"/explorer/captures/{path}")[0] == 404


def test_tokens_come_with_the_weights_of_the_query_that_chose_them(open_served):
    events = [
        json.loads(line[6:])
        for line in raw(open_served, "/explorer/generate", {"text": "abc", "max_tokens": 4, "layer": 1, "head": 0}).decode().splitlines()
        if line
    ]
    prompt = events[0]["tokens"]
    assert len(prompt) == 4  # and the token that begins documents
    for n, event in enumerate(events[1:-1]):
        assert len(event["row"]) == len(prompt) + n and sum(event["row"]) == pytest.approx(1, abs=1e-3)
    status, _, whole = post(open_served, "/explorer/captures", {"text": events[-1]["text"]})
    if status == 200 and whole["maps"][1]["rows"] == len(prompt) + len(events) - 2:  # the bytes it wrote may be no text
        row = np.frombuffer(raw(open_served, f"/explorer/captures/{whole['id']}/values/1/0/4/5"), "<f4")
        assert np.abs(row[:5] - np.array(events[2]["row"])).max() < 1e-4


ASKED = {"max_tokens": 9, "temperature": 0.9, "seed": 5, "ablations": [], "mechanism": None, "step": None, "layer": 1, "head": 1}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_continuation_is_that_of_the_engine(temperature):
    model, tokenizer = tiny()
    model.train()  # the page must not see dropout, nor switch it off for others
    events = list(Playground.of_language_model(model, tokenizer).generate("abc", **ASKED | {"temperature": temperature}))
    assert all(part.training for part in model.modules())
    options = GenerationOptions(max_tokens=9, temperature=temperature, seed=5, logprobs=0)
    expected = generate(model, tokenizer, "abc", options)[0][0]
    prompt = PromptEncoder(tokenizer, 260).encode("abc")[0]
    assert events[0]["tokens"] == [token_text(tokenizer, token) for token in prompt]
    assert [one["token"] for one in events[1:-1]] == [token_text(tokenizer, token) for token in expected.ids]
    shares = [math.exp(one.log_prob) for one in expected.logprobs]
    assert [one["probability"] for one in events[1:-1]] == pytest.approx(shares, abs=2e-5)
    assert events[-1]["text"] == tokenizer.decode([*prompt, *expected.ids][1:])  # without the token that begins documents


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "memory_compressed"])
@pytest.mark.parametrize("how", [None, "zero", "uniform"])
def test_every_row_is_that_of_a_capture_of_the_whole_text(mechanism, how):
    torch.manual_seed(0)
    settings = {"vocab_size": 260, "context_length": 16, "width": 32, "heads": 2, "depth": 2, "attention": mechanism}
    model, tokenizer = build("gpt2", settings).eval(), Tokenizer.train([], "byte", 260)
    ablations = [Ablation("blocks.0.mixer.attention", 0, how)] if how else []
    playground = Playground.of_language_model(model, tokenizer)
    prompt, *events, _ = playground.generate("abc", **ASKED | {"max_tokens": 99, "ablations": ablations})
    names = [token_text(tokenizer, token) for token in range(260)]
    ids = [names.index(name) for name in [*prompt["tokens"], *(one["token"] for one in events)]]
    assert len(ids) == 16 or len(events) < 12  # as far as the context reaches, never beyond
    with torch.no_grad(), ablate(model, ablations), capture(model, layers=1) as maps:
        share_LN = model(torch.tensor([ids]))[0].softmax(-1)
    for at, event in enumerate(events, len(prompt["tokens"]) - 1):  # the query that chose it
        assert event["row"] == pytest.approx(maps.all[0].weights_BHLM[0, 1, at, : at + 1].tolist(), abs=2e-5)
        assert event["probability"] == pytest.approx(float(share_LN[at, ids[at + 1]]), abs=2e-5)


def test_a_text_that_fills_the_context_is_not_continued():
    model, tokenizer = tiny(8)
    first, *rest = Playground.of_language_model(model, tokenizer).generate("abcdefg", **ASKED)
    assert len(first["tokens"]) == 8 and rest == [{"text": "abcdefg"}]


def test_reading_the_whole_text_again_changes_no_completion():
    model, tokenizer = tiny(24)  # shorter than the completions: they slide
    options = GenerationOptions(max_tokens=40, seed=3, n=2)
    prompts = ["a", "hello there", "xyz"]
    expected, found = (generate(one, tokenizer, prompts, options) for one in (model, WholeTextModel(model)))
    assert [[one.ids for one in of_prompt] for of_prompt in found] == [[one.ids for one in of_prompt] for of_prompt in expected]
    with pytest.raises(StateNotSupported):
        WholeTextModel(model).start(2).reset(torch.tensor([0]))


# -- regard look RUN, in a browser -------------------------------------------------------------------------------------


class LocalServed:
    def __init__(self, run):
        self.socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        self.server = build_server(LocalExplorer(Playground.of_run(run), "a run"), None)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object):
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    found = Browser()
    yield found
    found.close()


def submit(browser: Browser, text: str) -> None:
    browser.wait("document.querySelector('textarea')")
    browser.run(f"document.querySelector('textarea').value = {json.dumps(text)}; document.querySelector('form').requestSubmit()")
    browser.wait("document.querySelector('.rx')?.explorer?.opened")


def test_the_playground_asks_for_the_key_and_works_with_it(browser, served):
    browser.open(f"{served.url}/")
    browser.wait("document.querySelector('input[type=password]')")
    assert [text for text in browser.errors if "401" not in text] == []
    browser.errors.clear()
    browser.run(f"document.querySelector('input').value = '{KEY}'; document.querySelector('form').requestSubmit()")
    submit(browser, "Hello <b>there</b>")
    browser.run("[...document.querySelectorAll('.rx-prompt button')].find((one) => one.textContent === 'Continue').click()")
    browser.wait("document.querySelector('.rx').explorer.captures.length === 2")
    browser.run("[...document.querySelectorAll('.rx-choices button')].find((one) => one.textContent === 'zero').click()")
    browser.wait("document.querySelector('.rx').explorer.captures.length === 3")
    browser.wait("document.querySelector('.rx-result').textContent.includes('compared with the unchanged model')")
    assert browser.errors == []
    assert {url.split("/")[2] for url in browser.requests if not url.startswith("data:")} == {f"127.0.0.1:{served.port}"}


def test_a_translator_in_the_browser(browser, tmp_path: Path):
    task = find_task("translation")
    example = write_example(task, tmp_path)
    train(task, example.options, replace(task.default_train, steps=2), tmp_path / "run", settings=example.settings, progress=False)
    with LocalServed(load_run(tmp_path / "run")) as local:
        browser.open(local.url)
        submit(browser, example.input)
        for view in browser.run("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.dataset.view)"):
            browser.run(f"document.querySelector('[data-view={view}]').click()")
            browser.settle()
        browser.wait("document.querySelector('.rx-result').textContent.includes('Output')")
        browser.run("document.querySelector('[data-view=alignment]').click()")
        browser.wait("document.querySelectorAll('.rx-links path').length > 0")
        assert browser.run("document.querySelectorAll('.rx-hypotheses button').length") == 4
        browser.run("document.querySelectorAll('.rx-hypotheses button')[2].click()")
        browser.wait("document.querySelector('.rx').explorer.state.capture === 2")
        browser.wait("document.querySelectorAll('.rx-links path').length > 0")
        browser.run("document.querySelector('[data-view=gradients]').click()")
        browser.wait("document.querySelector('.rx-table caption')")
        browser.run("[...document.querySelectorAll('.rx-prompt button')].find((one) => one.textContent === 'Watch the beam').click()")
        browser.wait("document.querySelectorAll('.rx-beam li').length > 1")
        source = browser.run("[...document.querySelectorAll('.rx-stream .rx-keys .rx-token')].map((one) => one.textContent)")
        assert source == [*example.input.split(), "⟨eos⟩"]
        browser.wait("document.querySelector('.rx').explorer.inputs().length === 2")
        assert browser.errors == []


def test_the_beam_arrives_step_by_step_and_ends_in_the_answers(tmp_path: Path):
    task = find_task("translation")
    example = write_example(task, tmp_path)
    train(task, example.options, replace(task.default_train, steps=2), tmp_path / "run", settings=example.settings, progress=False)
    playground = Playground.of_run(load_run(tmp_path / "run"))
    assert playground.describe()["searches"]
    asked = {"max_tokens": 1, "temperature": 0, "seed": 0, "mechanism": None, "step": None, "layer": 0, "head": 0}
    steps = [event["beam"] for event in playground.generate(example.input, ablations=[], **asked)]
    keys = len(example.input.split()) + 1
    for number, beam in enumerate(steps, 1):
        assert all(
            len(one["tokens"]) == number and sum(one["row"]) == pytest.approx(1, abs=1e-3) and len(one["row"]) == keys for one in beam
        )
    best, *_ = playground.record(example.input, [])
    tokenizer = load_run(tmp_path / "run").processor.tokenizers.target
    answer = tokenizer.strings(tokenizer.encode(best.facts["output"]))
    assert any(one["tokens"] == answer for one in steps[len(answer) - 1])
    layer = next(name for name in playground.describe()["ablates"] if "cross" in name)
    changed = [event["beam"] for event in playground.generate(example.input, ablations=[Ablation(layer, 0)], **asked)]
    assert changed[0] != steps[0]


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    task = find_task("images")
    example = write_example(task, folder)
    train(task, example.options, replace(task.default_train, steps=2), folder / "run", settings=example.settings, progress=False)
    return load_run(folder / "run"), Path(example.input)


def send(url: str, path: str, body: bytes, kind: str = "application/octet-stream", **headers: str):
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": kind, **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_an_image_is_chosen_in_the_browser(browser, image_run, tmp_path):
    run, image = image_run
    hostile = tmp_path / "<img src=x onerror=alert(1)>.png"
    hostile.write_bytes(image.read_bytes())
    with LocalServed(run) as local:
        browser.open(local.url)
        browser.wait("document.querySelector('input[type=file]')")
        browser.choose_file("input[type=file]", hostile)
        browser.wait("document.querySelector('.rx')?.explorer?.opened")
        browser.run("document.querySelector('[data-view=image]').click()")
        browser.wait("document.querySelector('.rx-summary').textContent.includes('Query')")
        browser.run("document.querySelector('[data-view=gradients]').click()")
        browser.wait("document.querySelector('.rx-summary').textContent.includes('Kendall')")
        browser.run("[...document.querySelectorAll('.rx-choices button')].find((one) => one.textContent === 'zero').click()")
        browser.wait("document.querySelector('.rx').explorer.captures.length === 2")  # the same file again, without sending it again
        browser.wait("/unchanged model|the same as/.test(document.querySelector('.rx-result').textContent)")
        assert sum("/explorer/files" in url for url in browser.requests) == 1
        assert browser.run("document.querySelectorAll('img').length") == 0
        assert browser.errors == []


def test_files_are_limited_checked_and_leave_nothing_behind(image_run, tmp_path, monkeypatch):
    run, image = image_run
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("regard.serve.explorer.MAX_FILE", 5000)
    with LocalServed(run) as local:
        status, answer = send(local.url, "/explorer/files", image.read_bytes())
        assert status == 200
        body = json.dumps({"file": answer["file"]}).encode()
        status, header = send(local.url, "/explorer/captures", body, "application/json")
        assert status == 200 and header["image"].startswith("data:image/png;base64,") and header["output"]
        assert list(tmp_path.iterdir()) == []  # nothing stays on disk
        for data, expected in ((b"", 400), (b"no image", 400), (b"\x89PNG\r\n\x1a\n", 200), (bytes(6000), 413)):
            status, answer = send(local.url, "/explorer/files", data)
            assert status == expected, answer
            if data.startswith(b"\x89PNG"):
                status, answer = send(local.url, "/explorer/captures", json.dumps(answer).encode(), "application/json")
                assert status == 400 and "the file" in answer["error"]["message"] and str(tmp_path) not in answer["error"]["message"]
        for asked in ({}, {"text": "x"}, {"file": str(image)}, {"file": "../../etc/passwd"}, {"file": "0" * 16}):
            assert send(local.url, "/explorer/captures", json.dumps(asked).encode(), "application/json")[0] == 400
        for kind in (
            "text/plain",
            "multipart/form-data",
            "application/json",
            "",
        ):  # what a page of another origin could send without asking
            assert send(local.url, "/explorer/files", image.read_bytes(), kind)[0] == 415
        assert send(local.url, "/explorer/files", image.read_bytes(), Origin="http://evil.example")[0] == 403
        assert send(local.url, "/explorer/files", image.read_bytes(), Host="evil.example")[0] == 403
        for _ in range(6):
            assert send(local.url, "/explorer/files", image.read_bytes())[0] == 200
        assert send(local.url, "/explorer/captures", body, "application/json")[0] == 400  # only the last few are kept
        assert list(tmp_path.iterdir()) == []


def test_heads_of_a_classifier_can_be_ablated_and_its_label_has_gradients(tmp_path):
    task = find_task("classify")
    example = write_example(task, tmp_path)
    train(task, example.options, replace(task.default_train, steps=2), tmp_path / "run", settings=example.settings, progress=False)
    playground = Playground.of_run(load_run(tmp_path / "run"))
    (plain,) = playground.record(example.input, [])
    header = plain.header()
    layer = header["maps"][0]
    assert header["labels"][layer["outputs"]] == [header["output"].split("\t")[0]]  # one output, of all queries
    pieces = [np.frombuffer(plain.piece(f"gradients/0/{i}"), "<f4") for i in (0, layer["rows"] - 1)]
    assert np.array_equal(*pieces) and np.exp(pieces[0][0]) == pytest.approx(float(header["output"].split("\t")[1].split()[0]), abs=1e-3)
    (changed,) = playground.record(example.input, [Ablation(layer["name"], 0)])
    assert changed.facts["baseline"]["output"] == header["output"]
    assert not np.array_equal(np.frombuffer(changed.piece("gradients/0/0"), "<f4"), pieces[0])


def test_a_model_of_texts_takes_no_files(open_served):
    url = f"http://127.0.0.1:{open_served.port}/"
    assert send(url, "/explorer/files", b"\x89PNG\r\n\x1a\n")[0] == 400


def test_gradients_of_a_served_model(open_served):
    header = post(open_served, "/explorer/captures", {"text": TEXT})[2]
    piece = np.frombuffer(raw(open_served, f"/explorer/captures/{header['id']}/gradients/1/5"), "<f4")
    ids = [open_served.service.encoder.prefix[0], *open_served.tokenizer.encode(TEXT)]
    with torch.no_grad():
        expected = open_served.model(torch.tensor([ids]))[0, 5].log_softmax(-1)[ids[6]]
    assert piece[0] == pytest.approx(float(expected), abs=1e-4) and len(piece) == 1 + 2 * len(ids)
    assert (piece[1:7] > 0).all() and (piece[7 : 1 + len(ids)] == 0).all()
    ablated = post(open_served, "/explorer/captures", {"text": TEXT, "ablate": [{"layer": "blocks.0.mixer.attention", "head": 0}]})[2]
    other = np.frombuffer(raw(open_served, f"/explorer/captures/{ablated['id']}/gradients/1/5"), "<f4")
    assert not np.allclose(other, piece)


NASTY = ["", "x", "softmax", "location(max_length=1000000000)", "linformer(max_length=99999999,rank=999999)", "softmax under window(1)", "\x00", "../x",
         0, -1, 1, 2**31 - 1, 2**31, 2**64, 10**40, 0.5, -0.0, 1e308, True, None, [], {}, [[]], [1] * 300, ["x"] * 300, {"layer": "x"}]  # fmt: skip


def test_wrong_requests_by_generation_get_an_answer_with_the_reason(open_served):
    """Every field of every route with every nasty value, and pieces by random keys: 200 or a reason, never 500, and the server goes on."""
    layer = raw(open_served, "/explorer/captures", {"text": TEXT})
    layer = json.loads(layer)["maps"][0]
    base = {"text": TEXT, "file": None, "ablate": [], "mechanism": None, "step": None}
    more = {"max_tokens": 2, "temperature": 0.0, "seed": 0, "layer": 0, "head": 0}
    asked = [("/explorer/captures", base, field) for field in base] + [("/explorer/generate", base | more, field) for field in base | more]
    for path, body, field in asked:
        for value in NASTY:
            for given in [value, [value], [{"layer": layer["name"], "head": value}]] if field == "ablate" else [value]:
                status, _, answer = post(open_served, path, body | {field: given})
                assert status in (200, 400, 413), (path, field, given, status, answer)
                if status != 200:
                    assert "\n" not in answer["error"]["message"] and len(answer["error"]["message"]) < 2000, answer
    dice = random.Random(0)
    kinds = ["tile", "allowed", "values", "column", "maxima", "queries", "keys", "norms", "bias", "gradients", "statistics", "rows", "x"]
    for _ in range(300):
        numbers = [str(dice.choice((0, 0, 0, 1, 2, 7, 14, 15, 16, 99, 10**8, 10**9))) for _ in range(dice.randrange(6))]
        key = "/".join([dice.choice(kinds), *numbers])
        status, _, answer = open_served.ask("GET", f"/explorer/captures/{dice.choice((1, 1, 1, 99))}/{key}")
        assert status in (200, 400, 404), (key, status, answer)
    assert post(open_served, "/explorer/captures", {"text": TEXT})[0] == 200


def test_mechanisms_are_those_that_the_page_offers(open_served):
    """Not any that a client could describe: settings may ask for memory without end."""
    status, _, answer = post(
        open_served, "/explorer/captures", {"text": TEXT, "mechanism": "random_synthesizer(heads=4, max_length=200000)"}
    )
    assert status == 400 and "mechanism" in answer["error"]["message"]


def test_generation_has_a_time_limit(open_served, monkeypatch):
    monkeypatch.setattr(open_served.service.explorer, "seconds", 0.0)
    found = raw(open_served, "/explorer/generate", {"text": TEXT, "max_tokens": 50}).decode()
    assert '"code":"timeout"' in found and found.count("data:") <= 3


def by_label(label: str) -> str:
    return f"document.querySelector('[aria-label={json.dumps(label)}]')"


def press(browser: Browser, text: str) -> None:
    browser.run(f"[...document.querySelectorAll('button')].find((one) => one.textContent === {json.dumps(text)}).click()")


APP = "document.querySelector('.rx').explorer"
CHIPS = "[...document.querySelectorAll('.rx-chip')].map((one) => one.textContent)"


def test_a_head_is_shown_as_it_was_ablated(browser, open_served):
    layer = "blocks.0.mixer.attention"
    for how in ("zero", "uniform"):
        header = post(open_served, "/explorer/captures", {"text": TEXT, "ablate": [{"layer": layer, "head": 1, "how": how}]})[2]
        number, described = next((n, one) for n, one in enumerate(header["maps"]) if one["name"] == layer)
        assert described["ablated"] == {"1": how} and described["scale"] == pytest.approx(16**-0.5, rel=1e-3)
        L = described["rows"]
        found = np.frombuffer(raw(open_served, f"/explorer/captures/{header['id']}/values/{number}/1/0/{L}"), "<f4").reshape(L, L)
        uniform = np.tril(np.ones((L, L))) / np.arange(1, L + 1)[:, None]
        np.testing.assert_allclose(found, uniform if how == "uniform" else np.zeros((L, L)), atol=1e-6)


def test_a_link_opens_the_same_text_ablations_and_view(browser, open_served):
    browser.open(open_served.url)
    submit(browser, "Hello & <b>friends</b>")
    browser.run(f"{APP}.set({{map: 0, head: 1, view: 'why'}})")
    press(browser, "uniform")
    browser.wait(f"{APP}.captures.length === 2")
    browser.run(f"{APP}.set({{query: 5, key: 2}})")
    browser.settle()
    link = browser.run("location.href")
    assert "measure" not in link and "undefined" not in link
    shown = browser.run(f"(({{captures, capture, ...rest}}) => rest)({APP}.state)")
    browser.open(link)
    browser.wait("document.querySelector('.rx')?.explorer?.opened")
    browser.settle()
    assert browser.run(f"(({{captures, capture, ...rest}}) => rest)({APP}.state)") == shown
    assert browser.run("document.querySelector('textarea').value") == "Hello & <b>friends</b>"
    assert browser.run(CHIPS) == ["blocks.0.mixer.attention 1: uniform×"]
    assert "ablated: uniform" in browser.run("document.querySelector('.rx-controls:not(.rx-choices)').textContent")
    browser.wait("document.querySelector('.rx-why').textContent.includes('This head is ablated')")
    browser.open(f"{open_served.url}/#view=gradients&measure=undefined&query=5&map=7777777777777&scale=odd")  # a view, but of which text?
    submit(browser, "Other")
    assert browser.run(f"[{APP}.state.query, {APP}.state.scale, {APP}.state.measure ?? null]") == [None, "linear", None]
    assert browser.errors == []


def test_result_and_chips_are_those_of_the_capture_that_is_shown(browser, open_served):
    browser.open(open_served.url)
    submit(browser, "Hello")
    plain = browser.run("document.querySelector('.rx-result').textContent")
    press(browser, "zero")
    browser.wait(f"{APP}.captures.length === 2")
    browser.run("document.querySelector('form').requestSubmit()")
    browser.wait(f"{APP}.captures.length === 3")
    names = browser.run(f"[0, 1, 2].map((n) => {APP}.captureName(n))")
    assert len(set(names)) == 3 and all(name.startswith("Hello") for name in names) and "zero" in names[1]
    changed = browser.run("document.querySelector('.rx-result').textContent")
    assert "unchanged model" in changed and len(browser.run(CHIPS)) == 1
    browser.run(f"{APP}.set({{capture: 0}})")
    assert browser.run("document.querySelector('.rx-result').textContent") == plain and browser.run(CHIPS) == []
    browser.run("document.querySelector('textarea').value = 'typed meanwhile'")
    browser.run(f"{APP}.set({{capture: 1}})")
    assert browser.run("document.querySelector('.rx-result').textContent") == changed and len(browser.run(CHIPS)) == 1
    assert browser.run("document.querySelector('textarea').value") == "typed meanwhile"
    assert browser.errors == []


@pytest.fixture(scope="module")
def question_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    task = find_task("question-answering")
    example = write_example(task, folder)
    train(task, example.options, replace(task.default_train, steps=2), folder / "run", settings=example.settings, progress=False)
    return load_run(folder / "run")


def test_a_question_and_its_passage_have_a_field_each(browser, question_run):
    with LocalServed(question_run) as local:
        browser.open(local.url)
        browser.wait(by_label("Passage"))
        browser.run(f"{by_label('Question')}.value = 'the box?'; document.querySelector('form').requestSubmit()")
        assert not browser.run(f"{by_label('Passage')}.validity.valid")
        assert send(local.url, "/explorer/captures", b'{"text": "the box?"}', "application/json")[0] == 400
        with pytest.raises(NotSupported, match="expected a question and a passage") as refused:
            Playground.of_run(question_run).record("the box?", [])
        assert "--" not in str(refused.value)
        browser.run(f"{by_label('Passage')}.value = 'the box\\tis red\\nand the cup is 7'; document.querySelector('form').requestSubmit()")
        browser.wait("document.querySelector('.rx')?.explorer?.opened")
        assert browser.run(f"{APP}.captures[0].text") == "the box?\tthe box is red and the cup is 7"
        browser.errors.clear()  # of the refused request
        link = browser.run("location.href")
        browser.open(link)
        browser.wait("document.querySelector('.rx')?.explorer?.opened")
        assert browser.run("[...document.querySelectorAll('textarea')].map((one) => one.value)") == [
            "the box?",
            "the box is red and the cup is 7",
        ]
        assert browser.errors == []


def test_the_start_page_says_what_the_model_is_and_offers_an_example(browser, question_run, tmp_path):
    with LocalServed(question_run) as local:
        browser.open(local.url)
        browser.wait("document.querySelector('.rx-examples button')")
        about = browser.run("document.querySelector('.rx-model').textContent")
        assert question_run.model.facts.name in about and f"{question_run.model.max_length:,} tokens" in about
        browser.run("document.querySelector('.rx-examples button').click()")
        question, passage = browser.run("[...document.querySelectorAll('textarea')].map((one) => one.value)")
        assert question in ("the box?", "the cup?") and passage.startswith("the box is ")
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait("document.querySelector('.rx')?.explorer?.opened")
        assert browser.errors == []


@pytest.mark.parametrize("name", ["language", "masked", "classify", "label", "translation", "summarization"])
def test_the_example_is_of_the_data_of_the_run_and_can_be_read(name, tmp_path):
    task = find_task(name)
    example = write_example(task, tmp_path)
    train(task, example.options, replace(task.default_train, steps=1), tmp_path / "run", settings=example.settings, progress=False)
    playground = Playground.of_run(load_run(tmp_path / "run"))
    text = playground.example()
    words = re.findall(r'[^\s"{}]+', Path(example.options.data).read_text())
    assert text.split()[0] in words and all(any(one.startswith(word) for one in words) for word in text.split())  # the last may be cut
    assert playground.record(text, [])
    for path in tmp_path.glob("*.*"):
        path.unlink()
    assert playground.example() == ""


def test_a_pair_has_a_second_field(browser, tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"a {n}\tb {n % 2}\t{'yes' if n % 2 else 'no'}\n" for n in range(60)))
    task = find_task("classify")
    example = write_example(task, tmp_path)
    options = replace(example.options, data=str(tmp_path / "pairs.tsv"))
    train(task, options, replace(task.default_train, steps=1), tmp_path / "run", settings=example.settings, progress=False)
    with LocalServed(load_run(tmp_path / "run")) as local:
        browser.open(local.url)
        browser.wait("document.querySelector('.rx-examples button')")
        assert browser.run(f"{by_label('Second text')}.hidden")
        press(browser, "Add a second text")
        assert not browser.run(f"{by_label('Second text')}.hidden")
        browser.run("document.querySelector('.rx-examples button').click()")
        assert browser.run(f"{by_label('Second text')}.value").startswith("b ")
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait("document.querySelector('.rx')?.explorer?.opened")
        assert "\t" in browser.run(f"{APP}.captures[0].text") and browser.errors == []
