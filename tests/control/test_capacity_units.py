"""Capacity units: how many given needs take, and the quota they give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.capacity_units import (
    LAPTOP,
    PUBLISHED,
    TABLES,
    check_size,
    parse_rate,
    quota_of,
    units_for,
)
from penstock.model.errors.control import SizeTooLarge
from penstock.model.errors.settings import SettingInvalid
from penstock.model.events import Dimension


@pytest.mark.parametrize(
    ("text", "value"),
    [("20MB/s", 20e6), ("300", 300), ("500 kB/s", 500e3), ("1.5g", 1.5e9), ("10b/s", 10)],
)
def test_rates_are_parsed_with_units(text: str, value: float) -> None:
    assert parse_rate(text, where="test", key="ingress") == value


@pytest.mark.parametrize("text", ["", "fast", "-3", "20MB/h", "1e999"])
def test_an_invalid_rate_is_rejected(text: str) -> None:
    with pytest.raises(SettingInvalid):
        parse_rate(text, where="test", key="ingress")


def test_the_scarcest_dimension_decides() -> None:
    needs = {Dimension.INGRESS_BYTES: 20e6, Dimension.PARTITIONS: 300}

    assert units_for(needs, LAPTOP) == 4
    assert units_for(needs, PUBLISHED) == 1


def test_without_needs_a_cluster_has_one_unit() -> None:
    assert units_for({}, LAPTOP) == 1


@given(
    st.dictionaries(st.sampled_from(list(Dimension)), st.floats(1, 1e6), min_size=1),
    st.sampled_from(sorted(TABLES)),
)
def test_the_units_cover_the_needs_and_one_less_would_not(needs: dict[Dimension, float], name: str) -> None:
    unit = TABLES[name]

    units = units_for(needs, unit)

    assert all(quota_of(units, unit, {})[d] >= value for d, value in needs.items())
    assert units == 1 or any(quota_of(units - 1, unit, {})[d] < value for d, value in needs.items())


def test_an_override_replaces_the_tables_value() -> None:
    assert quota_of(2, LAPTOP, {"requests": 7.0})["requests"] == 7.0


def test_too_many_units_are_rejected_with_the_size_that_fits() -> None:
    with pytest.raises(SizeTooLarge, match="at most 10"):
        check_size(11, LAPTOP)
