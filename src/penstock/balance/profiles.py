"""Hardware profiles: what a kind of machine offers, from a YAML file, and what was measured on it.

Declared values are the vendor's: processors, memory, network and volumes with base and burst rates, zones.
Measured values come from load tests: what a byte, a request and a partition cost of a broker's load, what
passes at a p99 within 50 ms, and how long a restart takes. Decisions use the base rates: a burst
ends when it is needed longest. Without measured values a profile is judged by its declared ones alone, and
everything derived from it is marked so.

Values carry their unit (`32 GiB`, `250 MB/s`, `10 Gbit/s`). One file uses one notation: sizes with powers of
1000 or of 1024, rates in bytes or in bits. A mixture is an error: it is a mistake more often than not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final

from penstock.balance.load_cost import COST_FIELDS, LoadCost
from penstock.model.errors.balance import DateInFuture, UnitsMixed
from penstock.model.settings_reader import Section, read_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

P99_MS_MAX: Final = 50.0  # of the rates that count as measured
REPLICAS_MAX: Final = 4_000  # of a broker, unless the profile sets another number
CONNECTIONS_MAX: Final = 20_000  # likewise
TEXT_MAX: Final = 63  # characters of a name
NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")

PROFILE_KEYS: Final = (
    "name",
    "processors",
    "memory",
    "network",
    "volumes",
    "zones",
    "replicas_max",
    "connections_max",
    "measured",
)
MEASURED_KEYS: Final = ("date", "kafka", "jit", "p99_ms", "ingress", "egress", "load", "restart_seconds")
RESTART_KEYS: Final = ("stop", "start", "recovery")

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)(B|bit)(/s)?")
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes a second: for ever, and for a short time."""

    base: float
    burst: float


@dataclass(frozen=True, slots=True)
class Volume:
    size_bytes: float
    throughput: Rate


@dataclass(frozen=True, slots=True)
class Measured:
    """What load tests showed of one broker on such a machine."""

    date: date
    kafka: str
    jit: str
    ingress: float  # bytes a second of one broker, from producers, at a p99 within the limit
    egress: float  # likewise, to consumers
    load: LoadCost
    restart_seconds: Mapping[str, float]  # by phase
    p99_ms: float = P99_MS_MAX


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    name: str
    processors: float
    memory_bytes: float
    network: Rate
    volumes: tuple[Volume, ...]
    zones: tuple[str, ...]
    replicas_max: int = REPLICAS_MAX
    connections_max: int = CONNECTIONS_MAX
    measured: Measured | None = None

    @property
    def disk_bytes(self) -> float:
        return sum(volume.size_bytes for volume in self.volumes)

    @property
    def disk_rate(self) -> float:
        """Bytes a second that its volumes carry for ever."""
        return sum(volume.throughput.base for volume in self.volumes)


@dataclass(slots=True)
class Notation:
    """Reads quantities of one file, and refuses a second notation."""

    document: str
    _seen: dict[str, tuple[str, str]] = field(default_factory=dict)  # first notation and where, by kind

    def size(self, section: Section, key: str) -> float:
        """Bytes."""
        number, prefix, binary, unit, per_second = self._parts(section, key)
        if unit != "B" or per_second:
            raise section.invalid(key, "expected a size such as 32 GiB")
        return self._scaled("sizes", section, key, number, (prefix, binary))

    def rate(self, section: Section, key: str) -> float:
        """Bytes a second."""
        number, prefix, binary, unit, per_second = self._parts(section, key)
        if not per_second:
            raise section.invalid(key, "expected a rate such as 250 MB/s or 10 Gbit/s")
        self._one("rates", "bits" if unit == "bit" else "bytes", section, key)
        scaled = self._scaled("prefixes of rates", section, key, number, (prefix, binary))
        return scaled / (BITS_PER_BYTE if unit == "bit" else 1)

    def _parts(self, section: Section, key: str) -> tuple[float, str, str, str, str]:
        value = section.values.get(key)
        match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or float(match[1]) <= 0:
            raise section.invalid(key, "expected a number above zero with its unit, such as 250 MB/s")
        return float(match[1]), match[2].upper(), match[3], match[4], match[5] or ""

    def _scaled(self, kind: str, section: Section, key: str, number: float, scale: tuple[str, str]) -> float:
        prefix, binary = scale
        if prefix:
            self._one(kind, "powers of 1024" if binary else "powers of 1000", section, key)
        return number * float(1024 if binary else 1000) ** _POWERS[prefix]

    def _one(self, kind: str, notation: str, section: Section, key: str) -> None:
        place = section.place_of(key)
        first, where = self._seen.setdefault(kind, (notation, place))
        if first != notation:
            raise UnitsMixed(
                document=self.document, key=place, kind=kind, actual=notation, first=first, where=where
            )


