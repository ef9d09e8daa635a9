"""The processes of a killed test run are ended."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.process_identity import identify, read_identity, write_identity
from tests.harness.fleet import wait_for
from tests.harness.reaper import reaper

if TYPE_CHECKING:
    from pathlib import Path


def test_after_the_run_only_its_recorded_processes_are_killed(tmp_path: Path) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(300)"]
    with subprocess.Popen(sleeping) as recorded, subprocess.Popen(sleeping) as other:
        try:
            identity = identify(recorded.pid)
            assert identity is not None
            (tmp_path / "b1").mkdir()
            write_identity(tmp_path / "b1" / "process.json", identity)
            with reaper(tmp_path):
                assert recorded.poll() is None
            wait_for(lambda: recorded.poll() is not None, what="the recorded process to be ended")
            assert other.poll() is None
        finally:
            recorded.kill()
            other.kill()


def test_the_run_itself_is_spared(tmp_path: Path) -> None:
    identity = identify(os.getpid())
    assert identity is not None
    write_identity(tmp_path / "supervisor.json", identity)

    with reaper(tmp_path):
        pass

    assert read_identity(tmp_path / "supervisor.json") == identity  # this process is still alive
