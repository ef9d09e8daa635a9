"""Prometheus metrics and inspect()."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from penstock.consume.testing import MemoryKafka
from penstock.model.metric_catalogue import CONSUME
from tests.consume.test_consumer import consumer_of, until
from tests.harness.metrics import differences

if TYPE_CHECKING:
    from penstock.consume import Record


async def test_metrics_show_finished_running_and_waiting_records() -> None:
    kafka = MemoryKafka()
    kafka.create("orders")
    for _ in range(5):
        kafka.write("orders", "x", key="k")
    consumer = consumer_of(kafka)
    hold = asyncio.Event()

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.offset == 2:
            await hold.wait()

    registry = CollectorRegistry()
    registry.register(consumer.collector())
    async with consumer:
        await until(lambda: consumer.inspect().running and (kafka.committed("g", "orders") or (0,))[0] == 2)
        text = generate_latest(registry).decode()
        assert consumer.not_ready() == ""
        inspection = consumer.inspect()
        hold.set()
        await kafka.until_committed("g", "orders")
    assert differences(text, CONSUME) == []
    assert 'penstock_consume_finished_records_total{group="g"} 2.0' in text
    assert 'penstock_consume_running_records{group="g",partition="0",topic="orders"} 1.0' in text
    assert 'penstock_consume_queued_behind_key_records{group="g",partition="0",topic="orders"} 2.0' in text
    assert 'penstock_consume_committed_offset{group="g",partition="0",topic="orders"} 2.0' in text
    assert 'penstock_consume_handler_seconds_count{group="g"} 2.0' in text
    (partition,) = inspection.partitions
    assert (partition.next_commit, partition.unfinished, partition.hot_keys[0].waiting) == (2, 3, 2)
    assert inspection.as_dict()["running"][0]["offset"] == 2
    assert consumer.inspect().state == "stopped"
    assert consumer.not_ready() == "the consumer is stopped"


async def test_an_idle_consumer_can_be_inspected() -> None:
    inspection = consumer_of(MemoryKafka()).inspect()
    assert (inspection.state, inspection.partitions, inspection.running) == ("idle", [], [])