def read_profile(path: Path, today: date) -> HardwareProfile:
    """The profile in a file."""
    return profile_of(Section(path.name, read_mapping(path), PROFILE_KEYS), today)


def profile_of(section: Section, today: date) -> HardwareProfile:
    notation = Notation(section.document)
    name = section.text("name")
    if len(name) > TEXT_MAX or not NAME.fullmatch(name):
        raise section.invalid("name", f"expected at most {TEXT_MAX} of a-z, 0-9, dot and dash")
    volumes = tuple(
        Volume(notation.size(each, "size"), _rate_of(each, "throughput", notation))
        for each in section.sections("volumes", ("size", "throughput"))
    )
    if not volumes:
        raise section.invalid("volumes", "expected at least one volume")
    zones = section.texts("zones")
    if not zones or len(set(zones)) != len(zones):
        raise section.invalid("zones", "expected the names of one zone or more, each once")
    return HardwareProfile(
        name,
        section.positive("processors"),
        notation.size(section, "memory"),
        _rate_of(section, "network", notation),
        volumes,
        zones,
        section.integer("replicas_max", REPLICAS_MAX, at_least=1),
        section.integer("connections_max", CONNECTIONS_MAX, at_least=1),
        _measured_of(section.section("measured", MEASURED_KEYS), notation, today)
        if section.values.get("measured") is not None
        else None,
    )


def _rate_of(section: Section, key: str, notation: Notation) -> Rate:
    inner = section.section(key, ("base", "burst"))
    base = notation.rate(inner, "base")
    burst = notation.rate(inner, "burst") if "burst" in inner.values else base
    if burst < base:
        raise inner.invalid("burst", "expected the base rate or more")
    return Rate(base, burst)


def _measured_of(section: Section, notation: Notation, today: date) -> Measured:
    load = section.section("load", COST_FIELDS)
    restart = section.section("restart_seconds", RESTART_KEYS)
    return Measured(
        date_of(section, today),
        section.text("kafka"),
        section.text("jit"),
        notation.rate(section, "ingress"),
        notation.rate(section, "egress"),
        LoadCost(**{name: load.number(name, -1, at_least=0, at_most=1) for name in COST_FIELDS}),
        {phase: restart.number(phase, -1, at_least=0, at_most=86_400) for phase in RESTART_KEYS},
        section.number("p99_ms", P99_MS_MAX, at_least=0, at_most=P99_MS_MAX, unit="milliseconds"),
    )


def date_of(section: Section, today: date) -> date:
    """The day below `date`, which may not be in the future."""
    value = section.values.get("date")
    if not isinstance(value, date):
        raise section.invalid("date", "expected a day such as 2026-11-01")
    if value > today:
        raise DateInFuture(where=section.where, date=value, today=today)
    return value


def profile_document(profile: HardwareProfile) -> dict[str, object]:
    """The profile as its file has it; `profile_of` reads it again."""
    document: dict[str, object] = {
        "name": profile.name,
        "processors": profile.processors,
        "memory": f"{profile.memory_bytes:.0f} B",
        "network": _rate_text(profile.network),
        "volumes": [
            {"size": f"{each.size_bytes:.0f} B", "throughput": _rate_text(each.throughput)}
            for each in profile.volumes
        ],
        "zones": list(profile.zones),
        "replicas_max": profile.replicas_max,
        "connections_max": profile.connections_max,
    }
    if (measured := profile.measured) is not None:
        document["measured"] = {
            "date": measured.date,
            "kafka": measured.kafka,
            "jit": measured.jit,
            "p99_ms": measured.p99_ms,
            "ingress": f"{measured.ingress:.0f} B/s",
            "egress": f"{measured.egress:.0f} B/s",
            "load": {name: getattr(measured.load, name) for name in COST_FIELDS},
            "restart_seconds": dict(measured.restart_seconds),
        }
    return document


def _rate_text(rate: Rate) -> dict[str, str]:
    return {"base": f"{rate.base:.0f} B/s", "burst": f"{rate.burst:.0f} B/s"}
