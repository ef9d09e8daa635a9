"""Processes that stand still for a drill, and continue whatever becomes of the drill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.layout import Layout
from penstock.model.errors.health import DrillRefused
from penstock.platform.drill_guard import Standstill, sole_drill, standing_still
from penstock.process_identity import identify
from tests.harness.command import clean_environment
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.process_identity import Identity

COMMAND = """
import sys, time
from pathlib import Path
from penstock.fleet.layout import Layout
from penstock.platform.drill_guard import Standstill, sole_drill, standing_still
from penstock.process_identity import Identity
process = Identity(int(sys.argv[1]), sys.argv[2])
with sole_drill(Layout(Path(sys.argv[3])), 2) as lock, standing_still(process, Standstill.FREEZE, 300, lock):
    time.sleep(300)
"""


@pytest.fixture
def victim() -> Iterator[Identity]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    identity = identify(child.pid)
    assert identity is not None
    yield identity
    child.kill()
    child.wait()


def stands_still(process: Identity) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat[stat.rindex(")") + 2] == "T"


def is_free(layout: Layout) -> bool:
    try:
        with sole_drill(layout, 2):
            return True
    except DrillRefused:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", Standstill)
def test_a_process_stands_still_for_the_length_of_a_drill(
    victim: Identity, kind: Standstill, tmp_path: Path
) -> None:
    with sole_drill(Layout(tmp_path), 2) as lock:
        with standing_still(victim, kind, 60.0, lock):
            wait_for(lambda: stands_still(victim), what="a process that stands still")
        assert not stands_still(victim)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_continues_when_its_time_is_over(victim: Identity, tmp_path: Path) -> None:
    with sole_drill(Layout(tmp_path), 2) as lock, standing_still(victim, Standstill.FREEZE, 1.0, lock):
        wait_for(lambda: stands_still(victim), what="a process that stands still")
        wait_for(lambda: not stands_still(victim), what="a process that continues")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_continues_if_the_command_is_killed_and_another_drill_may_begin(
    victim: Identity, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", COMMAND, str(victim.pid), victim.started, str(tmp_path)]
    command = subprocess.Popen(words, env=clean_environment())
    try:
        wait_for(lambda: stands_still(victim), what="a process that stands still")
        with pytest.raises(DrillRefused, match="another drill"), sole_drill(Layout(tmp_path), 2):
            pass
    finally:
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
    wait_for(lambda: not stands_still(victim), what="a process that continues")
    wait_for(lambda: is_free(Layout(tmp_path)), what="the end of the guard")
