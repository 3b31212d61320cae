"""A headless Chromium, spoken to over its debugging pipe: JSON messages that end in a zero byte, in on descriptor 3, out on 4."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe")


def find() -> str | None:
    """The program, if this machine has it."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page; `problems` are the exceptions, console errors, refused and failed requests that it told of."""

    def __init__(self, profile: Path):
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        flags = " ".join((*_FLAGS, f"--user-data-dir={profile}"))
        shell = f"exec '{find()}' {flags} about:blank 3<&{to_read} 4>&{to_write}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", shell], pass_fds=(to_read, to_write), **quiet)
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", None
        self.problems: list[str] = []
        self._events: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Loads a file, as a screen of that size shows it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + 60
        while "Page.loadEventFired" not in self._events:
            assert time.monotonic() < deadline, f"{path} did not load"
            self._receive(1.0)
        self.settle()

    def settle(self) -> None:
        """Waits for two frames, in which the page draws what it was asked to."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def value(self, expression: str):
        """What an expression comes to in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key on whatever has the focus."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more) -> None:
        """A move, press, release or turn of the wheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A PNG of the whole page, or of what is in sight."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def call(self, method: str, **params):
        """One command and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self._receive(1.0, self._number)
            if answer is not None:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
        raise AssertionError(f"the browser did not answer {method}")

    def _receive(self, timeout_s: float, number: int = 0):
        """The answer of that number, None when something else came, or nothing."""
        if b"\0" not in self._rest:
            if not select.select([self._in], [], [], timeout_s)[0]:
                return None
            self._rest += os.read(self._in, 1 << 20)
            return None
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        if message.get("id") == number:
            return message
        self._note(message.get("method", ""), message.get("params", {}))
        return None

    def _note(self, method: str, params: dict) -> None:
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:", "about:")):
            self.problems.append(f"asked for {params['request']['url']}")
        elif method == "Network.loadingFailed":
            self.problems.append(params["errorText"])

    def close(self) -> None:
        """Ends the browser, by force when it does not end by itself."""
        try:
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            os.close(self._in)
