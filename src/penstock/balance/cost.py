"""What a cluster costs a month, by driver, from the user's price file and measured traffic (Kora §4.2).

Drivers: compute (the brokers' 80 % of their machines), services (the rest, and additional machines), volumes,
provisioned throughput, cross-zone replication, cross-zone clients. Prices come from a YAML file of one
currency and one date. `EXAMPLE` in `penstock.balance` is such a file; no price is fetched from anywhere.

Cross-zone replication follows from ingress: followers in other zones receive a copy. Cross-zone clients are
what the caller knows of them. Tenants share the cost of a cluster by what they used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.balance.profiles import date_of
from penstock.balance.sizing import BROKER_SHARE
from penstock.model.errors.balance import CurrenciesMixed, PriceMissing
from penstock.model.settings_reader import Section, read_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from penstock.balance.profiles import HardwareProfile

EXAMPLE: Final = Path(__file__).parent / "example-prices.yaml"
HOURS_PER_MONTH: Final = 730.0
SECONDS_PER_MONTH: Final = HOURS_PER_MONTH * 3600
GIGABYTE: Final = 1e9
MEGABYTE: Final = 1e6

PRICE_KEYS: Final = ("currency", "date", "source", "compute_hour", "volumes", "cross_zone_gb")
VOLUME_KEYS: Final = ("storage_gb_month", "throughput_mb_month", "throughput_included_mb")
_PRICE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]{3})")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Prices:
    currency: str
    date: date
    compute_hour: Mapping[str, float]  # of a machine, by the name of its profile
    storage_gb_month: float
    throughput_mb_month: float  # beyond what is included with each volume
    throughput_included_mb: float  # MB/s
    cross_zone_gb: float  # sent and received together

    def compute(self, profile: str) -> float:
        if profile not in self.compute_hour:
            raise PriceMissing(profile=profile, known=", ".join(sorted(self.compute_hour)) or "none")
        return self.compute_hour[profile]


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """By driver, in the currency of the prices."""

    compute: float = 0.0
    services: float = 0.0
    volumes: float = 0.0
    throughput: float = 0.0
    cross_zone_replication: float = 0.0
    cross_zone_clients: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.drivers().values())

    def drivers(self) -> dict[str, float]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def share(self, part: Mapping[str, float]) -> MonthlyCost:
        """The part of each driver that the mapping gives; 0 for others."""
        return MonthlyCost(**{name: value * part.get(name, 0.0) for name, value in self.drivers().items()})


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a cluster or a tenant moves, in bytes a second on average over the month."""

    ingress: float = 0.0
    egress: float = 0.0
    cross_zone_ingress: float = 0.0  # from producers in another zone than the gateway's broker
    cross_zone_egress: float = 0.0  # to consumers in another zone

    @property
    def crossing(self) -> float:
        return self.cross_zone_ingress + self.cross_zone_egress

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def read_prices(path: Path, today: date) -> Prices:
    return prices_of(Section(path.name, read_mapping(path), PRICE_KEYS), today)


def prices_of(section: Section, today: date) -> Prices:
    currency = section.text("currency", expected="expected a currency such as USD")
    if not _CURRENCY.fullmatch(currency):
        raise section.invalid("currency", "expected a currency such as USD")
    day = date_of(section, today)
    section.optional_text("source")
    compute = section.section("compute_hour", None)
    if not compute.values:
        raise section.invalid("compute_hour", "expected the price of an hour for each profile")
    volumes = section.section("volumes", VOLUME_KEYS)
    return Prices(
        currency,
        day,
        {name: _price(compute, name, currency) for name in compute.values},
        _price(volumes, "storage_gb_month", currency),
        _price(volumes, "throughput_mb_month", currency),
        volumes.number("throughput_included_mb", 0.0, at_least=0, at_most=1e6, unit="MB/s"),
        _price(section, "cross_zone_gb", currency),
    )


