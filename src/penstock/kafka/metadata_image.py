"""The cluster as its controllers have it: an image of the metadata log.

Brokers learn of changes later than the controller, so a decision that must not be wrong reads the log itself.
`MetadataFollower` needs a client of the controller listener whose user has the ClusterAction right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kafka import quorum
from penstock.kafka.connection import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from penstock.kafka.client import Client
    from penstock.wire.logs import Entry

CHUNKS_MAX: Final = 10_000  # that one call of `catch_up` reads
SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_SET: Final = 1  # of the tri-state fields of a BrokerRegistrationChangeRecord: 0 leaves, −1 clears
_UNCHANGED_LEADER: Final = -2

FeatureRange = tuple[int, int]  # lowest and highest supported level
Values = Mapping[str, Any]


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
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """A broker or a controller as it registered last."""

    id: int
    incarnation: str  # different for every process
    features: Mapping[str, FeatureRange]
    rack: str | None = None
    fenced: bool = False
    shutting_down: bool = False  # in controlled shutdown, or excluded from every ISR
    epoch: int = -1  # of a broker
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # of a broker, by listener


@dataclass(frozen=True, slots=True)
class ScramCredential:
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(slots=True)
class MetadataImage:
    """The state after the records applied so far. A transaction of records takes effect when it ends."""

    topics: dict[str, UUID] = field(default_factory=dict)
    names: dict[UUID, str] = field(default_factory=dict)
    partitions: dict[PartitionId, PartitionState] = field(default_factory=dict)
    brokers: dict[int, NodeRegistration] = field(default_factory=dict)
    controllers: dict[int, NodeRegistration] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)  # finalized levels
    credentials: dict[tuple[str, str], ScramCredential] = field(default_factory=dict)  # user, mechanism
    _indexes: dict[UUID, set[int]] = field(default_factory=dict)
    _transaction: list[Entry] | None = None

    @property
    def by_name(self) -> dict[tuple[str, int], PartitionState]:
        """Partitions by topic and number."""
        return {(self.names[t], n): p for (t, n), p in self.partitions.items() if t in self.names}

    def partitions_of(self, name: str) -> dict[int, PartitionState]:
        topic_id = self.topics.get(name)
        if topic_id is None:
            return {}
        return {i: self.partitions[PartitionId(topic_id, i)] for i in sorted(self._indexes.get(topic_id, ()))}

    def apply(self, entry: Entry) -> None:
        """Applies one record; records that the image has no place for are skipped."""
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

    def _apply(self, entry: Entry) -> None:
        handler = _HANDLERS.get(entry.name)
        if handler is not None:
            handler(self, entry.values)

    def _topic(self, values: Values) -> None:
        self.topics[values["Name"]] = values["TopicId"]
        self.names[values["TopicId"]] = values["Name"]

    def _remove_topic(self, values: Values) -> None:
        topic_id = values["TopicId"]
        name = self.names.pop(topic_id, None)
        if name is not None and self.topics.get(name) == topic_id:
            del self.topics[name]
        for index in self._indexes.pop(topic_id, ()):
            del self.partitions[PartitionId(topic_id, index)]

    def _partition(self, values: Values) -> None:
        self._indexes.setdefault(values["TopicId"], set()).add(values["PartitionId"])
        self.partitions[PartitionId(values["TopicId"], values["PartitionId"])] = PartitionState(
            tuple(values["Replicas"]),
            tuple(values["Isr"]),
            values["Leader"],
            values["LeaderEpoch"],
            values["PartitionEpoch"],
            frozenset(values["AddingReplicas"] or ()),
            frozenset(values["RemovingReplicas"] or ()),
        )

    def _change(self, values: Values) -> None:
        """As PartitionRegistration.merge: the leader epoch rises with every leader that is given."""
        key = PartitionId(values["TopicId"], values["PartitionId"])
        before = self.partitions.get(key)
        if before is None:
            return
        leader = values.get("Leader", _UNCHANGED_LEADER)
        elected = leader != _UNCHANGED_LEADER
        self.partitions[key] = PartitionState(
            tuple(_given(values, "Replicas", before.replicas)),
            tuple(_given(values, "Isr", before.isr)),
            leader if elected else before.leader,
            before.leader_epoch + elected,
            before.partition_epoch + 1,
            frozenset(_given(values, "AddingReplicas", before.adding)),
            frozenset(_given(values, "RemovingReplicas", before.removing)),
        )

    def _register(self, values: Values) -> None:
        broker = values["BrokerId"]
        self.brokers[broker] = NodeRegistration(
            broker,
            str(values["IncarnationId"]),
            _ranges(values),
            values["Rack"],
            bool(values["Fenced"]),
            bool(values.get("InControlledShutdown", False)),
            values["BrokerEpoch"],
            {point["Name"]: (point["Host"], point["Port"]) for point in values["EndPoints"]},
        )

    def _register_controller(self, values: Values) -> None:
        controller = values["ControllerId"]
        self.controllers[controller] = NodeRegistration(
            controller, str(values["IncarnationId"]), _ranges(values)
        )

    def _registration_change(self, values: Values) -> None:
        before = self.brokers.get(values["BrokerId"])
        if before is None:
            return
        change = values.get("Fenced", 0)  # tagged fields may be absent
        fenced = before.fenced if change == 0 else change == _SET
        shutting_down = before.shutting_down or values.get("InControlledShutdown", 0) == _SET
        self.brokers[before.id] = replace(before, fenced=fenced, shutting_down=shutting_down)

    def _set_fenced(self, broker: int, *, fenced: bool) -> None:
        if broker in self.brokers:
            self.brokers[broker] = replace(self.brokers[broker], fenced=fenced)

    def _unregister(self, values: Values) -> None:
        self.brokers.pop(values["BrokerId"], None)

    def _credential(self, values: Values) -> None:
        mechanism = SCRAM_MECHANISMS.get(values["Mechanism"])
        if mechanism is not None:
            self.credentials[values["Name"], mechanism] = ScramCredential(
                bytes(values["Salt"]), bytes(values["StoredKey"]), bytes(values["ServerKey"]),
                values["Iterations"],
            )  # fmt: skip

    def _remove_credential(self, values: Values) -> None:
        self.credentials.pop((values["Name"], SCRAM_MECHANISMS.get(values["Mechanism"], "")), None)

    def _feature(self, values: Values) -> None:
        self.features[values["Name"]] = values["FeatureLevel"]


class MetadataFollower:
    """Keeps an image up to date by reading the log, from `position` on."""

    def __init__(self, controllers: Client) -> None:
        self._controllers = controllers
        self.position = 0
        self.image = MetadataImage()

    async def read(self, *, wait_seconds: float = 0.0, timeout: float = CALL_SECONDS) -> quorum.Chunk:
        """Apply the next records, or a snapshot; waits for new ones up to `wait_seconds`."""
        chunk = await quorum.read(
            self._controllers, self.position, wait_seconds=wait_seconds, timeout=timeout
        )
        if chunk.is_snapshot:
            self.image = MetadataImage()
        for record in chunk.records:
            self.image.apply(record.entry)
        self.position = chunk.next_offset
        return chunk

    async def catch_up(self) -> MetadataImage:
        """The image as of now: everything that was committed before this call."""
        for _ in range(CHUNKS_MAX):
            before = self.position
            chunk = await self.read()
            if chunk.next_offset >= chunk.high_watermark or chunk.next_offset == before:
                break
        return self.image


def _given(values: Values, name: str, kept: Any) -> Any:
    value = values.get(name)
    return kept if value is None else value


def _ranges(values: Values) -> dict[str, FeatureRange]:
    return {f["Name"]: (f["MinSupportedVersion"], f["MaxSupportedVersion"]) for f in values["Features"]}


_HANDLERS: Final[Mapping[str, Callable[[MetadataImage, Values], None]]] = {
    "TopicRecord": MetadataImage._topic,
    "RemoveTopicRecord": MetadataImage._remove_topic,
    "PartitionRecord": MetadataImage._partition,
    "PartitionChangeRecord": MetadataImage._change,
    "RegisterBrokerRecord": MetadataImage._register,
    "RegisterControllerRecord": MetadataImage._register_controller,
    "BrokerRegistrationChangeRecord": MetadataImage._registration_change,
    "FenceBrokerRecord": lambda image, values: image._set_fenced(values["Id"], fenced=True),
    "UnfenceBrokerRecord": lambda image, values: image._set_fenced(values["Id"], fenced=False),
    "UnregisterBrokerRecord": MetadataImage._unregister,
    "UserScramCredentialRecord": MetadataImage._credential,
    "RemoveUserScramCredentialRecord": MetadataImage._remove_credential,
    "FeatureLevelRecord": MetadataImage._feature,
}
