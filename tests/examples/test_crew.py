"""The processes of a program end with the one that started them, however that one ends."""

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
from examples.frame import hold_lifeline
hold_lifeline()
os.write(1, b"up\\n")  # in one write: both share the pipe
time.sleep(600)
"""
CREW = """
import os, sys, time
from examples.frame import Crew
crew = Crew({"one": [sys.executable, "-c", sys.argv[1]]})
crew.look_after()
os.write(1, f"{next(iter(crew._processes.values())).pid}\\n".encode())
time.sleep(600)
"""


def test_no_process_of_a_crew_outlives_a_crew_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-c", CREW, CHILD]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as crew:
        assert crew.stdout is not None
        said = {crew.stdout.readline().strip(), crew.stdout.readline().strip()}
        child = psutil.Process(int(max(said - {"up"})))
        crew.send_signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs([child], END_SECONDS)
        for each in alive:
            each.kill()
    assert (gone, alive) == ([child], [])
