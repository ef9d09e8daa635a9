"""What a killed test run leaves behind is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.fleet.identity import identify, read_identity, write_identity
from tests.ground.fleet import wait_for
from tests.ground.reaper import reaper

if TYPE_CHECKING:
    from pathlib import Path


def test_when_the_run_is_gone_its_recorded_processes_are_ended_and_no_others(tmp_path: Path) -> None:
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

    assert read_identity(tmp_path / "supervisor.json") == identity  # we are here to look