def _price(section: Section, key: str, currency: str) -> float:
    """A number of the file's currency, or `0.08 USD`."""
    value = section.values.get(key)
    if isinstance(value, str) and (match := _PRICE.fullmatch(value.strip())):
        if match[2] != currency:
            raise CurrenciesMixed(
                where=section.where, key=key, value=value, actual=match[2], currency=currency
            )
        return float(match[1])
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise section.invalid(key, f"expected a price in {currency}, 0 or more")
    return float(value)


def machine_month(profile: HardwareProfile, prices: Prices) -> float:
    """One machine with its volumes."""
    storage, throughput = _volumes(profile, prices)
    return prices.compute(profile.name) * HOURS_PER_MONTH + storage + throughput


def _volumes(profile: HardwareProfile, prices: Prices) -> tuple[float, float]:
    storage = profile.disk_bytes / GIGABYTE * prices.storage_gb_month
    beyond = sum(
        max(0.0, each.throughput.base / MEGABYTE - prices.throughput_included_mb) for each in profile.volumes
    )
    return storage, beyond * prices.throughput_mb_month


def cross_zone_copies(factor: float, zones: float) -> float:
    """Copies of a byte that cross zones: all but those in the leader's zone, which are spread evenly."""
    return 0.0 if zones <= 1 else factor - factor / min(zones, factor)


def transfer_month(rate: float, prices: Prices) -> float:
    """Of so many bytes a second across zones."""
    return rate * SECONDS_PER_MONTH / GIGABYTE * prices.cross_zone_gb


def monthly_cost(
    profile: HardwareProfile,
    brokers: int,
    traffic: Traffic,
    prices: Prices,
    *,
    factor: float = 3.0,
    zones: float = 3.0,
    additional_machines: int = 0,
) -> MonthlyCost:
    machines = prices.compute(profile.name) * HOURS_PER_MONTH
    storage, throughput = _volumes(profile, prices)
    return MonthlyCost(
        compute=machines * brokers * BROKER_SHARE,
        services=machines * (brokers * (1 - BROKER_SHARE) + additional_machines),
        volumes=storage * brokers,
        throughput=throughput * brokers,
        cross_zone_replication=transfer_month(traffic.ingress * cross_zone_copies(factor, zones), prices),
        cross_zone_clients=transfer_month(traffic.crossing, prices) if zones > 1 else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Savings:
    """A month, in the currency of the prices."""

    single_zone: float  # a cluster in one zone: no byte crosses zones
    follower_fetching: float  # consumers set `client.rack` and read from a replica in their zone


def savings(cost: MonthlyCost, traffic: Traffic, prices: Prices) -> Savings:
    return Savings(
        single_zone=cost.cross_zone_replication + cost.cross_zone_clients,
        follower_fetching=min(cost.cross_zone_clients, transfer_month(traffic.cross_zone_egress, prices)),
    )


def tenant_costs(cost: MonthlyCost, tenants: Mapping[str, Traffic]) -> dict[str, MonthlyCost]:
    """Each tenant's part: what crosses zones by its bytes, the rest by its share of all traffic.

    The parts sum to the cost if a tenant moved anything; otherwise there is no part to assign.
    """
    whole = {
        "traffic": sum(each.ingress + each.egress for each in tenants.values()),
        "ingress": sum(each.ingress for each in tenants.values()),
        "crossing": sum(each.crossing for each in tenants.values()),
    }

    def share(part: float, of: str) -> float:
        return part / whole[of] if whole[of] else 0.0

    costs = {}
    for tenant, each in tenants.items():
        used = share(each.ingress + each.egress, "traffic")
        costs[tenant] = cost.share({
            "compute": used,
            "services": used,
            "volumes": share(each.ingress, "ingress"),
            "throughput": share(each.ingress, "ingress"),
            "cross_zone_replication": share(each.ingress, "ingress"),
            "cross_zone_clients": share(each.crossing, "crossing"),
        })  # fmt: skip
    return costs
