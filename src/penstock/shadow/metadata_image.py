"""Brokers, partitions and credentials of a cluster, folded from the records of its metadata log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from penstock.wire.logs import Entry

NO_LEADER_CHANGE: Final = -2
SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class PartitionId(NamedTuple):
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # −1: none
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    epoch: int
    fenced: bool
    rack: str | None
    endpoints: Mapping[str, tuple[str, int]]  # by listener


@dataclass(frozen=True, slots=True)
class ScramCredential:
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class MetadataImage:
    """The state after the records applied so far. A transaction of records takes effect when it ends."""

    def __init__(self) -> None:
        self.topics: dict[str, UUID] = {}
        self.names: dict[UUID, str] = {}
        self.partitions: dict[PartitionId, PartitionState] = {}
        self.brokers: dict[int, RegisteredBroker] = {}
        self.credentials: dict[tuple[str, str], ScramCredential] = {}  # by user and mechanism
        self.features: dict[str, int] = {}
        self._transaction: list[Entry] | None = None
        self._indexes: dict[UUID, set[int]] = {}

    def apply(self, entry: Entry) -> None:
        if entry.name == "BeginTransactionRecord":
            self._transaction = []
        elif entry.name == "AbortTransactionRecord":
            self._transaction = None
        elif entry.name == "EndTransactionRecord":
            entries, self._transaction = self._transaction or [], None
            for one in entries:
                self._apply(one)
        elif self._transaction is not None:
            self._transaction.append(entry)
        else:
            self._apply(entry)

    def partitions_of(self, name: str) -> dict[int, PartitionState]:
        topic_id = self.topics.get(name)
        if topic_id is None:
            return {}
        return {i: self.partitions[PartitionId(topic_id, i)] for i in sorted(self._indexes.get(topic_id, ()))}

    def _apply(self, entry: Entry) -> None:
        handler = _HANDLERS.get(entry.name)
        if handler is not None:
            handler(self, entry.values)

    def _topic(self, r: Mapping[str, Any]) -> None:
        self.topics[r["Name"]] = r["TopicId"]
        self.names[r["TopicId"]] = r["Name"]

    def _remove_topic(self, r: Mapping[str, Any]) -> None:
        name = self.names.pop(r["TopicId"], None)
        if name is not None and self.topics.get(name) == r["TopicId"]:
            del self.topics[name]
        for index in self._indexes.pop(r["TopicId"], ()):
            del self.partitions[PartitionId(r["TopicId"], index)]

    def _partition(self, r: Mapping[str, Any]) -> None:
        self._indexes.setdefault(r["TopicId"], set()).add(r["PartitionId"])
        self.partitions[PartitionId(r["TopicId"], r["PartitionId"])] = PartitionState(
            tuple(r["Replicas"]), tuple(r["Isr"]), r["Leader"], r["LeaderEpoch"], r["PartitionEpoch"]
        )

    def _change(self, r: Mapping[str, Any]) -> None:
        """As PartitionRegistration.merge: the leader epoch rises with every leader that is given."""
        key = PartitionId(r["TopicId"], r["PartitionId"])
        before = self.partitions.get(key)
        if before is None:
            return
        after = replace(before, partition_epoch=before.partition_epoch + 1)
        if r.get("Isr") is not None:
            after = replace(after, isr=tuple(r["Isr"]))
        if r.get("Replicas") is not None:
            after = replace(after, replicas=tuple(r["Replicas"]))
        if r.get("Leader", NO_LEADER_CHANGE) != NO_LEADER_CHANGE:
            after = replace(after, leader=r["Leader"], leader_epoch=before.leader_epoch + 1)
        self.partitions[key] = after

    def _register(self, r: Mapping[str, Any]) -> None:
        endpoints = {e["Name"]: (e["Host"], e["Port"]) for e in r["EndPoints"]}
        self.brokers[r["BrokerId"]] = RegisteredBroker(r["BrokerEpoch"], r["Fenced"], r["Rack"], endpoints)

    def _registration_change(self, r: Mapping[str, Any]) -> None:
        broker = self.brokers.get(r["BrokerId"])
        if broker is not None and r["Fenced"]:
            self.brokers[r["BrokerId"]] = replace(broker, fenced=r["Fenced"] > 0)

    def _set_fenced(self, broker: int, *, fenced: bool) -> None:
        if broker in self.brokers:
            self.brokers[broker] = replace(self.brokers[broker], fenced=fenced)

    def _unregister(self, r: Mapping[str, Any]) -> None:
        self.brokers.pop(r["BrokerId"], None)

    def _credential(self, r: Mapping[str, Any]) -> None:
        mechanism = SCRAM_MECHANISMS.get(r["Mechanism"])
        if mechanism is not None:
            salt, stored, server = bytes(r["Salt"]), bytes(r["StoredKey"]), bytes(r["ServerKey"])
            self.credentials[r["Name"], mechanism] = ScramCredential(salt, stored, server, r["Iterations"])

    def _remove_credential(self, r: Mapping[str, Any]) -> None:
        self.credentials.pop((r["Name"], SCRAM_MECHANISMS.get(r["Mechanism"], "")), None)

    def _feature(self, r: Mapping[str, Any]) -> None:
        self.features[r["Name"]] = r["FeatureLevel"]


_HANDLERS: Final[Mapping[str, Callable[[MetadataImage, Mapping[str, Any]], None]]] = {
    "TopicRecord": MetadataImage._topic,
    "RemoveTopicRecord": MetadataImage._remove_topic,
    "PartitionRecord": MetadataImage._partition,
    "PartitionChangeRecord": MetadataImage._change,
    "RegisterBrokerRecord": MetadataImage._register,
    "BrokerRegistrationChangeRecord": MetadataImage._registration_change,
    "FenceBrokerRecord": lambda image, r: image._set_fenced(r["Id"], fenced=True),
    "UnfenceBrokerRecord": lambda image, r: image._set_fenced(r["Id"], fenced=False),
    "UnregisterBrokerRecord": MetadataImage._unregister,
    "UserScramCredentialRecord": MetadataImage._credential,
    "RemoveUserScramCredentialRecord": MetadataImage._remove_credential,
    "FeatureLevelRecord": MetadataImage._feature,
}
