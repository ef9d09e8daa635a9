"""Which settings a tenant may change, and to which values: one table for every request that sets one.

Brokers check little: `segment.ms=1` makes them open files without end, `flush.messages=1` write each record
to disk at once, `preallocate=true` take a gigabyte for each partition. The ranges keep a tenant's settings
from hurting the brokers it shares. Every setting that Kafka has for topics and groups is listed here, and
those of brokers in `SHOWN_BROKER_CONFIGS` or in the tests' list of hidden ones: a new setting of a new Kafka
version fails the tests until it is decided on.

`docs/gateway-settings.md` is generated from this by `python -m tools.reference`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LONG_MAX: Final = 2**63 - 1
MEBIBYTE: Final = 1024 * 1024
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000  # in milliseconds
DELETE: Final = 1  # the operation that removes a setting; its value is ignored

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{0,19}\.?[0-9]{0,19}")
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))  # what Kafka trims from a value


@dataclass(frozen=True, slots=True)
class Range:
    low: int
    high: int = LONG_MAX

    def allows(self, value: str) -> bool:
        return _INTEGER.fullmatch(value) is not None and self.low <= int(value) <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" if self.high < LONG_MAX else f"at least {self.low}"


@dataclass(frozen=True, slots=True)
class Ratio:
    low: float
    high: float

    def allows(self, value: str) -> bool:
        is_number = _DECIMAL.fullmatch(value) is not None and any(map(str.isdigit, value))
        return is_number and self.low <= float(value) <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]
    ignore_case: bool = False

    def allows(self, value: str) -> bool:
        return (value.lower() if self.ignore_case else value) in self.values

    def __str__(self) -> str:
        return " or ".join(self.values)


@dataclass(frozen=True, slots=True)
class Several:
    values: tuple[str, ...]

    def allows(self, value: str) -> bool:
        return all(one.strip(_JAVA_BLANKS) in ("", *self.values) for one in value.split(","))

    def __str__(self) -> str:
        return f"any of {', '.join(self.values)}"


@dataclass(frozen=True, slots=True)
class Reset:
    """Where a share group starts; a duration is ISO 8601, which the broker reads."""

    def allows(self, value: str) -> bool:
        return value in ("latest", "earliest") or value.startswith("by_duration:")

    def __str__(self) -> str:
        return "latest, earliest or by_duration:…"


Allowed = Range | Ratio | Choice | Several | Reset
BOOLEAN: Final = Choice(("true", "false"), ignore_case=True)

TOPIC_CONFIGS: Final[Mapping[str, Allowed]] = {
    "cleanup.policy": Several(("compact", "delete")),
    "compression.gzip.level": Range(-1, 9),
    "compression.lz4.level": Range(1, 12),  # above, and above 9 for zstd, a few MB/s occupy a broker's thread
    "compression.type": Choice(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    "compression.zstd.level": Range(-7, 9),
    "delete.retention.ms": Range(0),
    "file.delete.delay.ms": Range(0, HOUR),  # deleted files take up the disk until then
    "flush.messages": Range(10_000),
    "flush.ms": Range(MINUTE),
    "index.interval.bytes": Range(1024, MEBIBYTE),
    "local.retention.bytes": Range(-2),
    "local.retention.ms": Range(-2),
    "max.compaction.lag.ms": Range(HOUR),  # all topics share the cleaner's threads
    "max.message.bytes": Range(0, 20 * MEBIBYTE),
    "message.timestamp.after.max.ms": Range(0),
    "message.timestamp.before.max.ms": Range(0),
    "message.timestamp.type": Choice(("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Ratio(0.1, 1.0),
    "min.compaction.lag.ms": Range(0),
    "min.insync.replicas": Range(1, 3),
    "preallocate": Choice(("false",), ignore_case=True),
    "remote.storage.enable": BOOLEAN,
    "retention.bytes": Range(-1),
    "retention.ms": Range(-1),
    "segment.bytes": Range(16 * MEBIBYTE, 1024 * MEBIBYTE),
    "segment.index.bytes": Range(MEBIBYTE, 10 * MEBIBYTE),  # allocated for each segment; a full one ends it
    "segment.jitter.ms": Range(0, 7 * DAY),
    "segment.ms": Range(10 * MINUTE),
}  # fmt: skip
GROUP_CONFIGS: Final[Mapping[str, Allowed]] = {  # brokers have narrower bounds for most of these
    "consumer.assignment.interval.ms": Range(0, 15 * SECOND),
    "consumer.heartbeat.interval.ms": Range(SECOND, HOUR),
    "consumer.session.timeout.ms": Range(6 * SECOND, HOUR),
    "share.assignment.interval.ms": Range(0, 15 * SECOND),
    "share.auto.offset.reset": Reset(),
    "share.delivery.count.limit": Range(2, 10),
    "share.heartbeat.interval.ms": Range(SECOND, HOUR),
    "share.isolation.level": Choice(("read_committed", "read_uncommitted")),
    "share.partition.max.record.locks": Range(100, 10_000),
    "share.record.lock.duration.ms": Range(SECOND, HOUR),
    "share.renew.acknowledge.enable": BOOLEAN,
    "share.session.timeout.ms": Range(6 * SECOND, HOUR),
}
TIERED: Final = "remote.storage.enable"
RETENTION_BYTES: Final = "retention.bytes"
TENANT_CONFIGS: Final = {**TOPIC_CONFIGS, **GROUP_CONFIGS}
# The platform's: replication, tiering, and streams groups, which are refused.
REFUSED_CONFIGS: Final = (
    "follower.replication.throttled.replicas", "leader.replication.throttled.replicas",
    "remote.log.copy.disable", "remote.log.delete.on.disable", "streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms", "streams.initial.rebalance.delay.ms", "streams.num.standby.replicas",
    "streams.session.timeout.ms", "unclean.leader.election.enable",
)  # fmt: skip
# Broker settings that tools read and that reveal nothing about the machines. The rest is the platform's.
SHOWN_BROKER_CONFIGS: Final = (
    "broker.rack", "compression.type", "delete.topic.enable", "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms", "group.min.session.timeout.ms", "log.cleanup.policy",
    "log.message.timestamp.type", "log.retention.bytes", "log.retention.ms", "log.segment.bytes",
    "message.max.bytes", "min.insync.replicas", "offsets.retention.minutes", "transaction.max.timeout.ms",
)  # fmt: skip


def config_refusal(name: str, value: str | None, operation: int | None = None) -> str | None:
    """Why a tenant may not give a setting this value; None if it may. Null is the broker's to judge."""
    allowed = TENANT_CONFIGS.get(name)
    if allowed is None:
        return f"{name} cannot be set by tenants."
    if value is None or operation == DELETE or allowed.allows(value.strip(_JAVA_BLANKS)):
        return None
    return f"{name} cannot be {value[:40]!r}: allowed is {allowed}."


def may_conflict(changes: Mapping[str, str | None]) -> bool:
    """Whether a change of a topic's settings must be compared with those it has."""
    return _limits_bytes(changes) or _is_tiered(changes)


def tiering_refusal(settings: Mapping[str, str | None]) -> str | None:
    """Why a topic may not have these settings together; None if it may.

    KAFKA-20732: with `retention.bytes`, a restart or leader change may delete tiered data inside retention.
    """
    if _is_tiered(settings) and _limits_bytes(settings):
        return (
            "retention.bytes cannot be set on a tiered topic: Kafka may delete tiered data too early with it"
            " (KAFKA-20732). Use retention.ms and local.retention.bytes."
        )
    return None


def _is_tiered(settings: Mapping[str, str | None]) -> bool:
    return (settings.get(TIERED) or "").strip(_JAVA_BLANKS).lower() == "true"


def _limits_bytes(settings: Mapping[str, str | None]) -> bool:
    limit = (settings.get(RETENTION_BYTES) or "").strip(_JAVA_BLANKS)
    return bool(limit) and not limit.startswith("-")
