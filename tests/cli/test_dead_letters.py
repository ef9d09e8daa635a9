"""`consume dead-letters`, with a real Kafka: from a failed record to its second chance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.library import dead_letters
from penstock.consume import ParallelConsumer, Record, Retry
from penstock.kafka.client import Client
from tests.consume.conftest import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.command import CommandResult
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster(fleet: Fleet, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    """The commands log in to the fleet, instead of a tenant's logical cluster."""

    monkeypatch.setattr(
        dead_letters, "tenant_client", lambda options, cluster: Client(fleet.bootstrap, fleet.security())
    )
    return KafkaCluster(fleet, unique)


def handled(cluster: KafkaCluster, topic: str, group: str, dead: str, *, bug: bool) -> list[tuple[Any, Any]]:
    """Runs a consumer until all is committed; what it handled, with its headers."""
    consumer = ParallelConsumer(
        cluster.properties(group),
        [topic],
        commit_seconds=0.1,
        retry=Retry(attempts=1),
        dead_letter_topic=dead,
    )
    seen: list[tuple[Any, Any]] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        if bug and record.value.endswith(b"x"):
            raise ValueError("the bug")
        if bug and record.value.endswith(b"y"):
            raise KeyError("another")
        seen.append((record.value, record.headers))

    async def run() -> None:
        async with consumer, asyncio.timeout(60):
            while not await asyncio.to_thread(cluster.all_committed, group, topic, 3):
                await asyncio.sleep(0.05)

    asyncio.run(run())
    return seen


def test_dead_letters_are_listed_replayed_once_and_handled_by_the_repaired_code(
    cluster: KafkaCluster, here: Callable[..., CommandResult]
) -> None:
    topic, group = cluster.topic(3), cluster.unique("group")
    dead = f"{topic}.dead"
    admin = AdminClient(cluster.fleet.client_config())
    admin.create_topics([NewTopic(dead, 2, 1)])[dead].result(30)
    values = [f"{number}{'xyz'[number % 3]}" for number in range(30)]
    cluster.write(topic, [(f"k{number}", value) for number, value in enumerate(values)])
    assert len(handled(cluster, topic, group, dead, bug=True)) == 10

    listed = here("consume", "dead-letters", "list", dead, "-o", "json")
    some = here("consume", "dead-letters", "list", dead, "--cause", "ValueError", "-o", "json")
    first = here("consume", "dead-letters", "replay", dead, "--cause", "ValueError", "-o", "json")
    again = here("consume", "dead-letters", "replay", dead, "--cause", "ValueError", "-o", "json")
    rest = here("consume", "dead-letters", "list", dead, "-o", "json")
    last = here("consume", "dead-letters", "replay", dead, "-o", "json")
    none = here("consume", "dead-letters", "list", dead)

    assert (listed.code, len(listed.data), len(some.data)) == (0, 20, 10), listed.err
    assert {row["cause"] for row in some.data} == {"builtins.ValueError"}
    assert all(row["from"].startswith(topic) for row in listed.data)
    assert (first.data, again.data) == ({"replayed": 10, "left": 10}, {"replayed": 0, "left": 10})
    assert {row["cause"] for row in rest.data} == {"builtins.KeyError"}
    assert last.data == {"replayed": 10, "left": 0}
    assert "no dead letters" in none.out
    second = handled(cluster, topic, group, dead, bug=False)
    assert sorted(value.decode() for value, _ in second) == sorted(v for v in values if v[-1] in "xy")
    assert all(headers == [] for _, headers in second)
