"""Chromium without a window, spoken to by the DevTools protocol over a pipe: no further package."""

import base64
import fcntl
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_SECONDS = 120


class Browser:
    """One page of one browser. Its profile is thrown away."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, self.to_it = os.pipe()
        self.from_it, to_us = os.pipe()
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (from_us, to_us)]  # none is 3 or 4
        options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --mute-audio"
        options += " --autoplay-policy=no-user-gesture-required --remote-debugging-pipe"
        words = [CHROMIUM, *options.split(), f"--user-data-dir={self.profile.name}", "about:blank"]
        # It reads commands from descriptor 3 and answers on 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec 3<&{pipes[0]} 4>&{pipes[1]}; exec {shlex.join(words)}"],
            pass_fds=pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (from_us, to_us, *pipes):
            os.close(end)
        self.answers = b""
        self.number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command; return its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_it, json.dumps(message).encode() + b"\0")  # less than a pipe holds
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.answers:
            ready, _, _ = select.select([self.from_it], [], [], PATIENCE_SECONDS)
            assert ready, f"the browser has not answered for {PATIENCE_SECONDS} s"
            content = os.read(self.from_it, 1 << 16)
            assert content, "the browser has ended"
            self.answers += content
        first, self.answers = self.answers.split(b"\0", 1)
        found: dict[str, Any] = json.loads(first)
        return found

    def open(self, page: Path, width: int = 1280, dark: bool = False) -> None:
        """Load a file, in a window of this width and the reader's choice of colours."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, code: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        done = self.call(
            "Runtime.evaluate",
            expression=code,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def complaints(self) -> list[str]:
        """Return errors of the page's script, of its policy, and failed loads."""
        self.run("0")
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            entry = event.get("params", {}).get("entry", {})
            if event.get("method") == "Log.entryAdded" and entry["level"] == "error":
                found.append(entry["text"])
        return found

    def requested(self) -> list[str]:
        """Return the addresses that the page asked for."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def picture(self, path: Path, whole: bool = True, clip: dict[str, float] | None = None) -> None:
        """Write a PNG of the page, for eyes."""
        more = {"clip": clip | {"scale": 1}} if clip else {}
        done = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **more)
        path.write_bytes(base64.b64decode(done["data"]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to_it)
        os.close(self.from_it)
        self.profile.cleanup()
