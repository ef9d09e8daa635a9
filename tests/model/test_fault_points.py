"""Fault points: a process dies at the armed point, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock.model import fault_points
from penstock.model.errors.settings import SettingInvalid

PROGRAM = """
from penstock.model import fault_points
point = fault_points.declare("test.loop", "a round of the loop has just started")
fault_points.check_armed()
for round in range(5):
    print(round, flush=True)
    fault_points.reach(point)
"""


def run(setting: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        fault_points.FAULT_VARIABLE: setting,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )


def test_an_unarmed_point_does_nothing() -> None:
    assert run("").returncode == 0


def test_an_armed_point_kills_the_process_at_the_named_arrival() -> None:
    done = run("test.loop@3")
    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["0", "1", "2"])


def test_arming_an_unknown_name_is_an_error() -> None:
    done = run("test.lop")
    assert done.returncode == 1
    assert "PEN-1002" in done.stderr


@pytest.mark.parametrize("setting", ["a@0", "a@x", "a!explode"])
def test_a_setting_that_cannot_be_read_is_refused(setting: str) -> None:
    with pytest.raises(SettingInvalid):
        fault_points.parse(setting)


def test_a_point_can_be_armed_to_stop_rather_than_kill() -> None:
    assert fault_points.parse("a@2!stop, b") == {
        "a": fault_points.Armed(2, signal.SIGSTOP),
        "b": fault_points.Armed(1, signal.SIGKILL),
    }


def test_declaring_a_point_twice_with_another_meaning_is_refused() -> None:
    fault_points.declare("test.twice", "one meaning")
    with pytest.raises(ValueError, match=r"test\.twice"):
        fault_points.declare("test.twice", "another meaning")


def test_the_catalogue_lists_the_points_of_one_area() -> None:
    point = fault_points.declare("test-area.here", "nothing has happened")
    assert fault_points.points("test-area") == {point: "nothing has happened"}
