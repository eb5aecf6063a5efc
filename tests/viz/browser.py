"""Drive headless Chromium over its debugging pipe: open a page, send keys and the mouse, evaluate, take screenshots."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
)


class Browser:
    """A running Chromium. Commands are those of the DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        """Start it. Its file descriptors 3 and 4 are the pipe, which only bash can redirect by any number."""
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        arguments = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}"]
        command = f'exec "$@" 3<&{reads} 4>&{writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", *arguments], pass_fds=(reads, writes), stderr=subprocess.DEVNULL
        )
        os.close(reads)
        os.close(writes)
        self._number, self._rest, self._events = 0, b"", list[dict[str, Any]]()

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                return dict(found["result"])
            self._events.append(found)

    def wait(self, event: str) -> None:
        """Wait for an event that was not awaited before."""
        while not any(found.get("method") == event for found in self._events):
            self._events.append(self._next())
        self._events = [found for found in self._events if found.get("method") != event]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


class Page:
    """A page in a window of `width` by `height` CSS pixels."""

    def __init__(
        self, browser: Browser, file: Path, *, width: int = 1200, height: int = 800, dark: bool = False
    ) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=file.resolve().as_uri())
        browser.wait("Page.loadEventFired")
        self.rest()

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """Evaluate an expression of the page's script, and wait for it if it is a promise."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def rest(self) -> None:
        """Wait until what was changed is drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def key(self, key: str, *, shift: bool = False) -> None:
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **extra)
        self.rest()

    def write(self, text: str) -> None:
        self._call("Input.insertText", text=text)
        self.rest()

    def mouse(self, kind: str, x: float, y: float, **params: Any) -> None:
        """Send "mouseMoved", "mousePressed", "mouseReleased" or "mouseWheel"."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)
        self.rest()

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
