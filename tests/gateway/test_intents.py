"""What clients intend to delete becomes events for the durability audit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock.audit.topics import PARTITIONS, durability_partition
from penstock.gateway.config import Principal
from penstock.gateway.limits.intents import TENANT_WAITING_MAX, WAITING_MAX, Intents
from penstock.gateway.limits.metering import Source
from penstock.gateway.process import intent_writer
from penstock.gateway.process.intent_writer import EVENTS_AT_ONCE, IntentWriter
from penstock.model.durability import Deleted, Intent
from penstock.model.errors.wire import BrokerUnreachable, ConnectionLost
from penstock.model.ids import LogicalClusterId, PhysicalClusterId, ServiceAccountId

if TYPE_CHECKING:
    import pytest

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.model.durability import LogEvent

PRINCIPAL = Principal(LogicalClusterId("lkc-00000a"), "key", b"", ServiceAccountId("sa-000001"), 1, "")
SOURCE = Source(PhysicalClusterId("pkc-000000"), "gw-1", "i1")


def test_deletions_and_changes_carry_the_account_and_are_published_once() -> None:
    intents = Intents()
    intents.records_deleted(PRINCIPAL, "lkc-00000a_t", 3, 50)
    intents.intended(PRINCIPAL, "config", "lkc-00000a_t")

    first, second = intents.take(SOURCE, 100)

    assert first.subject == "named/lkc-00000a_t/3"
    assert first.read_facts() == Deleted(50, "sa-000001", "lkc-00000a")
    assert second.read_facts() == Intent("config", "sa-000001")
    assert (first.sequence, second.sequence, second.time_ms) == (1, 2, 100)
    assert intents.take(SOURCE, 90) == []


def test_memory_is_bounded_and_what_is_dropped_is_counted() -> None:
    intents = Intents()
    tenants = [replace(PRINCIPAL, tenant=LogicalClusterId(f"lkc-00000{letter}")) for letter in "abc"]
    for number in range(WAITING_MAX + 3):
        intents.records_deleted(tenants[number % 3], "t", 0, number)

    assert intents.lost == 3
    assert len(intents.take(SOURCE, 1)) == WAITING_MAX


def test_a_tenant_leaves_room_for_the_intents_of_others() -> None:
    intents = Intents()
    intents.intended(replace(PRINCIPAL, tenant=LogicalClusterId("lkc-00000b")), "topic-delete", "t")
    for number in range(WAITING_MAX):
        intents.records_deleted(PRINCIPAL, "t", 0, number)

    taken = intents.take(SOURCE, 1)

    assert (len(taken), intents.lost) == (TENANT_WAITING_MAX + 1, WAITING_MAX - TENANT_WAITING_MAX)
    assert taken[0].read_facts() == Intent("topic-delete", "sa-000001")
    intents.records_deleted(PRINCIPAL, "t", 0, 1)
    assert len(intents.take(SOURCE, 2)) == 1


def events(count: int, first: int = 0) -> list[LogEvent]:
    intents = Intents()
    intents._sequence = first
    for number in range(count):
        intents.records_deleted(PRINCIPAL, f"t{number}", 0, number)
    return intents.take(SOURCE, 1)


async def test_intents_are_written_many_at_once_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[TopicPartition] = []
    written: list[bytes] = []

    async def append(client: object, partition: TopicPartition, rows: list[Any], **_: Any) -> None:
        del client
        calls.append(partition)
        if len(calls) == 2:
            raise ConnectionLost(address="kafka:1", reason="gone")
        written.extend(value for _, value in rows)

    monkeypatch.setattr(intent_writer, "append", append)
    monkeypatch.setattr(intent_writer, "RETRY_SECONDS", 0.0)
    writer, made = IntentWriter(), events(EVENTS_AT_ONCE + 1)
    writer(made)
    running = asyncio.create_task(writer.run(cast("Client", None)))
    async with asyncio.timeout(30):
        while writer._waiting:
            await asyncio.sleep(0)
    running.cancel()

    assert sorted(written) == sorted(event.to_bytes() for event in made)
    assert len(calls) < EVENTS_AT_ONCE / 10


def test_intents_that_find_no_room_are_counted() -> None:
    writer = IntentWriter()
    intents = writer.intents = Intents()

    writer([*events(TENANT_WAITING_MAX), *events(TENANT_WAITING_MAX, TENANT_WAITING_MAX)])
    writer(events(2, 2 * TENANT_WAITING_MAX))

    assert intents.lost == 2
    assert (writer._waiting[0].sequence, len(writer._waiting)) == (3, WAITING_MAX)


async def test_a_partition_whose_leader_hangs_delays_no_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds later, the deletion would be taken for a loss."""
    home = durability_partition(events(1)[0].key).partition
    attempts: list[int] = []

    async def append(_: object, partition: TopicPartition, rows: list[Any], **__: object) -> None:
        attempts.append(partition.partition)
        if partition.partition == home:
            await asyncio.Event().wait()

    monkeypatch.setattr(intent_writer, "append", append)
    monkeypatch.setattr(intent_writer, "WRITE_SECONDS_MAX", 0.01)
    writer = IntentWriter()
    for first in range(2):
        writer(events(1, first))
        await writer.flush(cast("Client", None))

    following = (home + 1) % PARTITIONS
    assert attempts == [home, following, following], "and it is avoided for a while"


async def test_an_intent_that_no_partition_accepts_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    down = True
    written: list[int] = []

    async def append(_: object, partition: TopicPartition, rows: list[Any], **__: object) -> None:
        if down:
            raise BrokerUnreachable(address="b1", reason="refused")
        written.append(partition.partition)

    monkeypatch.setattr(intent_writer, "append", append)
    writer = IntentWriter()
    writer(events(1))
    await writer.flush(cast("Client", None))
    assert len(writer._waiting) == 1
    down = False
    await writer.flush(cast("Client", None))

    assert len(written) == 1
