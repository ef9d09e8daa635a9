"""Monthly cost: drivers, tenants' parts, savings, and each kind of bad price file."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance.cost import (
    EXAMPLE,
    PRICE_KEYS,
    Prices,
    Traffic,
    monthly_cost,
    prices_of,
    read_prices,
    savings,
    tenant_costs,
)
from penstock.balance.profiles import HardwareProfile, Rate, Volume
from penstock.model.errors.balance import CurrenciesMixed, DateInFuture, PriceMissing
from penstock.model.errors.settings import SettingInvalid, SettingUnknown
from penstock.model.settings_reader import Section

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError

TODAY = date(2026, 11, 18)
PROFILE = HardwareProfile(
    "m", 4, 32e9, Rate(200e6, 1e9), (Volume(1e12, Rate(225e6, 225e6)),), ("a", "b", "c")
)
PRICES = Prices("USD", date(2026, 10, 1), {"m": 1.0}, 0.1, 0.05, 125, 0.02)
DOCUMENT: dict[str, Any] = {
    "currency": "EUR",
    "date": date(2026, 10, 1),
    "compute_hour": {"m": "0.25 EUR"},
    "volumes": {"storage_gb_month": 0.08, "throughput_mb_month": 0.04},
    "cross_zone_gb": 0.02,
}


def test_each_driver_is_charged_for_what_it_is() -> None:
    cost = monthly_cost(PROFILE, 6, Traffic(ingress=1e6, egress=2e6, cross_zone_egress=1e6), PRICES)

    assert cost.compute + cost.services == pytest.approx(6 * 730)
    assert cost.services == pytest.approx(0.2 * 6 * 730)
    assert cost.volumes == pytest.approx(6 * 1000 * 0.1)
    assert cost.throughput == pytest.approx(6 * 100 * 0.05)
    month_gb = 1e6 * 730 * 3600 / 1e9
    assert cost.cross_zone_replication == pytest.approx(2 * month_gb * 0.02)  # two followers in other zones
    assert cost.cross_zone_clients == pytest.approx(month_gb * 0.02)
    assert cost.total == pytest.approx(sum(cost.drivers().values()))


def test_a_single_zone_cluster_pays_for_no_byte_across_zones() -> None:
    traffic = Traffic(1e6, 2e6, cross_zone_ingress=5e5, cross_zone_egress=1e6)
    three = monthly_cost(PROFILE, 6, traffic, PRICES)
    one = monthly_cost(PROFILE, 6, traffic, PRICES, zones=1)

    saved = savings(three, traffic, PRICES)

    assert one.cross_zone_replication == one.cross_zone_clients == 0
    assert three.total - one.total == pytest.approx(saved.single_zone)
    assert 0 < saved.follower_fetching < three.cross_zone_clients


def test_tenants_parts_sum_to_the_cost() -> None:
    tenants = {
        "lkc-aaaaaa": Traffic(1e6, 1e6, cross_zone_egress=1e6),
        "lkc-bbbbbb": Traffic(3e6, 0),
        "lkc-cccccc": Traffic(),
    }
    cost = monthly_cost(PROFILE, 6, Traffic(4e6, 1e6, cross_zone_egress=1e6), PRICES)

    parts = tenant_costs(cost, tenants)

    assert sum(part.total for part in parts.values()) == pytest.approx(cost.total)
    assert parts["lkc-aaaaaa"].cross_zone_clients == cost.cross_zone_clients
    assert parts["lkc-cccccc"].total == 0


def test_the_example_can_be_read() -> None:
    prices = read_prices(EXAMPLE, TODAY)

    assert prices.currency == "USD"
    assert prices.compute("memory-4") > 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"currency": "dollars"}, SettingInvalid),
        ({"cross_zone_gb": None}, SettingInvalid),
        ({"cross_zone_gb": -0.01}, SettingInvalid),
        ({"cross_zone_gb": float("inf")}, SettingInvalid),
        ({"cross_zone_gb": "0.02 USD"}, CurrenciesMixed),
        ({"compute_hour": {"m": "0.25 USD"}}, CurrenciesMixed),
        ({"compute_hour": {}}, SettingInvalid),
        ({"discount": 0.1}, SettingUnknown),
        ({"volumes": {"iops": 1}}, SettingUnknown),
        ({"date": date(2027, 1, 1)}, DateInFuture),
        ({"date": "yesterday"}, SettingInvalid),
    ],
)
def test_a_bad_price_file_is_refused_by_name(changes: dict[str, Any], error: type[PenstockError]) -> None:
    with pytest.raises(error) as raised:
        prices_of(Section("prices.yaml", DOCUMENT | changes, PRICE_KEYS), TODAY)

    assert "prices.yaml" in str(raised.value)


def test_a_profile_without_a_price_is_named() -> None:
    with pytest.raises(PriceMissing, match="other"):
        monthly_cost(replace(PROFILE, name="other"), 3, Traffic(), PRICES)
