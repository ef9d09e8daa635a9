"""The example programs as their users start them: one command each, then HTTP and further commands."""

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
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.newsroom.assets import Asset

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 90.0
ACCOUNTS = 4


class Bank:
    """`python -m examples.payments up`, and what is asked of it."""

    def __init__(self, home: Path, config: Mapping[str, Any], name: str) -> None:
        self.home = home
        self.port = free_port()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._run = [sys.executable, "-m", "examples.payments"]
        self._options: Any = {"cwd": ROOT, "env": environment, "text": True}
        words = ["up", "--home", str(home), "--port", str(self.port), "--name", name]
        demonstration = ["--accounts", str(ACCOUNTS), "--notify-above", "3000"]
        self.process = subprocess.Popen(
            [*self._run, *words, *demonstration, *address_of(config)], **self._options
        )

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                # Each stands in a partition of its own pace.
                if all(self.get(f"/accounts/account-{number}")[0] == 200 for number in range(ACCOUNTS)):
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, "the bank has ended"
            assert time.monotonic() < deadline, "the bank does not answer"
            time.sleep(0.1)

    def get(self, path: str) -> tuple[int, Any]:
        return call(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def page(self, path: str) -> str:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(answer.read().decode())

    def pay(self, key: str, **payment: object) -> tuple[int, Any]:
        headers = {"content-type": "application/json", "Idempotency-Key": key}
        url = f"http://127.0.0.1:{self.port}/payments"
        return call(urllib.request.Request(url, json.dumps(payment).encode(), headers))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._run, *words, "--home", str(self.home)]
        return subprocess.run(command, capture_output=True, check=False, **self._options)

    def kill(self, word: str) -> None:
        """kill -9 of the processes of one kind; whoever started them starts them again."""
        for child in psutil.Process(self.process.pid).children():
            # One that has ended meanwhile, or is about to be waited for, need not be killed.
            with contextlib.suppress(psutil.NoSuchProcess):
                if word in child.cmdline():
                    child.kill()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class Paper:
    """`python -m examples.newsroom up`, and what is asked of it."""

    def __init__(self, home: Path, config: Mapping[str, Any] | None, name: str = "newsroom") -> None:
        """Without a config, on a Kafka of its own."""
        self.home, self.port = home, free_port()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._run = [sys.executable, "-m", "examples.newsroom"]
        self._options: Any = {"cwd": ROOT, "env": environment, "text": True}
        words = ["up", "--home", str(home), "--port", str(self.port), "--name", name]
        self.process = subprocess.Popen([*self._run, *words, *address_of(config)], **self._options)

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "old mill" not in self.page("/"):
            assert self.process.poll() is None, "the newsroom has ended"
            assert time.monotonic() < deadline, "the newsroom does not answer"
            time.sleep(0.1)

    def page(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return ""

    def submit(self, asset: Asset) -> tuple[int, Any]:
        headers = {"content-type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/assets"
        asked = urllib.request.Request(url, json.dumps(asset).encode(), headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def command(self, *words: str) -> str:
        command = [*self._run, *words, "--home", str(self.home)]
        return subprocess.run(command, capture_output=True, check=False, **self._options).stdout

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def address_of(config: Mapping[str, Any] | None) -> list[str]:
    if config is None:
        return []
    options = [word for key, value in config.items() for word in ("--option", f"{key}={value}")]
    return ["--bootstrap", config["bootstrap.servers"], *options]


def call(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
