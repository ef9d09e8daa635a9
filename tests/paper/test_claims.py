"""The claims name only what exists, cover every requirement, and are open exactly if nothing shows them."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.paper.claim import Claim
from tests.paper.papers import PAPERS, ROWS

ROOT = Path(__file__).resolve().parent.parent.parent
CLAIMS = [claim for paper in PAPERS for claim in paper.claims]
EVIDENCE = sorted({evidence for claim in CLAIMS for evidence in claim.evidence})
FIXED_CHARACTERS_MIN = 4  # of the name of a result that is only partly a constant


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_evidence_exists(evidence: str) -> None:
    where, _, name = evidence.partition("::")
    if where.startswith("bench."):
        assert any(re.fullmatch(pattern, name) for pattern in names_of_results(where))
    else:
        assert name in names_of_tests(where)


@pytest.mark.parametrize("package", sorted({package for claim in CLAIMS for package in claim.packages}))
def test_a_package_exists(package: str) -> None:
    assert find_spec(package) is not None


def test_every_requirement_has_a_claim() -> None:
    assert {row for claim in CLAIMS for row in claim.rows} == set(ROWS)
    assert all(claim.rows for claim in CLAIMS)


def test_a_claim_is_open_exactly_if_nothing_shows_it() -> None:
    assert all(claim.is_open is (claim.evidence == ()) for claim in CLAIMS)
    assert all(claim.packages for claim in CLAIMS if not claim.is_open), "whatever is shown has a module"


def test_no_claim_is_made_twice() -> None:
    texts = [claim.text for claim in CLAIMS]

    assert len(set(texts)) == len(texts)


def test_a_result_name_may_contain_variables() -> None:
    (constant,) = patterns("name = 'load-with-cells'")
    variable, part = patterns("name = f'{kind}-victim-served'")
    none = patterns("name = f'{a}-{b}'")

    assert re.fullmatch(constant, "load-with-cells")
    assert not re.fullmatch(constant, "load-with-cells-2")
    assert re.fullmatch(variable, "ingress-victim-served")
    assert not re.fullmatch(variable, "-victim-served")
    assert not re.fullmatch(part, "ingress-victim-served")
    assert none == ()


def test_a_claim_without_evidence_is_open() -> None:
    assert Claim("§1", "nothing shows it").is_open
    assert not Claim("§1", "shown", evidence=("tests/paper/test_claims.py::test_x",)).is_open


@cache
def names_of_tests(path: str) -> frozenset[str]:
    """The tests of a module: functions, and classes that are defined or assigned."""
    names = set[str]()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(name for name in names if name.startswith(("test_", "Test")))


@cache
def names_of_results(module: str) -> tuple[str, ...]:
    path = (ROOT / module.replace(".", "/")).with_suffix(".py")
    return patterns(path.read_text(encoding="utf-8"))


def patterns(source: str) -> tuple[str, ...]:
    """A regular expression for each string of a bench; a variable in an f-string matches any text."""
    parts: list[list[str | None]] = []  # None is a variable
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts.append([node.value])
        elif isinstance(node, ast.JoinedStr):
            parts.append([str(p.value) if isinstance(p, ast.Constant) else None for p in node.values])
    return tuple(
        "".join(".+" if part is None else re.escape(part) for part in each)
        for each in parts
        if sum(len(part) for part in each if part is not None) >= FIXED_CHARACTERS_MIN
    )
