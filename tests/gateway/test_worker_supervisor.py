"""Workers without Kafka: how they are started, replaced and ended."""

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
from penstock.gateway.process.worker_supervisor import as_worker, reserve_ports
from penstock.gateway.settings import GatewaySettings, Routing
from penstock.model.errors.gateway import ListenFailed
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A worker reports its pid, then behaves as the argument states until its parent ends.
PARENT = """
import os, signal, sys
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))
from penstock.gateway.process.worker_supervisor import WorkerSlot, Supervisor

def printed(*words):  # in one write: parent and workers share the pipe
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

outcome = Supervisor(
    2,
    reclaim=lambda index: printed("reclaimed", index),
    serving=lambda workers: printed("serving", *(worker.pid for worker in workers)),
    ended=lambda: printed("ended"),
    drain_seconds=float(sys.argv[2]),
    until_stdin_ends=True,
).run()
if not isinstance(outcome, WorkerSlot):
    sys.exit(outcome)
if sys.argv[1] == "fails" and outcome.index == 1:
    sys.exit(5)
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
outcome.report(pid=os.getpid())
if sys.argv[1] == "loses" and outcome.index == 0:
    signal.sigwait([signal.SIGUSR1])
    outcome.report_end(3)
    sys.exit(1)
outcome.channel.recv(1)
printed("alone", outcome.index)
"""


class Parent:
    def __init__(self, process: subprocess.Popen[str], out: IO[str]) -> None:
        self.process = process
        self._out = out

    def status(self) -> list[str]:
        return self._out.readline().split()

    def serving(self) -> list[int]:
        status = self.status()
        assert status[0] == "serving", status
        return [int(pid) for pid in status[1:]]


@contextmanager
def parent(how: str = "lives", drain_seconds: float = 60.0) -> Iterator[Parent]:
    command = [sys.executable, "-c", PARENT, how, str(drain_seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Parent(process, process.stdout)
        finally:
            process.kill()


def test_workers_are_reported_once_all_serve_and_end_with_sigterm() -> None:
    with parent() as running:
        pids = running.serving()
        running.process.send_signal(signal.SIGTERM)
        reclaimed = sorted([running.status(), running.status()])

        assert (reclaimed, running.status()) == ([["reclaimed", "0"], ["reclaimed", "1"]], ["ended"])
        assert running.process.wait(30) == 0
    assert len(set(pids)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_end_with_standard_input() -> None:
    with parent() as running:
        running.serving()
        assert running.process.stdin is not None
        running.process.stdin.close()

        assert running.process.wait(30) == 0


def test_a_killed_worker_is_reclaimed_and_replaced_every_time() -> None:
    with parent() as running:
        before = running.serving()
        for _ in range(2):
            os.kill(before[1], signal.SIGKILL)
            assert running.status() == ["reclaimed", "1"]
            after = running.serving()
            assert after[0] == before[0]
            assert after[1] not in before
            before = after


def test_a_worker_that_cannot_start_ends_all_with_its_exit_code() -> None:
    with parent("fails") as running:
        assert running.process.wait(30) == 5
        assert ["serving"] not in [running.status()[:1] for _ in range(3)]


def test_a_worker_can_end_the_whole_gateway() -> None:
    """Another gateway has the name, under which all of them serve."""
    with parent("loses") as running:
        pids = running.serving()
        os.kill(pids[0], signal.SIGUSR1)

        assert running.process.wait(30) == 3
    assert not any(map(psutil.pid_exists, pids))


def test_a_worker_that_does_not_end_is_killed() -> None:
    with parent("deaf", drain_seconds=0.2) as running:
        pids = running.serving()
        running.process.send_signal(signal.SIGINT)

        assert running.process.wait(30) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_notice_the_end_of_their_parent() -> None:
    with parent() as running:
        pids = running.serving()
        running.process.kill()

        assert sorted([running.status(), running.status()]) == [["alone", "0"], ["alone", "1"]]
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), what="the workers to end")


def settings(path: Path, **more: object) -> GatewaySettings:
    return GatewaySettings("gw-1", "127.0.0.1", "127.0.0.1", path, **more)  # type: ignore[arg-type]  # any of its fields


def config(*ports: int) -> GatewayConfig:
    brokers = [Broker(BrokerId(n), Zone("a"), "127.0.0.1", 1, port) for n, port in enumerate(ports)]
    return GatewayConfig(PhysicalClusterId("pkc-000001"), tuple(brokers))


def test_free_ports_are_the_same_for_all_workers_and_reserved_without_listening(tmp_path: Path) -> None:
    reserved, _, reserved_config = reserve_ports(settings(tmp_path), config(0, 0))
    sni, chosen, _ = reserve_ports(settings(tmp_path, routing=Routing.SNI), config(0))
    try:
        ports = [broker.listen_port for broker in reserved_config.brokers]
        assert ports == [one.getsockname()[1] for one in reserved]
        assert 0 not in (*ports, chosen.port)
        for port in (*ports, chosen.port):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
    finally:
        for one in (*reserved, *sni):
            one.close()


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ListenFailed):
            reserve_ports(settings(tmp_path), config(0, other.getsockname()[1]))


def test_workers_report_under_separate_names(tmp_path: Path) -> None:
    whole = settings(tmp_path, workers=2, gateways=3, metrics_port=9000)

    made = [as_worker(whole, index) for index in range(2)]

    assert [(one.gateway, one.metrics_port, one.gateways) for one in made] == [
        ("gw-1.0", 9000, 6), ("gw-1.1", 9001, 6),
    ]  # fmt: skip
    assert as_worker(settings(tmp_path, metrics_port=0), 1).metrics_port == 0
