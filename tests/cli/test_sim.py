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
