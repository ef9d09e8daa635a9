"""The load of `bench.olep`: appends requests, and reads, decodes and matches the outcome of each from the
log.

It is leaner than `penstock.olep.outcome`, which makes a future for every request: one thread, no locks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from examples.payments.bank import OUTCOME_TYPES
from penstock.gc_tuning import rare_collections
from penstock.olep.event import request
from penstock.olep.log import CONSUMER_CONFIG, FETCH_BYTES, PRODUCER_CONFIG, end_position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.olep_postgres import Transfer
    from penstock.olep.event import Event
    from penstock.olep.log import Log

STUCK_SECONDS = 60.0
CHUNK = 1000
GATHER_MS = 100  # as the executor's `gather_seconds` under a heavy load


@dataclass(slots=True)
class Outcome:
    paid: int = 0
    declined: int = 0
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def open_accounts(log: Log, count: int, deposit: int) -> None:
    terms = {"deposit": deposit, "overdraft": 0, "ceiling": None}
    names = (f"account-{number}" for number in range(count))
    opened = _drive(
        log, ((name, request(f"open-{name}", "account.open", terms, time=0)) for name in names), 20_000
    )
    assert opened.paid == count, opened


def pay(log: Log, transfers: Sequence[Transfer], *, in_flight: int) -> Outcome:
    """Requests every transfer; returns when each has its outcome."""
    requests = (
        (source, request(each, "payment.requested", {"to": to, "amount": amount}, time=0))
        for each, source, to, amount in transfers
    )
    with rare_collections():
        return _drive(log, requests, in_flight)


def _drive(log: Log, requests: Iterator[tuple[str, Event]], in_flight: int) -> Outcome:
    outcome = Outcome()
    many = in_flight > 1000
    gather = {"fetch.min.bytes": FETCH_BYTES, "fetch.wait.max.ms": GATHER_MS} if many else {}
    producer = Producer({**log.config, **PRODUCER_CONFIG, "linger.ms": GATHER_MS if many else 0})
    consumer = Consumer({"group.id": "bench", **log.config, **CONSUMER_CONFIG, **gather})
    tail = end_position(log).of_topic(log.topic, log.topic_id)
    consumer.assign([TopicPartition(log.topic, p, offset) for p, offset in tail.items()])
    consumer.consume(1, 0.2)  # fetching has started before the clock does
    waiting: dict[str, float] = {}
    begin = last = time.perf_counter()
    encode = log.codec.encode
    more = True
    try:
        while more or waiting:
            now = time.perf_counter()
            for _ in range(min(CHUNK, in_flight - len(waiting)) if more else 0):
                following = next(requests, None)
                if following is None:
                    more = False
                    break
                key, event = following
                producer.produce(log.topic, encode(event), key)  # the client's partitioner is Kafka's, too
                waiting[event.id] = now
            producer.poll(0)
            messages = consumer.consume(CHUNK, 0) or consumer.consume(1, 0.01)
            if messages:
                last = now
            elif now - last > STUCK_SECONDS:
                raise TimeoutError(f"{len(waiting)} requests have no outcome")
            _take(log, messages, waiting, outcome)
        outcome.seconds = time.perf_counter() - begin
    finally:
        consumer.close()
    return outcome


def _take(log: Log, messages: Sequence[Any], waiting: dict[str, float], outcome: Outcome) -> None:
    decode, is_outcome = log.codec.decode, log.codec.type_matcher(OUTCOME_TYPES)
    now = time.perf_counter()
    for message in messages:
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            continue
        value = message.value()
        if is_outcome(value):
            event = decode(value, "", 0, 0)
            sent_at = waiting.pop(event.request, None)
            if sent_at is not None:
                outcome.waits.append(now - sent_at)
                done = event.type in {"payment.outgoing", "account.opened"}
                outcome.paid += done
                outcome.declined += not done
