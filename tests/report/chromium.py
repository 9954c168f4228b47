"""A headless Chromium, driven over its debugging pipe: no driver, no library, no port."""

import base64
import itertools
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

BINARY = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
_FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--remote-debugging-pipe",
    ),
)


class Tab:
    """One page, and everything it has complained about."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write, self._read = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb")
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._happened: set[str] = set()
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters):
        """Call a method of the DevTools protocol and return its result."""
        wanted = next(self._ids)
        message = {"id": wanted, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == wanted:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a page and wait until it has loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._happened.clear()
        self.ask("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._happened:
            self._next()

    def run(self, script: str):
        """Return the value of a piece of JavaScript, which may be a promise."""
        found = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def first_paint_ms(self) -> float:
        """Return when the first content was on the screen, from the start of loading."""
        return self.run(
            "new Promise(done => new PerformanceObserver("
            "list => list.getEntriesByName('first-contentful-paint')"
            ".forEach(entry => done(entry.startTime))).observe({type: 'paint', buffered: true}))"
        )

    def screenshot(self, file: Path, full: bool = False) -> None:
        """Save what is seen, or the whole page."""
        file.write_bytes(
            base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=full)["data"])
        )

    def _next(self):
        data = b""
        while not data.endswith(b"\0"):
            chunk = self._read.read1(1 << 20)
            assert chunk, "the browser has gone"
            data += chunk
        *earlier, last = [json.loads(part) for part in data[:-1].split(b"\0")]
        for message in [*earlier, last]:
            self._note(message)
        answers = [message for message in [*earlier, last] if "id" in message]
        return answers[0] if answers else last

    def _note(self, message) -> None:
        method, parameters = message.get("method", ""), message.get("params", {})
        self._happened.add(method)
        if method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(parameters))
        elif method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])


@contextmanager
def browser(folder: Path):
    """Start Chromium with an empty profile in `folder`; gives a Tab."""
    to_child, to_browser = os.pipe()
    from_browser, from_child = os.pipe()

    def wire() -> None:  # the pipe is file descriptors 3 and 4 of the browser
        os.dup2(to_child, 3)
        os.dup2(from_child, 4)

    # Above 4, so that `wire` overwrites neither end before it is used.
    command = [str(BINARY), *_FLAGS, f"--user-data-dir={folder}"]
    child = subprocess.Popen(command, preexec_fn=wire, pass_fds=(3, 4), stderr=subprocess.DEVNULL)
    os.close(to_child)
    os.close(from_child)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        child.terminate()
        child.wait(20)
