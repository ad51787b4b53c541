"""The widget in a real JupyterLab page, with a kernel: `make jupyter` installs JupyterLab and runs this."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

import pytest
from tests.look.browser import CHROMIUM, Browser
from tests.look.conftest import THREE, make_map

from regard.look import Maps

LAB = Path(os.environ.get("JUPYTER_LAB", Path(sys.prefix) / "jupyter" / "bin" / "jupyter-lab"))
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.skipif(not LAB.exists(), reason="JupyterLab is too large for every test run: make jupyter"),
]
SOURCE = Path(__file__).parent.parent.parent / "src"
SECONDS = 120  # to start a server, a page, a kernel and PyTorch


@pytest.fixture
def lab(tmp_path):
    """The address of a server whose folder has maps and a notebook that displays them."""
    words = ("the", "<b>cat</b>", "sat")
    Maps([make_map(THREE, query_labels=(words,), key_labels=(words,))]).save(tmp_path / "maps.npz")
    packages = [str(SOURCE), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {packages!r}\nfrom regard.look import Maps\nMaps.load('maps.npz')"
    cell = {"cell_type": "code", "id": "a", "execution_count": None, "metadata": {}, "outputs": [], "source": code}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    (tmp_path / "look.ipynb").write_text(json.dumps({"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "IdentityProvider.token": "",
        "ServerApp.root_dir": tmp_path,
        "ServerApp.allow_root": True,
    }
    options |= {
        "LabApp.expose_app_in_browser": True,
        "ServerApp.open_browser": False,
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    environment = os.environ | {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    environment |= {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [str(LAB), *(f"--{name}={value}" for name, value in options.items())]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path) as server:
        url, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{url}api", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.2)
        yield url
        server.terminate()
        server.wait(30)


def test_the_widget_mounts_in_jupyterlab(lab):
    browser = Browser()
    try:
        browser.open(f"{lab}lab/tree/look.ipynb?reset")
        browser.wait("window.jupyterapp?.shell?.currentWidget?.content?.widgets?.length === 1", SECONDS)
        browser.run("window.jupyterapp.shell.currentWidget.sessionContext.ready.then(() => true)")
        browser.run("window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)")
        browser.wait("document.querySelector('.jp-OutputArea .rx-embedded')?.explorer?.opened", SECONDS)
        browser.run("document.querySelector('[data-view=text]').click()")
        browser.wait("document.querySelectorAll('.rx-token').length === 3")
        assert browser.run("[...document.querySelectorAll('.rx-token')].map((one) => one.textContent)") == ["the", "<b>cat</b>", "sat"]
        browser.run("document.querySelectorAll('.rx-token')[2].click()")
        browser.wait("document.querySelector('.rx-embedded').explorer.state.query === 2")
        browser.run("document.querySelectorAll('.rx-token')[2].focus()")
        browser.key("ArrowLeft")  # the explorer's, not JupyterLab's
        browser.wait("document.querySelector('.rx-embedded').explorer.state.query === 1")
        browser.settle()
        if "JUPYTER_PICTURE" in os.environ:
            browser.screenshot(os.environ["JUPYTER_PICTURE"])
        assert [text for text in browser.errors if "rx" in text or "widget" in text.lower()] == []
    finally:
        browser.close()
