"""A headless Chromium, spoken to over its pipe: no driver and no package is needed.

The browser of the machine is taken, from its distribution's package ``chromium``.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def browser_path() -> str | None:
    """The browser of the machine."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Failed(AssertionError):
    """A script of the page threw."""


class Page:
    """One page. ``problems`` has what the page wrote as an error, also what its policy refused."""

    def __init__(self, read: BufferedReader, write: BufferedWriter) -> None:
        self._read, self._write = read, write
        self._numbers = itertools.count(1)
        self._rest = b""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        made = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session: str = made["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of Chromium's protocol, and its answer."""
        return self._send(method, parameters, self._session)

    def _send(
        self, method: str, parameters: dict[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            heard = self._next()
            if heard.get("id") == number:
                if "error" in heard:
                    raise Failed(f"{method}: {heard['error']}")
                result: dict[str, Any] = heard["result"]
                return result
            self._note(heard)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._read.read1()
            if not more:
                raise Failed("the browser has ended")
            self._rest += more
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, said = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(said["exceptionDetails"])[:1000])
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog: {said['message']}")

    # -- what a person does ---------------------------------------------------------------

    def screen(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """A screen of that size, of a person who prefers dark or light pages."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Load a page, with its modules."""
        self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def js(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise Failed(f"{script}: {json.dumps(found['exceptionDetails'])[:1000]}")
        return found["result"].get("value")

    def until(self, script: str, timeout: float = 30.0) -> None:
        """Wait until an expression is true."""
        ends = time.monotonic() + timeout
        while not self.js(f"!!({script})"):
            if time.monotonic() > ends:
                shown = self.js("document.body.innerText")[:2000]
                raise Failed(f"not within {timeout:g} s: {script}\n{self.problems}\n{shown}")
            time.sleep(0.05)

    def press(self, key: str, *, control: bool = False) -> None:
        """One key, by its name: Tab, Enter, ArrowDown, .."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowDown": 40}
        common: dict[str, Any] = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": codes[key],
            "modifiers": 2 if control else 0,
        }
        text = {"Enter": "\r", " ": " "}.get(key)
        kind = {"text": text} if text and not control else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **kind)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Text, into what has the focus."""
        self.send("Input.insertText", text=text)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """A screenshot as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a new browser, which keeps its files in ``folder``."""
    path = browser_path()
    if path is None:
        raise AssertionError("there is no browser: see browser_path")
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()

    # The browser reads its descriptor 3 and writes to 4, whatever they are called here.
    become = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
        " os.execv(sys.argv[3], sys.argv[3:])"
    )
    pipes = (str(from_us), str(to_us))
    with (folder / "browser.log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", become, *pipes, path, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    os.close(from_us)
    os.close(to_us)
    try:
        with os.fdopen(from_browser, "rb") as read, os.fdopen(to_browser, "wb") as write:
            yield Page(read, write)
    finally:
        process.terminate()
        process.wait(30)
