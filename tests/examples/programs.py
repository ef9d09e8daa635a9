"""Starts the example programs as a user does: one command each, then HTTP and further commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.newsroom.assets import Asset

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 90.0
CALL_SECONDS = 60.0
ACCOUNTS = 4


class Program:
    """`python -m MODULE up`, and clients of it. Without a config, on a local Kafka that it starts."""

    def __init__(
        self, module: str, home: Path, config: Mapping[str, Any] | None, name: str, *flags: str
    ) -> None:
        self.home, self.port = home, free_port()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._run = [sys.executable, "-m", module]
        self._options: Any = {"cwd": ROOT, "env": environment, "text": True}
        up = ["up", "--home", str(home), "--port", str(self.port), "--name", name]
        self.process = subprocess.Popen([*self._run, *up, *flags, *kafka_flags(config)], **self._options)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        headers = {"content-type": "application/json", **headers}
        return call(urllib.request.Request(self.url(path), json.dumps(body).encode(), headers))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self._run, *arguments, "--home", str(self.home)]
        return subprocess.run(command, capture_output=True, check=False, **self._options)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class BankProgram(Program):
    def __init__(self, home: Path, config: Mapping[str, Any], name: str) -> None:
        flags = ["--accounts", str(ACCOUNTS), "--notify-above", "3000"]
        super().__init__("examples.payments", home, config, name, *flags)

    def wait(self) -> None:
        """Until all accounts are open; they are in several partitions."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if all(self.get(f"/accounts/account-{number}")[0] == 200 for number in range(ACCOUNTS)):
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, "the bank has ended"
            assert time.monotonic() < deadline, "the bank does not respond"
            time.sleep(0.1)

    def get(self, path: str) -> tuple[int, Any]:
        return self._known(urllib.request.Request(self.url(path)))

    def page(self, path: str) -> str:
        request = urllib.request.Request(self.url(path), headers={"accept": "text/html"})
        status, page = self._known(request, lambda response: response.read().decode())
        assert status == 200, page
        return str(page)

    def pay(self, key: str, **payment: object) -> tuple[int, Any]:
        headers = {"content-type": "application/json", "Idempotency-Key": key}
        return self._known(
            urllib.request.Request(self.url("/payments"), json.dumps(payment).encode(), headers)
        )

    def _known(
        self, request: urllib.request.Request, body: Callable[[IO[bytes]], Any] = json.load
    ) -> tuple[int, Any]:
        """The bank responds 504 while it cannot know, as during a rebalance: then its clients ask again."""
        deadline = time.monotonic() + START_SECONDS
        while (response := call(request, body))[0] == 504 and time.monotonic() < deadline:
            time.sleep(0.1)
        return response

    def kill(self, word: str) -> None:
        """kill -9 of the processes with this word in their command; the supervisor restarts them."""
        for child in psutil.Process(self.process.pid).children():
            # A child may have ended meanwhile.
            with contextlib.suppress(psutil.NoSuchProcess):
                if word in child.cmdline():
                    child.kill()


class NewsroomProgram(Program):
    def __init__(self, home: Path, config: Mapping[str, Any] | None, name: str = "newsroom") -> None:
        super().__init__("examples.newsroom", home, config, name)

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "old mill" not in self.page("/"):
            assert self.process.poll() is None, "the newsroom has ended"
            assert time.monotonic() < deadline, "the newsroom does not respond"
            time.sleep(0.1)

    def page(self, path: str) -> str:
        try:
            with urllib.request.urlopen(self.url(path), timeout=CALL_SECONDS) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return ""

    def submit(self, asset: Asset) -> tuple[int, Any]:
        return self.post("/assets", asset)


def kafka_flags(config: Mapping[str, Any] | None) -> list[str]:
    if config is None:
        return []
    options = [word for key, value in config.items() for word in ("--option", f"{key}={value}")]
    return ["--bootstrap", config["bootstrap.servers"], *options]


def call(request: urllib.request.Request, body: Callable[[IO[bytes]], Any] = json.load) -> tuple[int, Any]:
    """Status and body, JSON by default, of an error response too."""
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as response:
            return response.status, body(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, body(error)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
