"""A real Chromium without a window, driven through its debugging pipe: no driver and no package beside the browser."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

QUIET = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe", "--window-size=1400,1000",
)  # fmt: skip


def installed() -> str | None:
    """The browser of this machine, or None; Debian: apt-get install chromium."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)


class Chromium:
    """One page in one browser; a context manager. Messages are JSON, each ended by a zero byte (Chrome DevTools Protocol)."""

    def __enter__(self) -> Chromium:
        program = installed()
        assert program is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for pair in (os.pipe(), os.pipe()) for end in pair]
        read_there, self.write_here, self.read_here, write_there = ends

        def wire() -> None:
            os.dup2(read_there, 3)
            os.dup2(write_there, 4)

        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium's sandbox refuses root
        self.process = subprocess.Popen(
            [program, *QUIET, *sandbox, f"--user-data-dir={self.profile.name}", "about:blank"],
            close_fds=False, preexec_fn=wire, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        self.buffer, self.sent, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.write_here)
        os.close(self.read_here)
        self.profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result; events that come before it are kept in `events`."""
        self.sent += 1
        message: dict[str, Any] = {"id": self.sent, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write_here, json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != self.sent:
            self.events.append(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def open(self, page: Path) -> None:
        """Load a local file and wait until it is loaded."""
        self.visit(page.resolve().as_uri())

    def visit(self, url: str) -> None:
        """Load an address and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"].get("exception", done["exceptionDetails"]))
        return done["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "", windowsVirtualKeyCode=KEYS.get(key, 0)
            )

    def screenshot(self, path: Path, dark: bool = False) -> None:
        """Write the whole page as PNG, however long it is."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.read_here, 1 << 20)
            if not part:
                raise RuntimeError("Chromium ended")
            self.buffer += part
        line, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(line)


KEYS = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
