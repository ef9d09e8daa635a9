"""Workers without any Kafka: how they are started, replaced and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import psutil
import pytest

from penstock.gateway.config import Broker, GatewayConfig
from penstock.gateway.settings import GatewaySettings, Routing
from penstock.gateway.supervisor import as_worker, hold_ports
from penstock.model.errors.gateway import ListenFailed
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.ground.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A worker says its process's number and then does what the word says until its parent's line ends.
PARENT = """
import os, signal, sys
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))
from penstock.gateway.supervisor import Seat, Supervisor

def told(*words):  # in one write: parent and workers share the pipe
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

found = Supervisor(
    2,
    reclaim=lambda index: told("reclaimed", index),
    serving=lambda workers: told("serving", *(worker.pid for worker in workers)),
    ended=lambda: told("ended"),
    drain_seconds=float(sys.argv[2]),
    until_stdin_ends=True,
).run()
if not isinstance(found, Seat):
    sys.exit(found)
if sys.argv[1] == "fails" and found.index == 1:
    sys.exit(5)
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
found.say(pid=os.getpid())
found.line.recv(1)
told("alone", found.index)
"""


class Parent:
    def __init__(self, process: subprocess.Popen[str], out: IO[str]) -> None:
        self.process = process
        self._out = out

    def said(self) -> list[str]:
        return self._out.readline().split()

    def serving(self) -> list[int]:
        said = self.said()
        assert said[0] == "serving", said
        return [int(pid) for pid in said[1:]]


@contextmanager
def parent(how: str = "lives", drain_seconds: float = 60.0) -> Iterator[Parent]:
    command = [sys.executable, "-c", PARENT, how, str(drain_seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Parent(process, process.stdout)
        finally:
            process.kill()


def test_all_serve_before_anybody_is_told_and_end_when_the_parent_is_told_to() -> None:
    with parent() as running:
        pids = running.serving()
        running.process.send_signal(signal.SIGTERM)
        told = sorted([running.said(), running.said()])

        assert (told, running.said()) == ([["reclaimed", "0"], ["reclaimed", "1"]], ["ended"])
        assert running.process.wait(30) == 0
    assert len(set(pids)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_they_end_with_standard_input() -> None:
    with parent() as running:
        running.serving()
        assert running.process.stdin is not None
        running.process.stdin.close()

        assert running.process.wait(30) == 0


def test_one_that_is_killed_is_reclaimed_and_replaced_again_and_again() -> None:
    with parent() as running:
        before = running.serving()
        for _ in range(2):
            os.kill(before[1], signal.SIGKILL)
            assert running.said() == ["reclaimed", "1"]
            after = running.serving()
            assert after[0] == before[0]
            assert after[1] not in before
            before = after


def test_one_that_cannot_begin_ends_all_with_its_code() -> None:
    with parent("fails") as running:
        assert running.process.wait(30) == 5
        assert ["serving"] not in [running.said()[:1] for _ in range(3)]


def test_one_that_does_not_end_is_killed() -> None:
    with parent("deaf", drain_seconds=0.2) as running:
        pids = running.serving()
        running.process.send_signal(signal.SIGINT)

        assert running.process.wait(30) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_hear_their_parents_end() -> None:
    with parent() as running:
        pids = running.serving()
        running.process.kill()

        assert sorted([running.said(), running.said()]) == [["alone", "0"], ["alone", "1"]]
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), what="the workers to end")


def settings(path: Path, **more: object) -> GatewaySettings:
    return GatewaySettings("gw-1", "127.0.0.1", "127.0.0.1", path, **more)  # type: ignore[arg-type]  # any of its fields


def config(*ports: int) -> GatewayConfig:
    brokers = [Broker(BrokerId(n), Zone("a"), "127.0.0.1", 1, port) for n, port in enumerate(ports)]
    return GatewayConfig(PhysicalClusterId("pkc-000001"), tuple(brokers))


def test_ports_that_may_be_any_are_the_same_for_all_workers_and_take_no_connection(tmp_path: Path) -> None:
    held, _, found = hold_ports(settings(tmp_path), config(0, 0))
    sni, chosen, _ = hold_ports(settings(tmp_path, routing=Routing.SNI), config(0))
    try:
        ports = [broker.offered_port for broker in found.brokers]
        assert ports == [one.getsockname()[1] for one in held]
        assert 0 not in (*ports, chosen.port)
        for port in (*ports, chosen.port):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
    finally:
        for one in (*held, *sni):
            one.close()


def test_a_port_that_is_another_programs_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ListenFailed):
            hold_ports(settings(tmp_path), config(0, other.getsockname()[1]))


def test_workers_count_under_names_of_their_own(tmp_path: Path) -> None:
    whole = settings(tmp_path, workers=2, gateways=3, metrics_port=9000)

    made = [as_worker(whole, index) for index in range(2)]

    assert [(one.gateway, one.metrics_port, one.gateways) for one in made] == [
        ("gw-1.0", 9000, 6), ("gw-1.1", 9001, 6),
    ]  # fmt: skip
    assert as_worker(settings(tmp_path, metrics_port=0), 1).metrics_port == 0
