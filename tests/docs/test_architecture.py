"""The map from the papers to the code points at things that exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split("## From the papers to the packages")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line
    ]
    return cells[2:]  # without heading and rule


def test_every_package_on_the_map_exists() -> None:
    for row in rows():
        named = re.findall(r"`(penstock[\w.]*)`", row[2])
        assert named, row
        for module in named:
            assert find_spec(module) is not None, module


def test_every_proof_on_the_map_is_a_test() -> None:
    for row in rows():
        named = re.findall(r"`(tests/[\w/.]+)`", row[3])
        assert named, row
        for path in named:
            assert (ROOT / path).exists(), path


def test_every_failure_names_what_is_seen_of_it_and_a_test_that_makes_it_happen() -> None:
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    known = set(re.findall(r"PEN-\d+", (ROOT / "docs/errors.md").read_text(encoding="utf-8")))
    found = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    told = [cells for cells in found if cells[0] != " what happens"]

    assert told
    for cells in told:
        assert len(cells) == 4, cells
        named = re.findall(r"`(tests/[\w/.]+)`", cells[3])
        assert named, cells
        assert all((ROOT / path).is_file() for path in named), named
    assert set(re.findall(r"PEN-\d+", text)) <= known


def test_every_link_in_the_docs_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
