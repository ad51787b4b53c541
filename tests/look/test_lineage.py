"""The lineage page: everything about every mechanism in one file, and sliders that compute what they say; in a real browser."""

from __future__ import annotations

import base64
import json
import re

import pytest
import torch
from tests.look.browser import CHROMIUM, Browser

from regard import MECHANISMS, SoftmaxAttention, causal, tokens, window
from regard.errors import BadFile
from regard.look.examples import example
from regard.look.lineage import costs_of, document, measured_costs, page, save_html

browsers = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


def comparison(causal: bool = True, machine: str = "a machine", **seconds: float) -> str:
    """What `regard compare --json` writes, at one length."""
    rows = [{"mechanism": name, "length": 64, "operation": "forward", "status": "measured", "seconds": s} for name, s in seconds.items()]
    rows.append({"mechanism": "refuses", "length": 64, "operation": "forward", "status": "refused", "seconds": None})
    options = {"lengths": [64], "width": 32, "heads": 2, "batch_size": 1, "causal": causal, "dtype": "float32"}
    return json.dumps({"format": "regard.comparison", "machine": machine, "date": "2026-01-02", "options": options, "rows": rows})


def test_every_mechanism_is_there_with_formula_advice_and_the_weights_of_its_example():
    data = document(costs_of([comparison(softmax=1.0)]))
    assert [one["name"] for one in data["mechanisms"]] == [mechanism.facts.name for mechanism in MECHANISMS]
    for one, mechanism in zip(data["mechanisms"], MECHANISMS, strict=True):
        assert one["formula"] == mechanism.facts.formula and one["use"] and one["avoid"] and data["families"][one["family"]]["title"]
    softmax = next(one for one in data["mechanisms"] if one["name"] == "softmax")["picture"]
    weights_LM = example(SoftmaxAttention, softmax["size"]).view().weights_BHLM[0, 0]
    cells_LM = torch.tensor(list(base64.b64decode(softmax["cells"]))).view(32, 32)
    assert float((cells_LM / 255 * softmax["top"] - weights_LM).abs().max()) <= 1 / 255


def test_costs_are_joined_by_mechanism_and_causality():
    parts = [comparison(softmax=1.0, linear=0.5), comparison(softmax=3.0, local=0.25), comparison(False, efficient=2.0)]
    costs = costs_of(parts)
    assert (costs["machine"], costs["date"], costs["lengths"]) == ("a machine", "2026-01-02", [64])
    first, second = costs["groups"]
    assert {name: curves["forward"] for name, curves in first["seconds"].items()} == {"softmax": [2.0], "linear": [0.5], "local": [0.25]}
    assert first["causal"] and not second["causal"] and second["seconds"]["efficient"]["train"] == [None]


@pytest.mark.parametrize("wrong", [["{"], ['{"rows": 1}'], [], [comparison(machine="one"), comparison(machine="two")], [b"\xff"]])
def test_costs_that_are_none_are_one_clear_error(wrong):
    with pytest.raises(BadFile, match="costs"):
        costs_of(wrong)


def test_the_measured_costs_cover_every_mechanism():
    costs = measured_costs()
    measured = {name for group in costs["groups"] for name, curves in group["seconds"].items() if any(curves["forward"])}
    assert measured >= {mechanism.facts.name for mechanism in MECHANISMS}, "measure it: see docs/costs.py"
    assert "torch" in costs["machine"] and re.fullmatch(r"\d{4}-\d\d-\d\d", costs["date"])


def test_the_file_asks_for_nothing_and_data_cannot_end_its_element():
    data = document(costs_of([comparison(softmax=1.0)]))
    data["mechanisms"][0]["summary"] = "</script><img src=x onerror=alert(1)>"
    text = page(data)
    assert "default-src 'none'" in text and "unsafe" not in text and "</script><img" not in text
    assert not re.search(r"""(?:src|srcset)\s*=|url\(|@import|<link[^>]+stylesheet""", text.split("<script", 1)[0])


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return save_html(tmp_path_factory.mktemp("lineage") / "lineage.html").as_uri()


LINEAGE = "document.querySelector('.lx').lineage"


def show(browser: Browser, url: str, **size) -> None:
    browser.open(url, **size)
    browser.wait("document.querySelector('.lx')?.lineage?.chosen")
    browser.settle()


