"""Tests a handler without a broker: the billing example on an in-memory Kafka.

python examples/consume/billing_in_memory.py
"""

from __future__ import annotations

import asyncio
import json

from penstock.consume import ParallelConsumer, Record, Retry
from penstock.consume.testing import MemoryKafka


async def main() -> None:
    kafka = MemoryKafka()
    kafka.create("orders", partitions=2)
    for amount in (5, -1, 7):
        kafka.write("orders", json.dumps({"amount": amount}), key="alice")
    consumer = ParallelConsumer(
        kafka.properties("billing"),
        topics=["orders"],
        value_deserializer=json.loads,
        retry=Retry(attempts=1),
        dead_letter_topic="orders.dead",
        commit_seconds=0.05,
        **kafka.clients,
    )
    billed: list[int] = []

    @consumer.handler
    async def bill(record: Record) -> None:
        if record.value["amount"] <= 0:
            raise ValueError("nothing to bill")
        billed.append(record.value["amount"])

    async with consumer:
        await kafka.until_committed("billing", "orders")
    assert billed == [5, 7]
    assert kafka.values("orders.dead") == [b'{"amount": -1}']
    print("billed", billed, "and sent one to the dead-letter topic")


if __name__ == "__main__":
    asyncio.run(main())
