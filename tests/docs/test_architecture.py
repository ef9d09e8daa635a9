"""The architecture page names what exists, failures name their tests, and links lead somewhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_every_module_on_the_page_exists() -> None:
    modules = set(re.findall(r"`((?:penstock|examples|bench)[\w.]*)`", PAGE)) - {"penstock"}

    assert modules
    assert [module for module in sorted(modules) if find_spec(module) is None] == []


def test_every_test_on_the_page_exists() -> None:
    paths = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))

    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_failure_names_its_symptom_and_a_test_that_causes_it() -> None:
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    known = set(re.findall(r"PEN-\d+", (ROOT / "docs/errors.md").read_text(encoding="utf-8")))
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    failures = [cells for cells in rows if cells[0] != " failure"]

    assert failures
    for cells in failures:
        assert len(cells) == 4, cells
        paths = re.findall(r"`(tests/[\w/.]+)`", cells[3])
        assert paths, cells
        assert all((ROOT / path).is_file() for path in paths), paths
    assert set(re.findall(r"PEN-\d+", text)) <= known


def test_every_link_in_the_docs_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
