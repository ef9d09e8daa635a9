"""The reference pages say what the code says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.errors import catalogue
from tools import reference

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_committed_pages_are_those_made_from_the_code() -> None:
    assert reference.stale(reference.ROOT) == [], "run: python -m tools.reference"


def test_every_error_has_its_entry() -> None:
    page = reference.errors_page()

    assert [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")] == list(
        catalogue()
    )


def test_an_outdated_page_is_reported_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = reference.main(["--check"], root=tmp_path)

    assert status == 1
    assert "docs/errors.md is out of date" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_writing_brings_pages_up_to_date(tmp_path: Path) -> None:
    status = reference.main([], root=tmp_path)

    assert status == 0
    assert reference.stale(tmp_path) == []


def test_templates_show_the_names_of_their_fields_alone() -> None:
    assert (
        reference.template("{key!r} took {seconds:.1f} s of {{limit}}") == "{key} took {seconds} s of {limit}"
    )
