"""The printed table of API names, and the listing of one plan."""

from __future__ import annotations

import pytest

from penstock.wire.api_surface import main


def test_the_table_has_rows_for_both_directions_of_an_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "| 12 | Heartbeat | 0–4 | request | group |" in lines
    assert "| 12 | Heartbeat | 1–4 | response | error, throttle |" in lines


def test_one_version_is_listed_op_by_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Fetch", "16"]) == 0

    out = capsys.readouterr().out
    assert "FetchRequest v16 flexible" in out
    assert "      endpoint i NodeId ← endpoint" in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["Fetch"], 2, "usage"),
        (["Fetch", "newest"], 2, "usage"),
        (["Fetch", "99"], 1, "API 1 (Fetch) has no version 99"),
        (["Fletch", "1"], 1, "Fletch"),
    ],
)
def test_an_unknown_api_or_version_is_reported_on_standard_error(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status

    assert message in capsys.readouterr().err
