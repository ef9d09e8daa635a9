"""Take a live broker out of every ISR while it keeps replicating (Kora §4.5), on a stock cluster.

One BrokerHeartbeat in the broker's name, with `WantShutDown`, makes the active controller mark the broker as
`in controlled shutdown`. The mark is in the metadata log: the controller removes the broker from every ISR,
lets no leader add it again and elects it for nothing. The broker does not notice. It stays unfenced by its
own heartbeats and keeps fetching. Only a restart, which registers the broker again, removes the mark.

This is no documented contract of Kafka. `tests/kafka/test_isr_exclusion.py` checks it for the pinned version.
It needs the controller listener and the ClusterAction right: capability `isr-exclusion`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.kafka import quorum
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.broker_errors import check
from penstock.kafka.routing import CONTROLLER, NodeWithId
from penstock.model.errors import PenstockError
from penstock.model.errors.health import ExclusionIneffective, ExclusionUnsafe
from penstock.wire.error_codes import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.admin.topics import Partition, Topic
    from penstock.kafka.client import Client
    from penstock.kafka.quorum import MetadataRecord

EXCLUDED_SECONDS_MAX: Final = 10.0  # from the heartbeat until the broker is in no ISR; 0.25 s as measured
POLL_SECONDS: Final = 0.1
TOPICS_PER_CALL: Final = 500  # whose minimum of in-sync replicas is read in one call
SHOWN_MAX: Final = 3  # partitions that an error names
MIN_ISR: Final = "min.insync.replicas"
_CHANGE_SET: Final = 1  # of the tri-state fields of a BrokerRegistrationChangeRecord: 0 leaves, −1 clears


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker as the controller knows it."""

    broker: int
    epoch: int
    fenced: bool
    shutting_down: bool  # excluded, if it is not fenced

    @property
    def excluded(self) -> bool:
        return self.shutting_down and not self.fenced


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A partition that the exclusion of a broker would harm."""

    partition: TopicPartition
    reason: str

    def __str__(self) -> str:
        return f"{self.partition}: {self.reason}"


def obstacles(
    described: Mapping[str, Topic],
    min_isr: Mapping[str, int],
    broker: int,
    expendable: Collection[str] = (),
) -> tuple[Obstacle, ...]:
    """Why the broker must not leave every ISR now; nothing if it may.

    `expendable` are topics whose partitions may lose their leader, such as probes of this broker alone. One
    partition that the broker leads is required: without any, the controller grants the shutdown at once,
    and the broker is back in every ISR a second later.
    """
    harmed = [
        Obstacle(TopicPartition(name, partition.index), reason)
        for name, topic in sorted(described.items())
        if name not in expendable
        for partition in topic.partitions
        if (reason := _harm(partition, broker, min_isr.get(name, 1)))
    ]
    leads = any(p.leader == broker for topic in described.values() for p in topic.partitions)
    if not leads:
        harmed.append(Obstacle(TopicPartition("", -1), f"broker {broker} leads no partition"))
    return tuple(harmed)


def _harm(partition: Partition, broker: int, least: int) -> str:
    if broker not in partition.isr and partition.leader != broker:
        return ""
    left = len(partition.isr) - (broker in partition.isr)
    if left == 0:
        return f"broker {broker} is its only in-sync replica"
    if left < least <= len(partition.replicas):
        return f"{left} in-sync replicas would be left, {MIN_ISR} is {least}"
    return ""


async def obstacles_now(
    client: Client, broker: int, *, expendable: Collection[str] = ()
) -> tuple[Obstacle, ...]:
    """`obstacles` of the running cluster."""
    described = await _topics(client)
    names = sorted({name for name, topic in described.items() if _has(topic, broker)})
    min_isr: dict[str, int] = {}
    for first in range(0, len(names), TOPICS_PER_CALL):
        resources = [configs.topic(name) for name in names[first : first + TOPICS_PER_CALL]]
        for resource, entries in (await configs.describe(client, resources, names=[MIN_ISR])).items():
            if isinstance(entries, PenstockError):
                if entries.facts.get("error_code") in MISSING:
                    continue  # deleted meanwhile
                raise entries
            min_isr[resource.name] = int(entries[MIN_ISR].value or 1)
    return obstacles(described, min_isr, broker, expendable)


async def registrations(controllers: Client) -> dict[int, Registration]:
    """Every registered broker, from the metadata log, by a client of the controller listener."""
    known: dict[int, Registration] = {}
    position = 0
    while True:
        chunk = await quorum.read(controllers, position)
        for record in chunk.records:
            apply(known, record)
        if chunk.next_offset >= chunk.high_watermark or chunk.next_offset == position:
            return known
        position = chunk.next_offset


def apply(known: dict[int, Registration], record: MetadataRecord) -> None:
    """Applies one record of the metadata log to the registrations."""
    values = record.entry.values
    match record.entry.name:
        case "RegisterBrokerRecord":
            broker = values["BrokerId"]
            shutting_down = bool(values.get("InControlledShutdown", False))
            known[broker] = Registration(broker, values["BrokerEpoch"], bool(values["Fenced"]), shutting_down)
        case "UnregisterBrokerRecord":
            known.pop(values["BrokerId"], None)
        case "BrokerRegistrationChangeRecord" if (before := known.get(values["BrokerId"])) is not None:
            change = values.get("Fenced", 0)  # tagged fields may be absent
            known[before.broker] = replace(
                before,
                fenced=before.fenced if change == 0 else change == _CHANGE_SET,
                shutting_down=before.shutting_down or values.get("InControlledShutdown", 0) == _CHANGE_SET,
            )
        case _:
            pass


async def exclude(
    client: Client, controllers: Client, broker: int, *, expendable: Collection[str] = ()
) -> Registration:
    """Takes the broker out of every ISR; returns when it is. Excluding it again changes nothing.

    Raises ExclusionUnsafe, and changes nothing, if a partition would lose its leader or fall below its
    minimum of in-sync replicas."""
    registration = (await registrations(controllers)).get(broker)
    if registration is None or registration.fenced:
        state = "fenced" if registration else "not registered"
        raise ExclusionUnsafe(broker=broker, reason=f"it is {state}")
    if not registration.excluded:
        harmed = await obstacles_now(client, broker, expendable=expendable)
        if harmed:
            more = [f"and {len(harmed) - SHOWN_MAX} more"] if len(harmed) > SHOWN_MAX else []
            shown = "; ".join([*(_shown(each) for each in harmed[:SHOWN_MAX]), *more])
            raise ExclusionUnsafe(broker=broker, reason=shown)
        await _announce_shutdown(controllers, registration)
    await _wait_until_out(client, broker, expendable)
    return replace(registration, shutting_down=True)


def _shown(obstacle: Obstacle) -> str:
    return str(obstacle) if obstacle.partition.topic else obstacle.reason


async def _announce_shutdown(controllers: Client, registration: Registration) -> None:
    """The heartbeat. The epoch makes it void if the broker has registered again meanwhile."""
    described = await quorum.describe(controllers, to=CONTROLLER)
    body = {
        "BrokerId": registration.broker,
        "BrokerEpoch": registration.epoch,
        # An older offset would make the controller consider the broker behind, and fence it.
        "CurrentMetadataOffset": described.high_watermark - 1,
        "WantFence": False,
        "WantShutDown": True,
    }
    response = await controllers.call("BrokerHeartbeat", body, to=NodeWithId(described.leader_id))
    check("BrokerHeartbeat", response["ErrorCode"], None, f"broker {registration.broker}")
    if response["ShouldShutDown"]:
        raise ExclusionIneffective(broker=registration.broker, reason="it led no partition")


async def _wait_until_out(client: Client, broker: int, expendable: Collection[str]) -> None:
    deadline = time.monotonic() + EXCLUDED_SECONDS_MAX
    while True:
        inside = [
            str(TopicPartition(name, partition.index))
            for name, topic in (await _topics(client)).items()
            if name not in expendable
            for partition in topic.partitions
            if broker in partition.isr
        ]
        if not inside:
            return
        if time.monotonic() > deadline:
            raise ExclusionIneffective(broker=broker, reason=f"it is still in the ISR of {inside[0]}")
        await asyncio.sleep(POLL_SECONDS)


async def _topics(client: Client) -> dict[str, Topic]:
    described = await topics.describe(client)
    existing = {
        name: topic
        for name, topic in described.items()
        if not (isinstance(topic, PenstockError) and topic.facts.get("error_code") in MISSING)
    }
    return results_or_raise(existing)


def _has(topic: Topic, broker: int) -> bool:
    return any(broker in partition.isr or partition.leader == broker for partition in topic.partitions)
