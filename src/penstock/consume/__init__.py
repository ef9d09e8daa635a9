"""The parallel consumer: one group member that handles many records at once and keeps their order.

    from penstock.consume import ParallelConsumer, Order

    consumer = ParallelConsumer({"bootstrap.servers": …, "group.id": "billing"}, topics=["orders"],
                                order=Order.KEY, concurrency=100)

    @consumer.handler
    async def handle(record): ...

    consumer.run()

What it promises: an offset is committed only when every record before it is done. Records of one key
(or partition) run one at a time, in order. Memory is bounded. A crash repeats a bounded number of
records, and none that finished beyond the committed offset and that a commit covers.

What it is not: a stream processor. There are no joins, windows or state stores. It works with any
Kafka, without the rest of the platform.

Modules:
  assignment         one partition while this member owns it: offsets, queues, counters
  async_runners      run coroutine handlers on the event loop
  back_pressure      decide which partitions to pause, resume or poll, and how much
  client_proxy       own the Kafka clients on one thread: poll, commit, rebalance
  completion         finish, publish, retry or dead-letter a record after its handler
  consumer           ParallelConsumer, the public class, which restarts the orchestrator on failure
  core               the whole consumer as a pure state machine
  dead_letter        build the record written to the dead-letter topic
  fault_points       where tests may kill the process
  handler_adapter    wrap the handlers with routes, middleware, filter and deserializers, choose their runner
  inspection         what `inspect()` returns
  kafka_errors       map Kafka's errors to the consumer's
  messages           messages between orchestrator and client proxy
  metrics            Prometheus metrics
  offset_controller  decide which offset and offset map to commit
  orchestrator       run one incarnation: route messages, commit, drain, shut down
  process_runners    run handlers in worker processes
  publisher          write outputs and dead letters, with or without transactions
  record             Record and Output, the values handlers see
  retry              retry policies: pauses, delayed-retry topics
  runner             what all runners share: base class, latency
  schedule           the parallelism coordinator: which record may run next
  settings           options of the consumer, their defaults and checks
  testing            Kafka in memory, for tests of handlers
  thread_runners     run plain functions on threads
"""

from penstock.consume.consumer import ParallelConsumer
from penstock.consume.inspection import Inspection
from penstock.consume.record import Output, Record
from penstock.consume.retry import DelayedRetry, Retry
from penstock.consume.schedule import NullKeys, Order
from penstock.consume.settings import Workers
from penstock.model.backoff import Backoff

__all__ = [
    "Backoff",
    "DelayedRetry",
    "Inspection",
    "NullKeys",
    "Order",
    "Output",
    "ParallelConsumer",
    "Record",
    "Retry",
    "Workers",
]
