"""Supervised processes end with their supervisor, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
END_SECONDS = 60.0

CHILD = """
import os, time
from examples.launcher import exit_with_supervisor
exit_with_supervisor()
os.write(1, b"up\\n")  # in one write: both share the pipe
time.sleep(600)
"""
SUPERVISOR = """
import os, sys, time
from examples.launcher import Supervisor
supervisor = Supervisor({"one": [sys.executable, "-c", sys.argv[1]]})
supervisor.restart_ended()
os.write(1, f"{next(iter(supervisor._processes.values())).pid}\\n".encode())
time.sleep(600)
"""


def test_no_process_outlives_a_supervisor_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-c", SUPERVISOR, CHILD]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        lines = {supervisor.stdout.readline().strip(), supervisor.stdout.readline().strip()}
        child = psutil.Process(int(max(lines - {"up"})))
        supervisor.send_signal(signal.SIGKILL)
        ended, alive = psutil.wait_procs([child], END_SECONDS)
        for each in alive:
            each.kill()
    assert (ended, alive) == ([child], [])
