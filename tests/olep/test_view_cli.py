"""`penstock olep view`: its output and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.olep.bank_harness import ROOT
from tests.olep.counting_view import add, add_many

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.log import Log

pytestmark = pytest.mark.kafka

COUNTING = ("--projection", "tests.olep.counting_view:COUNTING")


def view(log: Log, *words: str) -> tuple[int, Any, str]:
    """Exit status, JSON output and standard error."""
    config: dict[str, Any] = dict(log.config)
    address = ["--bootstrap", config.pop("bootstrap.servers"), "--topic", log.topic, "-o", "json"]
    options = [each for key, value in config.items() for each in ("-X", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "olep", "view", *words, *address, *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_a_view_is_run_inspected_and_verified(log: Log, tmp_path: Path) -> None:
    place = (*COUNTING, "--sqlite", str(tmp_path))
    add_many(log, 30)
    add(log, "a", 1, "no number")
    status, _, progress = view(log, "run", "--once", *place)
    assert (status, "31 events" in progress or "counting 1:" in progress) == (0, True)
    status, (row,), _ = view(log, "status", *place)
    assert (status, row["generation"], row["state"], row["lag"], row["skipped"]) == (0, 1, "serves", 0, 1)
    status, (listed,), _ = view(log, "skipped", *place)
    assert (status, listed["reason"]) == (0, "decide-raised")
    status, (verified,), _ = view(log, "verify", *place)
    assert (status, verified["same"]) == (0, True)


def test_an_error_prints_its_code(log: Log, tmp_path: Path) -> None:
    assert "PEN-7106" in view(log, "verify", *COUNTING, "--sqlite", str(tmp_path))[2]
    both = view(log, "run", *COUNTING, "--sqlite", str(tmp_path), "--redis", "redis://127.0.0.1")
    assert (both[0], "expected one of --sqlite" in both[2]) == (2, True)
    assert (
        "which is no Projection"
        in view(log, "run", "--projection", "tests.olep.counting_view:COUNTS", "--sqlite", str(tmp_path))[2]
    )
