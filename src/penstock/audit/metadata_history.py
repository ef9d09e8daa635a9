"""Turns records of the metadata log into facts about partitions, topics and brokers.

Effective configurations are the topic's own values, then the cluster's dynamic defaults (both are in the
metadata log), then `static`, the values of the brokers' files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.audit.rules.state import INTENT_MS
from penstock.audit.topic_ids import id_text
from penstock.model.durability import (
    EVERY_TOPIC,
    NAMED,
    PARTITION,
    UNKNOWN,
    UNLIMITED,
    Broker,
    Intent,
    Placement,
    Policy,
    Removed,
    Topic,
    What,
    partition_subject,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from penstock.model.durability import Facts, LogEvent
    from penstock.wire.logs import Entry

NO_LEADER_CHANGE: Final = -2
NO_RECOVERY_CHANGE: Final = -1
TOPIC, BROKER = 2, 4  # resource types of configurations
# By topic configuration: the brokers' one that it falls back to.
DEFAULTS: Final = {
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "cleanup.policy": "log.cleanup.policy",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "segment.bytes": "log.segment.bytes",
    "remote.storage.enable": "",
    "remote.log.copy.disable": "",
}
TOPIC_ACTIONS: Final = ("topic-delete", "topic-restore")  # intents about a topic's name, whatever its id
WEEK_MS: Final = 7 * 24 * 3600 * 1000
Observation = tuple[str, "Facts"]  # a subject, and facts about it


@dataclass(slots=True)
class MetadataHistory:
    """The state of the metadata log so far. Each change is returned as observations, in order."""

    static: Mapping[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # topic name by id
    partitions: dict[tuple[str, int], Placement] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    brokers: dict[int, int] = field(default_factory=dict)  # epochs of registered brokers
    _pending: list[Entry] | None = None  # a transaction of records takes effect when it ends

    def apply(self, entries: Iterable[Entry]) -> Iterator[Observation]:
        for entry in entries:
            if entry.name == "BeginTransactionRecord":
                self._pending = []
            elif entry.name == "AbortTransactionRecord":
                self._pending = None
            elif entry.name == "EndTransactionRecord":
                entries_of_it, self._pending = self._pending or [], None
                for one in entries_of_it:
                    yield from self._apply(one)
            elif self._pending is not None:
                self._pending.append(entry)
            else:
                yield from self._apply(entry)

    def image(self) -> Iterator[Observation]:
        """Everything, as a start or after a gap."""
        for (topic_id, partition), placement in self.partitions.items():
            subject = partition_subject(topic_id, partition)
            yield subject, self.policy(placement.topic)
            yield subject, replace(placement, snapshot=True)
        for topic_id, name in self.names.items():
            yield f"topic/{name}", Topic(topic_id)

    def policy(self, topic: str) -> Policy:
        own = self.configs.get((TOPIC, topic), {})
        dynamic = self.configs.get((BROKER, ""), {})

        def value(name: str, default: str) -> str:
            fallback = DEFAULTS[name]
            return own.get(name) or dynamic.get(fallback) or self.static.get(fallback) or default

        return Policy(
            retention_ms=int(value("retention.ms", str(WEEK_MS))),
            retention_bytes=int(value("retention.bytes", str(UNLIMITED))),
            cleanup=value("cleanup.policy", "delete"),
            min_isr=int(value("min.insync.replicas", "1")),
            unclean=value("unclean.leader.election.enable", "false") == "true",
            segment_bytes=int(value("segment.bytes", str(1 << 30))),
            tiered=value("remote.storage.enable", "false") == "true",
            copy_disabled=value("remote.log.copy.disable", "false") == "true",
        )

    def resolved(self, event: LogEvent, now_ms: int) -> Iterator[Observation]:
        """An intent as facts about subjects.

        One that is read late explains what is observed late: after a pause of the audit, both are."""
        facts = event.read_facts()
        name = event.subject.removeprefix(NAMED)
        if name.startswith(PARTITION):
            yield name, facts
            return
        topic, slash, partition = name.partition("/")
        if isinstance(facts, Intent):
            until_ms = facts.until_ms if facts.until_ms != UNKNOWN else event.time_ms + INTENT_MS
            facts = replace(facts, since_ms=event.time_ms, until_ms=max(until_ms, now_ms))
            if topic != EVERY_TOPIC:
                yield f"topic/{topic}", facts
            if facts.action in TOPIC_ACTIONS:
                return
        for key, placement in self.partitions.items():
            if topic in (EVERY_TOPIC, placement.topic) and (not slash or str(key[1]) == partition):
                yield partition_subject(*key), facts

    def replicas_of(self, broker: int) -> dict[tuple[str, int], Placement]:
        return {key: each for key, each in self.partitions.items() if broker in each.replicas}

    def _apply(self, entry: Entry) -> Iterator[Observation]:
        r = entry.values
        match entry.name:
            case "TopicRecord":
                self.names[id_text(r["TopicId"])] = r["Name"]
                yield f"topic/{r['Name']}", Topic(id_text(r["TopicId"]))
            case "RemoveTopicRecord":
                yield from self._remove(id_text(r["TopicId"]))
            case "PartitionRecord":
                yield from self._partition(r)
            case "PartitionChangeRecord":
                yield from self._change(r)
            case "ConfigRecord":
                yield from self._config(r)
            case "RegisterBrokerRecord":
                self.brokers[r["BrokerId"]] = r["BrokerEpoch"]
                yield f"broker/{r['BrokerId']}", Broker(epoch=r["BrokerEpoch"])
            case "UnregisterBrokerRecord":
                self.brokers.pop(r["BrokerId"], None)

    def _remove(self, topic_id: str) -> Iterator[Observation]:
        name = self.names.pop(topic_id, None)
        for key in [key for key in self.partitions if key[0] == topic_id]:
            del self.partitions[key]
            yield partition_subject(*key), Removed()
        if name is not None:
            self.configs.pop((TOPIC, name), None)
            yield f"topic/{name}", Topic("")

    def _partition(self, r: Mapping[str, Any]) -> Iterator[Observation]:
        topic_id = id_text(r["TopicId"])
        placement = Placement(
            self.names.get(topic_id, ""),
            tuple(r["Replicas"]),
            tuple(r["Isr"]),
            r["Leader"],
            r["LeaderEpoch"],
            r["PartitionEpoch"],
            tuple(r.get("EligibleLeaderReplicas") or ()),
            r.get("LeaderRecoveryState", 0) == 1,
        )
        self.partitions[topic_id, r["PartitionId"]] = placement
        subject = partition_subject(topic_id, r["PartitionId"])
        yield subject, self.policy(placement.topic)
        yield subject, placement

    def _change(self, r: Mapping[str, Any]) -> Iterator[Observation]:
        """As Kafka's PartitionRegistration.merge: the leader epoch rises with every leader that is given."""
        key = (id_text(r["TopicId"]), r["PartitionId"])
        before = self.partitions.get(key)
        if before is None:
            return
        after = replace(before, partition_epoch=before.partition_epoch + 1)
        if r.get("Isr") is not None:
            after = replace(after, isr=tuple(r["Isr"]))
        if r.get("Replicas") is not None:
            after = replace(after, replicas=tuple(r["Replicas"]))
        if r.get("EligibleLeaderReplicas") is not None:
            after = replace(after, elr=tuple(r["EligibleLeaderReplicas"]))
        if r.get("LeaderRecoveryState", NO_RECOVERY_CHANGE) != NO_RECOVERY_CHANGE:
            after = replace(after, recovering=r["LeaderRecoveryState"] == 1)
        if r.get("Leader", NO_LEADER_CHANGE) != NO_LEADER_CHANGE:
            after = replace(after, leader=r["Leader"], leader_epoch=before.leader_epoch + 1)
        self.partitions[key] = after
        yield partition_subject(*key), after

    def _config(self, r: Mapping[str, Any]) -> Iterator[Observation]:
        kind, name = r["ResourceType"], r["ResourceName"]
        values = self.configs.setdefault((kind, name), {})
        if r["Value"] is None:
            values.pop(r["Name"], None)
        else:
            values[r["Name"]] = r["Value"]
        concerned = r["Name"] in DEFAULTS if kind == TOPIC else not name and r["Name"] in DEFAULTS.values()
        if not concerned:
            return
        for key, placement in self.partitions.items():
            if kind != TOPIC or placement.topic == name:
                yield partition_subject(*key), self.policy(placement.topic)


def is_resolvable(event: LogEvent, topics: Collection[str]) -> bool:
    """Whether what an intent is about is known, if the metadata log has these topics."""
    name = event.subject.removeprefix(NAMED)
    if name.startswith(PARTITION) or name == EVERY_TOPIC:
        return True
    if event.what is What.INTENT and event.facts.get("action") in TOPIC_ACTIONS:
        return True
    return name.partition("/")[0] in topics


def static_defaults(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The brokers' own values that topics fall back to, from a broker's described configuration."""
    static = {name: value for name in DEFAULTS.values() if name and (value := configs.get(name))}
    if "log.retention.ms" not in static:
        for name, factor in (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)):
            if value := configs.get(name):
                limit = int(value)
                static["log.retention.ms"] = str(limit * factor if limit >= 0 else UNLIMITED)
                break
    return static
