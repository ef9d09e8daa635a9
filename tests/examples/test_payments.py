"""The bank as its user meets it: one command, HTTP, and processes that are killed under it."""

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
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 90.0


class Bank:
    """`python -m examples.payments up`, and what is asked of it."""

    def __init__(self, home: Path, config: Mapping[str, Any], name: str) -> None:
        self.home = home
        self.port = _free_port()
        options = [word for key, value in config.items() for word in ("--option", f"{key}={value}")]
        address = ["--bootstrap", config["bootstrap.servers"], *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._run = [sys.executable, "-m", "examples.payments"]
        self._options: Any = {"cwd": ROOT, "env": environment, "text": True}
        words = [
            "up",
            "--home",
            str(home),
            "--port",
            str(self.port),
            "--accounts",
            "4",
            "--notify-above",
            "3000",
        ]
        self.process = subprocess.Popen([*self._run, *words, *address], **self._options)

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.get("/accounts/account-3")[0] == 200:
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, "the bank has ended"
            assert time.monotonic() < deadline, "the bank does not answer"
            time.sleep(0.1)

    def get(self, path: str) -> tuple[int, Any]:
        return _call(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def page(self, path: str) -> str:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(answer.read().decode())

    def pay(self, key: str, **payment: object) -> tuple[int, Any]:
        headers = {"content-type": "application/json", "Idempotency-Key": key}
        url = f"http://127.0.0.1:{self.port}/payments"
        return _call(urllib.request.Request(url, json.dumps(payment).encode(), headers))

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


@pytest.fixture
def bank(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Bank]:
    made = Bank(tmp_path, fleet.client_config(), unique("payments"))
    yield made
    made.end()


@pytest.mark.timeout(300)  # a dozen processes start, one after the other
def test_the_bank_answers_over_http_and_survives_the_death_of_its_processes(bank: Bank) -> None:
    bank.wait()
    status, paid = bank.pay("k1", **{"from": "account-1", "to": "account-2", "amount": 5000})
    assert (status, paid["state"]) == (200, "paid")
    status, both = bank.get(f"/payments/k1?after={paid['token']}")
    assert (status, {name: each["balance"] for name, each in both["accounts"].items()}) == (
        200,
        {"account-1": 95_000, "account-2": 105_000},
    )
    assert [found["request"] for found in bank.get(f"/search?q=account-2&after={paid['token']}")[1]] == ["k1"]
    page = bank.page("/payments/k1")
    assert ("950.00" in page, "1050.00" in page) == (True, True)
    assert "All accounts: 4000.00" in bank.page("/?q=k1")
    _wait_for(lambda: "incoming" in {row["kind"] for row in bank.get("/facts")[1]}, "the warehouse")
    bank.kill("executor")
    bank.kill("service")
    bank.wait()
    again = bank.pay("k1", **{"from": "account-1", "to": "account-2", "amount": 5000})
    assert again == (status, paid)
    declined = bank.pay("k2", **{"from": "account-1", "to": "account-2", "amount": 10**9})
    assert (declined[0], declined[1]["reason"]) == (409, "insufficient funds")
    for amount in (-5, 0, 1.5, "7"):
        assert bank.pay("k3", **{"from": "account-1", "to": "account-2", "amount": amount})[0] == 422
    assert (
        bank.pay("=k4", **{"from": "account-1", "to": "account-2", "amount": 5})[1]["error"]["code"]
        == "PEN-7002"
    )
    assert bank.get("/accounts/nobody")[0] == 404
    assert [line["amount"] for line in bank.get("/accounts/account-1/statement")[1]] == [-5000, 100_000]
    assert "payment.outgoing" in bank.command("pay", "account-2", "account-3", "25", "--agreement").stdout
    _wait_for(lambda: "spending.reached" in bank.command("trace", "k1").stdout, "the notifier to notice")
    checked = bank.command("check")
    assert (checked.returncode, checked.stdout) == (0, "every cent is where the log says it is\n")


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {START_SECONDS:g} s for {what}"
        time.sleep(0.1)


def _call(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
