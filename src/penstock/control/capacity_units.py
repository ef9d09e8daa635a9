"""Capacity units: what one unit contains, how many units given needs take, and the resulting quota.

`PUBLISHED` is a tenth of a large managed cluster as sold publicly. `LAPTOP` lets a dozen tenants run on
three brokers that share one machine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.model.errors.control import SizeTooLarge
from penstock.model.errors.settings import SettingInvalid
from penstock.model.events import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class CapacityUnit:
    """One unit, by dimension. Rates are per second; connections and partitions are levels."""

    ingress_bytes: float
    egress_bytes: float
    request_time_us: float  # of broker threads, per second
    gateway_time_us: float  # of gateways' event loops, per second
    requests: float
    connections: float
    connection_attempts: float
    partitions: float
    partition_changes: float
    units_max: int  # of one logical cluster on a shared physical one

    def of(self, dimension: Dimension) -> float:
        return float(getattr(self, dimension.value))


PUBLISHED: Final = CapacityUnit(
    ingress_bytes=60 * MEGABYTE,
    egress_bytes=180 * MEGABYTE,
    request_time_us=2_000_000,
    gateway_time_us=4_000_000,
    requests=7_500,
    connections=4_500,
    connection_attempts=250,
    partitions=3_000,
    partition_changes=500 / 300,
    units_max=10,
)
LAPTOP: Final = CapacityUnit(
    ingress_bytes=5 * MEGABYTE,
    egress_bytes=15 * MEGABYTE,
    request_time_us=250_000,
    gateway_time_us=2_000_000,  # wall-clock time of loops that share the machine with the brokers
    requests=1_000,
    connections=200,
    connection_attempts=40,
    partitions=100,
    partition_changes=10,
    units_max=10,
)
TABLES: Final[Mapping[str, CapacityUnit]] = MappingProxyType({"laptop": LAPTOP, "published": PUBLISHED})

ADOPTED_CAPACITY: Final = "published"  # the table for adopted clusters

_SIZES: Final = {"": 1, "k": 1_000, "m": MEGABYTE, "g": 1_000 * MEGABYTE}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?(?:/s)?", re.IGNORECASE)


def units_for(needs: Mapping[Dimension, float], unit: CapacityUnit) -> int:
    """The smallest number of units that covers all needs; at least one."""
    return max([1, *(math.ceil(value / unit.of(dimension)) for dimension, value in needs.items())])


def quota_of(units: int, unit: CapacityUnit, overrides: Mapping[str, float]) -> dict[str, float]:
    """The quota of a logical cluster of this size, by dimension."""
    quota = {str(dimension): units * unit.of(dimension) for dimension in Dimension}
    return quota | dict(overrides)


def check_size(units: int, unit: CapacityUnit) -> None:
    if units > unit.units_max:
        raise SizeTooLarge(units=units, units_max=unit.units_max)


def parse_rate(text: str, *, where: str, key: str) -> float:
    """Parses `20MB/s`, `500 kB/s` or `300`: a number, with k, M and G as powers of a thousand."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise SettingInvalid(
            where=where, key=key, value=text, expected="expected a number such as 300 or 20MB/s"
        )
    return float(match[1]) * _SIZES[match[2].lower()]
