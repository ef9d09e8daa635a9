"""What a node runs with, as a value that can be compared. Pure.

A generation is everything that only a restart changes: Kafka's version, the JVM's flags and heap, the node's
restart-only properties and the CA that it trusts. Properties that Kafka changes at run time (`DYNAMIC`) are
applied to running brokers instead. The process records its generation before it becomes the node; the fleet
file gives the desired one. Passwords appear as digests only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DIGEST_LENGTH: Final = 12
KAFKA: Final = "kafka"
# Cluster-wide dynamic broker configs of Kafka 4.x (KIP-226 and successors). `min.insync.replicas` is missing
# on purpose: changing it clears the eligible leader replicas (KIP-966), so it is changed for topics only.
DYNAMIC: Final = frozenset((
    "background.threads", "compression.type", "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms", "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio", "log.cleaner.min.compaction.lag.ms", "log.cleaner.threads",
    "log.cleanup.policy", "log.flush.interval.messages", "log.flush.interval.ms", "log.index.interval.bytes",
    "log.index.size.max.bytes", "log.local.retention.bytes", "log.local.retention.ms",
    "log.message.timestamp.type", "log.preallocate", "log.retention.bytes", "log.retention.ms",
    "log.roll.jitter.ms", "log.roll.ms", "log.segment.bytes", "log.segment.delete.delay.ms",
    "max.connection.creation.rate", "max.connections", "max.connections.per.ip",
    "max.connections.per.ip.overrides", "message.max.bytes", "num.io.threads", "num.network.threads",
    "num.recovery.threads.per.data.dir", "num.replica.fetchers", "unclean.leader.election.enable",
))  # fmt: skip
_SECRET: Final = ("password", "jaas", "secret")


@dataclass(frozen=True, slots=True)
class Generation:
    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        return digest_of(dict(self.parts))

    @property
    def kafka(self) -> str:
        """Kafka's version; empty for a node that recorded none."""
        return self.parts.get(KAFKA, "")


@dataclass(frozen=True, slots=True)
class PartDifference:
    part: str  # `kafka`, `flags`, `ca`, or a property
    running: str  # empty: absent
    desired: str

    def __str__(self) -> str:
        return f"{self.part}: {self.running or 'unset'} → {self.desired or 'unset'}"


def generation_of(
    kafka: str, flags: tuple[str, ...], properties: Mapping[str, str], ca: bytes = b""
) -> Generation:
    parts = {name: _shown(name, value) for name, value in properties.items() if name not in DYNAMIC}
    parts |= {KAFKA: kafka, "flags": " ".join(flags)}
    if ca:
        parts["ca"] = _digest(ca)
    return Generation(parts)


def differences(running: Generation, desired: Generation) -> tuple[PartDifference, ...]:
    """What a restart would change, in order of the parts' names."""
    names = sorted({*running.parts, *desired.parts})
    pairs = [(name, running.parts.get(name, ""), desired.parts.get(name, "")) for name in names]
    return tuple(PartDifference(*pair) for pair in pairs if pair[1] != pair[2])


def dynamic_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Dynamic properties that differ, and their new values; None returns one to its default."""
    names = DYNAMIC & {*before, *after}
    return {name: after.get(name) for name in sorted(names) if before.get(name) != after.get(name)}


def digest_of(document: Mapping[str, Any]) -> str:
    """Identifies a document by its content, whatever the order of its keys."""
    return _digest(json.dumps(document, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]


def _shown(name: str, value: str) -> str:
    if any(word in name.lower() for word in _SECRET):
        return f"sha256:{_digest(value.encode())}"
    return value
