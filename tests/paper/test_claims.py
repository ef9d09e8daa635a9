"""The map from claims to evidence names only what exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.paper.claims import CLAIMS

ROOT = Path(__file__).resolve().parent.parent.parent
EVIDENCE = sorted({each for claims in CLAIMS.values() for found in claims.values() for each in found})


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_what_shows_a_claim_exists(evidence: str) -> None:
    where, _, name = evidence.partition("::")
    if where.startswith("bench."):
        source = (ROOT / where.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        # Some lines are named by what they vary: `flat-as-{what}-share-grows`.
        names = [_shape(node) for node in ast.walk(ast.parse(source))]
        assert any(found is not None and _fits(found, name) for found in names)
    else:
        tree = ast.parse((ROOT / where).read_text(encoding="utf-8"))
        tests = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert name in tests


@pytest.mark.parametrize("paper", CLAIMS)
def test_every_claim_has_something_that_shows_it(paper: str) -> None:
    assert all(CLAIMS[paper].values())


def _shape(node: ast.AST) -> list[str] | None:
    """The fixed parts of a string, between which anything may stand."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
    return None


def _fits(shape: list[str], name: str) -> bool:
    if "\0" not in shape:
        return name == "".join(shape)
    head, tail = shape[0], shape[-1]
    return head not in {"", "\0"} and name.startswith(head) and (tail == "\0" or name.endswith(tail))
