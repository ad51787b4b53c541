"""Chromium without a window, driven by the DevTools protocol through a pipe: no driver program, no port, no package."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
KEYS = {
    "Enter": 13,
    "Tab": 9,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    " ": 32,
}


class Browser:
    """One page. `errors` has what the console and the page complained about, `requests` every address that was asked for."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._numbers, self._buffer = itertools.count(1), b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (to_child, self._write), (self._read, from_child) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_child, from_child)]  # not 3 and 4, which they become in the child

        def connect() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--no-first-run",
        ]
        options += [
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            f"--user-data-dir={self._profile.name}",
        ]
        self._process = subprocess.Popen(
            [CHROMIUM, *options, "about:blank"], preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (to_child, from_child, *ends):
            os.close(end)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    # -- the protocol --------------------------------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command; events that arrive meanwhile are noted."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer is None:
                raise TimeoutError(f"{method}: no answer within a minute")
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                return None
            piece = os.read(self._read, 2**20)
            if not piece:
                raise RuntimeError("chromium has ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description") or about["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        return message

    # -- a page --------------------------------------------------------------------------------------------------------

    def open(self, url: str, width: int = 1280, height: int = 860, dark: bool = False) -> None:
        self.resize(width, height, dark)
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.errors.clear()  # those of the page before, too
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int, dark: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {seconds} seconds: {condition}; errors: {self.errors}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Until two frames have been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def key(self, *names: str, shift: bool = False) -> None:
        for name in names:
            about = {"key": name, "windowsVirtualKeyCode": KEYS.get(name, ord(name[0].upper())), "modifiers": 8 if shift else 0}
            text = {"Enter": "\r", " ": " "}.get(name, name if len(name) == 1 else "")
            self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def mouse(self, x: float, y: float, click: bool = False) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose_file(self, selector: str, path: Path | str) -> None:
        """As if a user had chosen it."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path: Path | str, selector: str | None = None) -> None:
        """The window as PNG, or one element of it."""
        clip = {}
        if selector is not None:
            box = self.run(
                f"(({{x, y, width, height}}) => ({{x, y, width, height}}))(document.querySelector('{selector}').getBoundingClientRect())"
            )
            clip = {"clip": {**box, "scale": 1}}
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))
