"""Processes are killed, frozen and thawed, and none stays frozen or running."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from tests.harness.processes import Processes

ECHO = [sys.executable, "-uc", "while True: print(input())"]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def echoes(child: subprocess.Popen[bytes]) -> bool:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"ping\n")
    child.stdin.flush()
    return child.stdout.readline() == b"ping\n"


def test_a_killed_process_has_ended_when_kill_returns(processes: Processes) -> None:
    child = processes.start(ECHO, **PIPES)

    processes.kill(child.pid)

    assert child.wait() == -signal.SIGKILL


def test_a_frozen_process_is_stopped_until_it_is_thawed(processes: Processes) -> None:
    child = processes.start(ECHO, **PIPES)
    assert echoes(child)

    processes.freeze(child.pid)
    frozen = psutil.Process(child.pid).status()
    processes.thaw(child.pid)

    assert frozen == psutil.STATUS_STOPPED
    assert echoes(child)


def test_a_frozen_process_can_be_killed(processes: Processes) -> None:
    child = processes.start(ECHO, **PIPES)
    processes.freeze(child.pid)

    processes.kill(child.pid)

    assert child.wait() == -signal.SIGKILL


def test_a_frozen_process_of_others_is_thawed_at_the_end() -> None:
    with subprocess.Popen(ECHO, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        with Processes() as processes:
            processes.freeze(other.pid)

        assert echoes(other)
        other.kill()


def test_a_started_process_is_killed_at_the_end_even_if_frozen() -> None:
    with Processes() as processes:
        child = processes.start(ECHO, **PIPES)
        processes.freeze(child.pid)

    assert child.returncode == -signal.SIGKILL


def test_a_process_that_has_ended_is_not_signalled(processes: Processes) -> None:
    child = processes.start([sys.executable, "-c", ""])
    child.wait()

    with pytest.raises(ProcessLookupError):
        processes.freeze(child.pid)
