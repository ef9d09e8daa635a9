"""Tables: declared by their row type, checked where stores would differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from penstock.model.errors.olep import ApplicationInvalid, DecisionInvalid
from penstock.olep.application import Application
from penstock.olep.table import Table, check_row


class Row(NamedTuple):
    name: str
    total: int
    share: float
    note: str | None


class Bad(NamedTuple):
    name: str
    when: list[str]


ROWS = Table("rows", Row)


def test_columns_are_the_fields_of_the_row() -> None:
    assert [(c.name, c.type, c.optional) for c in ROWS.columns] == [
        ("name", str, False),
        ("total", int, False),
        ("share", float, False),
        ("note", str, True),
    ]


@pytest.mark.parametrize(("key", "value"), [(1, "a"), (2, ("a", 1))])
def test_the_key_is_the_first_columns(key: int, value: object) -> None:
    assert Table("rows", Row, key=key).key_of(Row("a", 1, 0.5, None)) == value


@pytest.mark.parametrize(
    ("name", "row", "key"),
    [("rows", Bad, 1), ("Rows", Row, 1), ("rows", Row, 0), ("rows", Row, 9), ("rows", tuple, 1)],
    ids=["type", "name", "no key", "long key", "no fields"],
)
def test_an_invalid_table_is_refused(name: str, row: type, key: int) -> None:
    with pytest.raises(ApplicationInvalid):
        Table(name, row, key=key)


def test_a_row_that_fits_passes() -> None:
    check_row(ROWS, Row("a", 1, 0.5, None))


@pytest.mark.parametrize(
    "row",
    [
        ("a", 1, 0.5),
        (None, 1, 0.5, None),
        ("a", "1", 0.5, None),
        ("a", True, 0.5, None),
        ("a", 1 << 63, 0.5, None),
        ("a", -(1 << 63) - 1, 0.5, None),
        ("a", 1, float("nan"), None),
        ("a\x00", 1, 0.5, None),
        ("a", 1, 0.5, "\ud800"),
    ],
    ids=repr,
)
def test_a_row_that_some_store_would_refuse_is_refused(row: tuple[object, ...]) -> None:
    with pytest.raises(DecisionInvalid):
        check_row(ROWS, row)


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "Bank"},
        {"handles": {"olep.retry": 1}},
        {"handles": {"a": 1}, "ignores": {"a"}},
        {"tables": (ROWS, Table("rows", Row))},
        {"tables": (Table("olep_rows", Row),)},
        {"window": 0},
    ],
    ids=str,
)
def test_a_contradictory_application_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ApplicationInvalid):
        Application(**{"name": "a", "decide": lambda s, e: ((), ()), "tables": (), "handles": {}, **keys})
