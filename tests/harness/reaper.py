"""End the nodes and supervisors of a test run that was killed.

Nodes run in their own sessions and survive the process that started them, so they would also survive a
killed test run. This process runs beside every test run. When the run ends, however it ends, its end of
a pipe closes; then this process kills every node and supervisor recorded below the run's directory,
by process identity. The run itself is spared, because a test may supervise a fleet in its own process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.process_identity import read_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

# Supervisors first: they would restart killed nodes.
RECORDS = ("supervisor.lock", "supervisor.json", "process.json")
REAP_SECONDS_MAX = 60.0


@contextmanager
def reaper(directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.harness.reaper", str(directory)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=root) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()
        process.wait(REAP_SECONDS_MAX)


def end_all(directory: Path, *, spare: int) -> list[int]:
    """Kill all recorded processes except `spare`; returns their pids."""
    ended = []
    for name in RECORDS:
        for record in directory.rglob(name):
            identity = read_identity(record)
            if identity is None or identity.pid == spare:
                continue
            if identity.signal(signal.SIGKILL):
                ended.append(identity.pid)
    return ended


if __name__ == "__main__":
    run = os.getppid()
    sys.stdin.read()
    end_all(Path(sys.argv[1]), spare=run)
