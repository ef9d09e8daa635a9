"""Partitions of an executor whose store or broker is unavailable: they wait, and the others continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.olep.executor import Executor
from penstock.olep.log import Log
from penstock.olep.store.sqlite import SqliteStores
from tests.olep.test_store import APPLICATION, TOPIC

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.outbox_sender import OutboxSender


class Assigned:
    """A consumer of two partitions; the leader of partition 1 does not respond until `leads`."""

    leads = False

    def __init__(self) -> None:
        self.paused: set[int] = set()

    def get_watermark_offsets(self, place: TopicPartition, **_: object) -> tuple[int, int]:
        if place.partition == 1 and not self.leads:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return 0, 0

    def committed(self, places: list[TopicPartition], **_: object) -> list[TopicPartition]:
        return places

    def incremental_assign(self, places: list[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition) -> None: ...

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {each.partition for each in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {each.partition for each in places}


@pytest.fixture
def executor(tmp_path: Path) -> Executor:
    log = Log("pairs", "pairs", TOPIC, 2, {}, cast("Any", None))
    executor = Executor(APPLICATION, log, SqliteStores(tmp_path))
    executor._consumer = cast("Any", Assigned())
    executor._sender = cast("OutboxSender", None)
    return executor


def test_a_partition_whose_leader_does_not_respond_waits_and_the_other_runs(executor: Executor) -> None:
    consumer = cast("Assigned", executor._consumer)
    executor._assigned(executor._consumer, [TopicPartition("pairs", each) for each in (0, 1)])
    assert executor._failure is None
    assert ([each.partition for each in executor.tasks()], [*executor.suspended()]) == ([0], [1])
    assert consumer.paused == {1}

    executor._resume(1)
    assert [*executor.suspended()] == [1]
    consumer.leads = True
    executor._resume(1)
    assert ([each.partition for each in executor.tasks()], executor.suspended()) == ([0, 1], {})
    assert consumer.paused == set()
    for task in executor._tasks.values():
        task.store.close()
