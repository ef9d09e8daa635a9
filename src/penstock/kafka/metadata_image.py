"""The cluster as its controllers have it: an image of the metadata log.

Brokers learn of changes later than the controller, so a decision that must not be wrong reads the log itself.
`MetadataFollower` needs a client of the controller listener whose user has the ClusterAction right.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka import quorum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from penstock.kafka.client import Client
    from penstock.wire.logs import Entry

CHUNKS_MAX: Final = 10_000  # that one call of `catch_up` reads
_SET: Final = 1  # of the tri-state fields of a BrokerRegistrationChangeRecord: 0 leaves, −1 clears
_UNCHANGED_LEADER: Final = -2

FeatureRange = tuple[int, int]  # lowest and highest supported level


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """A broker or a controller as it registered last."""

    id: int
    incarnation: str  # different for every process
    features: Mapping[str, FeatureRange]
    rack: str | None = None
    fenced: bool = False
    shutting_down: bool = False  # in controlled shutdown, or excluded from every ISR


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: tuple[int, ...]
    isr: frozenset[int]
    leader: int | None
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()


@dataclass(slots=True)
class MetadataImage:
    topics: dict[UUID, str] = field(default_factory=dict)
    partitions: dict[tuple[UUID, int], PartitionImage] = field(default_factory=dict)
    brokers: dict[int, NodeRegistration] = field(default_factory=dict)
    controllers: dict[int, NodeRegistration] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)  # finalized levels

    @property
    def by_name(self) -> dict[tuple[str, int], PartitionImage]:
        """Partitions by topic and number."""
        return {(self.topics[t], n): p for (t, n), p in self.partitions.items() if t in self.topics}

    def apply(self, entry: Entry) -> None:
        """Applies one record; records that the image has no place for are skipped."""
        values = entry.values
        match entry.name:
            case "TopicRecord":
                self.topics[values["TopicId"]] = values["Name"]
            case "RemoveTopicRecord":
                self._remove_topic(values["TopicId"])
            case "PartitionRecord":
                self.partitions[values["TopicId"], values["PartitionId"]] = _partition(values)
            case "PartitionChangeRecord":
                key = values["TopicId"], values["PartitionId"]
                if key in self.partitions:
                    self.partitions[key] = _changed(self.partitions[key], values)
            case "RegisterControllerRecord":
                controller = values["ControllerId"]
                self.controllers[controller] = NodeRegistration(
                    controller, str(values["IncarnationId"]), _ranges(values)
                )
            case "FeatureLevelRecord":
                self.features[values["Name"]] = values["FeatureLevel"]
            case _:
                self._apply_broker(entry)

    def _apply_broker(self, entry: Entry) -> None:
        values = entry.values
        match entry.name:
            case "RegisterBrokerRecord":
                broker = values["BrokerId"]
                self.brokers[broker] = NodeRegistration(
                    broker,
                    str(values["IncarnationId"]),
                    _ranges(values),
                    values["Rack"],
                    bool(values["Fenced"]),
                    bool(values.get("InControlledShutdown", False)),
                )
            case "UnregisterBrokerRecord":
                self.brokers.pop(values["BrokerId"], None)
            case "FenceBrokerRecord" | "UnfenceBrokerRecord" if values["Id"] in self.brokers:
                fenced = entry.name == "FenceBrokerRecord"
                self.brokers[values["Id"]] = replace(self.brokers[values["Id"]], fenced=fenced)
            case "BrokerRegistrationChangeRecord" if values["BrokerId"] in self.brokers:
                before = self.brokers[values["BrokerId"]]
                change = values.get("Fenced", 0)  # tagged fields may be absent
                shutting_down = before.shutting_down or values.get("InControlledShutdown", 0) == _SET
                fenced = before.fenced if change == 0 else change == _SET
                self.brokers[before.id] = replace(before, fenced=fenced, shutting_down=shutting_down)
            case _:
                pass

    def _remove_topic(self, topic: UUID) -> None:
        self.topics.pop(topic, None)
        self.partitions = {key: each for key, each in self.partitions.items() if key[0] != topic}


class MetadataFollower:
    """Keeps an image up to date by reading the log on demand."""

    def __init__(self, controllers: Client) -> None:
        self._controllers = controllers
        self._position = 0
        self.image = MetadataImage()

    async def catch_up(self) -> MetadataImage:
        """The image as of now: everything that was committed before this call."""
        for _ in range(CHUNKS_MAX):
            chunk = await quorum.read(self._controllers, self._position)
            if chunk.is_snapshot:
                self.image = MetadataImage()
            for record in chunk.records:
                self.image.apply(record.entry)
            before, self._position = self._position, chunk.next_offset
            if chunk.next_offset >= chunk.high_watermark or chunk.next_offset == before:
                break
        return self.image


def _partition(values: Mapping[str, Any]) -> PartitionImage:
    return PartitionImage(
        tuple(values["Replicas"]),
        frozenset(values["Isr"]),
        _leader(values["Leader"]),
        frozenset(values["AddingReplicas"] or ()),
        frozenset(values["RemovingReplicas"] or ()),
    )


def _changed(before: PartitionImage, values: Mapping[str, Any]) -> PartitionImage:
    def given(name: str, kept: Sequence[int] | frozenset[int]) -> Sequence[int] | frozenset[int]:
        value: Sequence[int] | None = values.get(name)
        return kept if value is None else value

    leader = values.get("Leader", _UNCHANGED_LEADER)
    return PartitionImage(
        tuple(given("Replicas", before.replicas)),
        frozenset(given("Isr", before.isr)),
        before.leader if leader == _UNCHANGED_LEADER else _leader(leader),
        frozenset(given("AddingReplicas", before.adding)),
        frozenset(given("RemovingReplicas", before.removing)),
    )


def _leader(value: int) -> int | None:
    return value if value >= 0 else None


def _ranges(values: Mapping[str, Any]) -> dict[str, FeatureRange]:
    return {f["Name"]: (f["MinSupportedVersion"], f["MaxSupportedVersion"]) for f in values["Features"]}
