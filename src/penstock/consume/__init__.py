"""A parallel consumer: one member of a group, many records at once, order kept where it matters.

    from penstock.consume import ParallelConsumer, Order

    consumer = ParallelConsumer({"bootstrap.servers": …, "group.id": "billing"}, topics=["orders"],
                                order=Order.KEY, concurrency=100)

    @consumer.handler
    async def handle(record): ...

    consumer.run()

What it promises: a record is committed only when everything before it is done; records of one key
(or partition) are handled one at a time and in order; memory is bounded; what a crash can repeat is
bounded and what was finished beyond the committed offset is not repeated at all. What it is not: a
stream processor; there are no joins, windows or state. Works with any Kafka, without the platform.

The parts: `core` is the whole decision, pure, made of `offsets` (offset controller), `schedule`
(parallelism coordinator) and `intake` (back pressure). Around it `orchestrator` (event loop),
`proxy` and `publisher` (the only owners of Kafka clients, on one thread), and the runners: `lanes`
for coroutines, `threads`, `processes`. `consumer` is the front door and the supervisor.
"""

from penstock.consume.consumer import ParallelConsumer
from penstock.consume.inspection import Inspection
from penstock.consume.record import Output, Record
from penstock.consume.retry import Backoff, Retry
from penstock.consume.schedule import NullKeys, Order
from penstock.consume.settings import Workers

__all__ = [
    "Backoff",
    "Inspection",
    "NullKeys",
    "Order",
    "Output",
    "ParallelConsumer",
    "Record",
    "Retry",
    "Workers",
]
