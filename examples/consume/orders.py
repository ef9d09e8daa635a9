"""Bills orders, 100 at a time, in order per customer; orders that fail go to a dead-letter topic.

KAFKA=localhost:9092 python examples/consume/orders.py
"""

from __future__ import annotations

import asyncio
import json
import logging
import os

from penstock.consume import Backoff, Order, ParallelConsumer, Record, Retry

consumer = ParallelConsumer(
    {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092"), "group.id": "billing"}
    | json.loads(os.environ.get("KAFKA_PROPERTIES", "{}")),
    topics=[os.environ.get("ORDERS", "orders")],
    order=Order.KEY,
    concurrency=100,
    value_deserializer=json.loads,
    retry=Retry(attempts=5, backoff=Backoff(0.05, 5.0), by_type={ValueError: Retry(attempts=1)}),
    dead_letter_topic=os.environ.get("ORDERS_DEAD", "orders.dead"),
    handler_seconds_max=30.0,
)


@consumer.handler
async def bill(record: Record) -> None:
    if record.value["amount"] <= 0:
        raise ValueError(f"cannot bill {record.value['amount']}")
    await asyncio.sleep(0.01)  # the call to a payment service
    print(f"billed {record.key.decode()} {record.value['amount']}", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    consumer.run()
