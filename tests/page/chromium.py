"""Headless Chromium, driven by its DevTools protocol."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAITING_S = 30.0


def find_chromium():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A browser with one page; events that it has sent are kept."""

    def __init__(self):
        connect = pytest.importorskip("websockets.sync.client").connect
        program = find_chromium()
        if program is None:
            pytest.skip("no Chromium on this machine")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        profile = Path(self._folder.name)
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
        quiet = ("--disable-background-networking", "--disable-component-update", "--hide-scrollbars")
        self._process = subprocess.Popen(
            [program, *options, *quiet, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port, path = self._address(profile / "DevToolsActivePort")
        self._open = contextlib.ExitStack()
        self._socket = self._open.enter_context(connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None))
        self._number, self.events, self._session = 0, [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def _address(self, file):
        end = time.monotonic() + WAITING_S
        while time.monotonic() < end:
            if file.is_file() and len(lines := file.read_text().splitlines()) == 2:
                return lines
            time.sleep(0.05)
        raise TimeoutError(f"{file}: expected it within {WAITING_S} s")

    def close(self):
        self._open.close()
        self._process.terminate()
        self._process.wait(WAITING_S)
        self._folder.cleanup()

    def send(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(WAITING_S))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def evaluate(self, script):
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def size(self, width, height=900):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        time.sleep(0.4)  # the page waits 150 ms before it draws anew

    def theme(self, name, media=""):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, path, ready="document.documentElement?.dataset.ready === 'true'"):
        self.events.clear()
        self.send("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + WAITING_S
        while not self.evaluate(ready):
            if time.monotonic() > end:
                raise TimeoutError(f"{path}: expected it to be ready within {WAITING_S} s; {self.complaints()}")
            time.sleep(0.05)

    def key(self, name, text=None):
        """Press and release a key; `text` is what it writes."""
        codes = {"Enter": 13, " ": 32, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
        key = {"key": name, "code": {" ": "Space"}.get(name, name), "windowsVirtualKeyCode": codes[name]}
        self.send("Input.dispatchKeyEvent", type="keyDown", **key, **({} if text is None else {"text": text}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, selector):
        """Click in the middle of an element as a mouse does, and fail where something else lies there."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector):
        """Move the mouse to the middle of an element."""
        x, y = self._middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        time.sleep(0.2)  # what is shown waits for a frame

    def _middle(self, selector):
        x, y, is_on_top = self.evaluate(
            f"""(() => {{
            const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", inline: "nearest", behavior: "instant"}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            const top = document.elementFromPoint(x, y);
            return [x, y, e === top || e.contains(top) || Boolean(top?.contains(e))];
            }})()"""
        )
        assert is_on_top, f"{selector}: something lies over it"
        return x, y

    def requests(self):
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self):
        """What the console has of warnings and errors, and exceptions."""
        texts = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                texts.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                texts.append(str(params["args"]))
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                texts.append(params["entry"]["text"])
        return texts

    def pdf(self, path):
        Path(path).write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"]))
