"""`penstock sim` from the outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.cli.app import run
from penstock.model.errors import Exit

if TYPE_CHECKING:
    from pathlib import Path


def test_cells_are_compared_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "cells", "--tenants", "200", "--days", "4", "-o", "json"])

    printed = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert printed["experiment"][0] == {"what": "connections of a client", "without": 24.0, "with": 6.0}
    assert {row["placement"] for row in printed["month"]} >= {"random", "two choices", "least loaded"}


@pytest.mark.parametrize(("flag", "value"), [("--seed", "-1"), ("--days", "0"), ("--tenants", "0")])
def test_a_month_that_cannot_be_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "cells", flag, value])

    assert status == Exit.USAGE
    assert flag in capsys.readouterr().err


def test_a_cell_that_zones_cannot_share_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "cells", "--size", "5"])

    assert status == Exit.FAILED
    assert "Use 6 brokers per cell" in capsys.readouterr().err


def test_quotas_are_compared_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "week.png"
    small = ["--tenants", "100", "--brokers", "12", "--days", "0.05"]

    status = run(["sim", "quotas", *small, "--plot", str(picture), "-o", "json"])

    printed = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert [row["scheme"] for row in printed] == ["static", "dynamic", "dynamic, lazy"]
    assert picture.exists()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--seed", "-1"),
        ("--seeds", "0"),
        ("--tenants", "0"),
        ("--brokers", "7"),
        ("--days", "0"),
        ("--days", "0.0001"),
        ("--days", "nan"),
        ("--days", "inf"),
    ],
)
def test_a_week_that_cannot_be_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "quotas", flag, value])

    assert status == Exit.USAGE
    assert flag in capsys.readouterr().err


def test_policies_of_balancing_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "balance", "--brokers", "6", "--replicas", "180", "--days", "0.2", "-o", "json"])

    printed = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert [row["policy"] for row in printed] == ["count-only", "all goals", "overload only"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--seed", "-1"), ("--brokers", "1003"), ("--brokers", "31"), ("--replicas", "3"), ("--days", "0")],
)
def test_a_cluster_that_cannot_be_simulated_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(["sim", "balance", flag, value])

    assert status == Exit.USAGE
    assert flag in capsys.readouterr().err


def test_policies_of_sizing_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "sizing", "--clusters", "6", "--days", "5", "-o", "json"])

    printed = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert [row["policy"] for row in printed] == ["static peak", "reactive", "ours", "oracle"]


@pytest.mark.parametrize(("flag", "value"), [("--seed", "-1"), ("--clusters", "0"), ("--days", "366")])
def test_a_quarter_that_cannot_be_simulated_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sim", "sizing", flag, value]) == Exit.USAGE


def test_rolls_are_compared_with_one_broker_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["sim", "rolls", "--brokers", "6", "-o", "json"])

    (row,) = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert (row["zonesAtOnce"], row["minutesUnderMinimum"]) == (1, 0.0)


@pytest.mark.parametrize(("flag", "value"), [("--seed", "-1"), ("--brokers", "5"), ("--restart", "0")])
def test_a_roll_that_cannot_be_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "rolls", flag, value]) == Exit.USAGE
    assert flag in capsys.readouterr().err
