"""The reference pages match the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.errors import catalogue
from tests.paper.claim import Claim
from tests.paper.papers import PAPERS
from tools import reference

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_committed_pages_match_the_code() -> None:
    assert reference.stale(reference.ROOT) == [], "run: python -m tools.reference"


def test_every_error_has_an_entry() -> None:
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


def test_templates_show_only_the_names_of_their_fields() -> None:
    assert (
        reference.template("{key!r} took {seconds:.1f} s of {{limit}}") == "{key} took {seconds} s of {limit}"
    )


def test_the_architecture_page_keeps_its_prose_and_has_every_claim() -> None:
    committed = (reference.ROOT / reference.ARCHITECTURE).read_text(encoding="utf-8")
    page = reference.architecture_page()

    assert page.split(reference.CLAIMS_BEGIN)[0] == committed.split(reference.CLAIMS_BEGIN)[0]
    assert page.split(reference.CLAIMS_END)[1] == committed.split(reference.CLAIMS_END)[1]
    assert all(page.count(f"| {claim.text} |") == 1 for paper in PAPERS for claim in paper.claims)


def test_open_claims_are_exactly_those_without_evidence() -> None:
    rows = [line for line in reference.claim_tables().splitlines() if line.startswith("| ")]
    listed = {line.split(" | ")[1] for line in rows if line.endswith(" | open |")}

    assert listed == {claim.text for paper in PAPERS for claim in paper.claims if not claim.evidence}


def test_a_claim_names_each_test_file_and_bench_once() -> None:
    claim = Claim(
        "§1", "It works.", ("a.b", "c"), ("tests/x.py::test_a", "tests/x.py::test_b", "bench.y::rate")
    )

    assert reference.claim_row(claim) == "| §1 | It works. | `a.b`, `c` | `tests/x.py`, `bench.y` |"
    assert reference.claim_row(Claim("§2", "Not yet.")) == "| §2 | Not yet. | – | open |"
