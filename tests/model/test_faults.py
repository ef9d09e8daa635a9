"""Fault points: a process dies where the environment says, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock.model import faults
from penstock.model.errors.settings import SettingInvalid

PROGRAM = """
from penstock.model import faults
point = faults.declare("test.loop", "the loop has just begun a round")
faults.check_armed()
for round in range(5):
    print(round, flush=True)
    faults.reach(point)
"""


def run(setting: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, faults.FAULT_VARIABLE: setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )


def test_an_unarmed_point_does_nothing() -> None:
    assert run("").returncode == 0


def test_an_armed_point_kills_the_process_at_the_named_arrival() -> None:
    done = run("test.loop@3")
    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["0", "1", "2"])


def test_an_armed_name_that_no_point_has_is_an_error() -> None:
    done = run("test.lop")
    assert done.returncode == 1
    assert "PEN-1002" in done.stderr


@pytest.mark.parametrize("setting", ["a@0", "a@x", "a!explode"])
def test_a_setting_that_cannot_be_read_is_refused(setting: str) -> None:
    with pytest.raises(SettingInvalid):
        faults.parse(setting)


def test_stop_instead_of_kill_can_be_asked_for() -> None:
    assert faults.parse("a@2!stop, b") == {
        "a": faults.Armed(2, signal.SIGSTOP),
        "b": faults.Armed(1, signal.SIGKILL),
    }


def test_declaring_a_point_twice_with_another_meaning_is_refused() -> None:
    faults.declare("test.twice", "one meaning")
    with pytest.raises(ValueError, match=r"test\.twice"):
        faults.declare("test.twice", "another meaning")


def test_the_catalogue_lists_the_points_of_one_area() -> None:
    point = faults.declare("test-area.here", "nothing has happened")
    assert faults.points("test-area") == {point: "nothing has happened"}
