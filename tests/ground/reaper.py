"""Ends what a test run leaves behind when it is killed itself.

Nodes live in sessions of their own and survive whoever started them: that is what they are made
for, and what a test run that is killed must not rely on. So beside every run there is this process.
It waits for the end of a pipe whose other end only the run holds, then ends every node and every
supervisor recorded below the run's directory, by identity. After a run that ended well there are none.
The run itself is spared: a test that supervises in its own process leaves a record of the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.fleet.identity import read_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

# Supervisors first: they would start again what is ended under them.
RECORDS = ("supervisor.lock", "supervisor.json", "process.json")
REAP_SECONDS_MAX = 60.0


@contextmanager
def reaper(directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.ground.reaper", str(directory)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=root) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()
        process.wait(REAP_SECONDS_MAX)


def end_all(directory: Path, *, spare: int) -> list[int]:
    """The pids of what still ran, one process spared."""
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