@browsers
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_mechanism_by_keyboard_without_a_request_or_a_complaint(browser, address, width, dark):
    show(browser, address, width=width, height=900, dark=dark)
    browser.run(f"{LINEAGE}.buttons.get('gaussian_window').focus()")
    browser.key("Home")
    seen = set()
    for _ in MECHANISMS:
        name = browser.run("document.activeElement.dataset.name")
        seen.add(name)
        assert browser.run("document.querySelector('.lx-detail h2').firstChild.textContent") == name
        browser.key("ArrowRight")
    assert seen == {mechanism.facts.name for mechanism in MECHANISMS}
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "the page must not scroll sideways"
    assert browser.run("document.querySelectorAll('.lx-cost').length") == 1
    assert browser.errors == [] and all(url.startswith(("file:", "data:", "about:")) for url in browser.requests)


def card(browser: Browser, number: int, **values: float) -> dict:
    """The state of one card after its sliders were moved, by name."""
    for name, value in values.items():
        browser.run(
            f"(() => {{ const input = {LINEAGE}.cards[{number}].{name}.querySelector('input'); input.value = {value};"
            " input.dispatchEvent(new Event('input')); })()"
        )
    return browser.run(f"{LINEAGE}.cards[{number}].state")


@browsers
def test_temperature_leads_from_the_mean_to_the_nearest_neighbour(browser, address):
    show(browser, address)
    for place in (-4, -2, 0, 1):
        state = card(browser, 0, temperature=place, query=0.4)
        keys, values = (torch.tensor(state[name], dtype=torch.float64) for name in ("keys", "values"))
        weights = (-((0.4 - keys) ** 2) / 10**place).softmax(-1)
        torch.testing.assert_close(torch.tensor(state["weights"], dtype=torch.float64), weights)
        assert state["output"] == pytest.approx(float(weights @ values))
    assert card(browser, 0, temperature=-4)["output"] == pytest.approx(0.84, abs=1e-3)  # of the key at 0.36
    assert browser.errors == []


@browsers
def test_the_window_is_that_of_the_library(browser, address):
    show(browser, address)
    for width, first in ((1, 0), (5, 2), (32, 0)):
        state = card(browser, 1, width=width, first=first)
        x_BLHK = torch.tensor(state["tokens"], dtype=torch.float64)[None, :, None]
        pattern = causal & (window(width - 1) | tokens(*range(first))) if first else causal & window(width - 1)
        weights_LM = SoftmaxAttention().weights(x_BLHK, x_BLHK, pattern)[0, 0]
        torch.testing.assert_close(torch.tensor(state["weights"], dtype=torch.float64), weights_LM)
        assert state["pairs"] == int(pattern.mask(32, 32).sum())
    assert state["kept"] == pytest.approx(1.0)


@browsers
def test_more_random_features_come_nearer_to_softmax(browser, address):
    show(browser, address)
    errors = []
    for power in (0, 5, 10):
        state = card(browser, 2, features=power)
        x, w = (torch.tensor(state[name], dtype=torch.float64) for name in ("tokens", "directions"))
        phi = (x @ w.T - x.square().sum(-1, keepdim=True) / 2).exp()
        expected = phi @ phi.T / (phi @ phi.T).sum(-1, keepdim=True)
        torch.testing.assert_close(torch.tensor(state["weights"], dtype=torch.float64), expected)
        exact = (x @ x.T).softmax(-1)
        assert state["error"] == pytest.approx(float((expected - exact).norm() / exact.norm()))
        errors.append(state["error"])
    assert len(w) == 1024 and errors[0] > errors[1] > errors[2] and errors[2] < 0.25
    torch.testing.assert_close(w.mean(), torch.tensor(0.0, dtype=torch.float64), atol=0.05, rtol=0)
    torch.testing.assert_close(w.std(), torch.tensor(1.0, dtype=torch.float64), atol=0.05, rtol=0)


@browsers
def test_every_hash_round_finds_more(browser, address):
    show(browser, address)
    found = []
    for rounds in (1, 3, 8):
        state = card(browser, 3, rounds=rounds, buckets=8)
        hashes = torch.tensor(state["hashes"])
        assert hashes.shape == (rounds, 32) and int(hashes.max()) < 8
        met = (hashes[:, :, None] == hashes[:, None, :]).any(0)
        x = torch.tensor(state["tokens"], dtype=torch.float64)
        assert state["pairs"] == int(met.sum())
        assert state["found"] == pytest.approx(float(((8 * x @ x.T).softmax(-1) * met).sum() / 32))
        found.append(state["found"])
    assert found[0] < found[1] < found[2] and found[2] > state["pairs"] / 1024  # better than chance
