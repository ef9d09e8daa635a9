"""The catalogue of errors: every entry is complete, placed, and says what it was told."""

from __future__ import annotations

import pickle

import pytest

from penstock.model.errors import RANGES, PenstockError, area_of, catalogue
from penstock.model.errors.settings import NameInvalid

every_error = pytest.mark.parametrize("error", catalogue().values(), ids=lambda error: error.code)


class Told:
    """Stands for any value: shows itself whatever the format asked for."""

    def __init__(self, name: str) -> None:
        self.shown = f"«{name}»"

    def __repr__(self) -> str:
        return self.shown

    def __format__(self, specification: str) -> str:
        return self.shown


@every_error
def test_a_code_lies_in_the_range_of_its_area(error: type[PenstockError]) -> None:
    prefix, _, number = error.code.partition("-")

    assert area_of(error) in RANGES, f"give {area_of(error)} a range in penstock.model.errors.RANGES"
    assert prefix == "PEN"
    assert len(number) == 4
    assert int(number) in RANGES[area_of(error)][1]


@every_error
def test_an_error_has_a_line_of_text_and_a_way_out(error: type[PenstockError]) -> None:
    for template in (error.text, error.hint):
        assert template
        assert template == template.strip()
    assert "\n" not in error.text


@every_error
def test_an_error_repeats_everything_it_is_told(error: type[PenstockError]) -> None:
    facts = {name: Told(name) for name in error.fields()}

    made = error(**facts)

    shown = made.message + made.advice
    assert all(fact.shown in shown for fact in facts.values())
    assert str(made) == f"{made.message} ({error.code})"


@every_error
def test_a_fact_left_out_is_noticed_where_the_error_is_made(error: type[PenstockError]) -> None:
    facts = {name: Told(name) for name in error.fields()}
    if not facts:
        assert str(error()).endswith(f"({error.code})")
        return
    facts.popitem()

    with pytest.raises(KeyError):
        error(**facts)


def test_two_errors_cannot_share_a_code() -> None:
    with pytest.raises(TypeError, match="share PEN-1005"):
        type("Impostor", (PenstockError,), {"code": NameInvalid.code})


def test_the_same_code_is_in_the_catalogue_once_and_in_order() -> None:
    codes = list(catalogue())

    assert codes == sorted(set(codes))


def test_an_error_survives_the_way_to_another_process() -> None:
    error = NameInvalid(value="x", kind="physical cluster id", expected="pkc-xxxxxx")

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.advice) == (NameInvalid, str(error), error.advice)
