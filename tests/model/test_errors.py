"""Every error of the catalogue is complete, has a code of its area, and shows all of its facts."""

from __future__ import annotations

import pickle
import re
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import RANGES, PenstockError, area_of, catalogue
from penstock.model.errors.settings import NameInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

every_error = pytest.mark.parametrize("error", catalogue().values(), ids=lambda error: error.code)


class AnyValue:
    """A value that formats as its name under any format specification."""

    def __init__(self, name: str) -> None:
        self.shown = f"«{name}»"

    def __repr__(self) -> str:
        return self.shown

    def __format__(self, specification: str) -> str:
        return self.shown


def overlaps(ranges: Mapping[str, tuple[str, range]]) -> list[tuple[str, str]]:
    """Pairs of areas that share a code."""
    return [
        (one, other)
        for (one, (_, codes)), (other, (_, other_codes)) in combinations(ranges.items(), 2)
        if codes.start < other_codes.stop and other_codes.start < codes.stop
    ]


def outside(error: type[PenstockError]) -> str:
    """What is wrong with an error's code, or an empty string."""
    area = area_of(error)
    if area not in RANGES:
        return f"give {area} a range in penstock.model.errors.RANGES"
    number = re.fullmatch(r"PEN-(\d{4})", error.code)
    codes = RANGES[area][1]
    if number is None or int(number[1]) not in codes:
        return f"{error.code} is not one of {area}'s codes, {codes.start} to {codes.stop - 1}"
    return ""


def test_no_two_areas_share_a_code() -> None:
    assert overlaps(RANGES) == []


@pytest.mark.parametrize(
    "codes", [range(5399, 5401), range(5350, 5360), range(4000, 6000), range(5000, 5400)]
)
def test_an_overlap_is_noticed(codes: range) -> None:
    assert overlaps({"control": RANGES["control"], "planted": ("Planted", codes)}) == [("control", "planted")]


@every_error
def test_a_code_is_in_the_range_of_its_area(error: type[PenstockError]) -> None:
    assert not outside(error)


@pytest.mark.parametrize(
    ("area", "code", "problem"),
    [
        ("wire", "PEN-3100", "PEN-3100 is not one of wire's codes, 3000 to 3099"),
        ("plans", "PEN-3099", "PEN-3099 is not one of plans's codes, 3100 to 3199"),
        ("wire", "3050", "3050 is not one of wire's codes, 3000 to 3099"),
        ("astrology", "PEN-3050", "give astrology a range in penstock.model.errors.RANGES"),
    ],
)
def test_a_code_outside_its_range_is_noticed(area: str, code: str, problem: str) -> None:
    class Planted(PenstockError):
        __module__ = f"penstock.model.errors.{area}"

    Planted.code = code  # set afterwards, so that it does not enter the catalogue

    assert outside(Planted) == problem


@every_error
def test_an_error_has_a_line_of_text_and_a_way_out(error: type[PenstockError]) -> None:
    for template in (error.text, error.hint):
        assert template
        assert template == template.strip()
    assert "\n" not in error.text


@every_error
def test_an_error_shows_all_of_its_facts(error: type[PenstockError]) -> None:
    facts = {name: AnyValue(name) for name in error.fields()}

    raised = error(**facts)

    shown = raised.message + raised.advice
    assert all(fact.shown in shown for fact in facts.values())
    assert str(raised) == f"{raised.message} ({error.code})"


@every_error
def test_a_missing_fact_fails_when_the_error_is_created(error: type[PenstockError]) -> None:
    facts = {name: AnyValue(name) for name in error.fields()}
    if not facts:
        assert str(error()).endswith(f"({error.code})")
        return
    facts.popitem()

    with pytest.raises(KeyError):
        error(**facts)


def test_two_errors_cannot_share_a_code() -> None:
    with pytest.raises(TypeError, match="share PEN-1005"):
        type("Impostor", (PenstockError,), {"code": NameInvalid.code})


def test_the_catalogue_is_in_order_of_codes() -> None:
    codes = list(catalogue())

    assert codes == sorted(set(codes))


def test_an_error_survives_pickling() -> None:
    error = NameInvalid(value="x", kind="physical cluster id", expected="pkc-xxxxxx")

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.advice) == (NameInvalid, str(error), error.advice)
