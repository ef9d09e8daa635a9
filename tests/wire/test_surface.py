"""The table of the surface, as it is printed."""

from __future__ import annotations

import pytest

from penstock.wire.surface import main


def test_the_table_has_a_row_for_each_direction_of_each_api(capsys: pytest.CaptureFixture[str]) -> None:
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
    ("arguments", "status", "said"),
    [
        (["Fetch"], 2, "usage"),
        (["Fetch", "newest"], 2, "usage"),
        (["Fetch", "99"], 1, "no plan for API 1 (Fetch) in version 99"),
        (["Fletch", "1"], 1, "Fletch"),
    ],
)
def test_what_does_not_exist_is_said_to_standard_error(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status

    assert said in capsys.readouterr().err
