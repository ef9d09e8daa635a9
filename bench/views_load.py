"""A bank's log for `bench.views`, in memory or in Kafka, and applying it to a store."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from penstock.gc_tuning import rare_collections
from penstock.olep.codec import JsonCodec
from penstock.olep.event import Event, Record, derived_id, stream_of
from penstock.olep.view.fold import ViewFold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.view import ViewStores
    from penstock.olep.view.projection import Projection

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
ACCOUNTS = 5_000
CODEC = JsonCodec()


def bank_events(payments: int, *, seed: int = 1, accounts: int = ACCOUNTS) -> Iterator[tuple[str, Event]]:
    """(account, event) of a bank's partition: three events per payment, a fee for one in ten."""
    dice, stream = random.Random(seed), stream_of("bank", TOPIC_ID, 0)
    now = 1_700_000_000_000
    for number in range(payments):
        source, to = dice.sample(range(accounts), 2)
        name, fee = f"r-{number}", 25 if number % 10 == 0 else 0
        payload = {"to": f"account-{to}", "amount": dice.randint(1, 10_000)}
        yield f"account-{source}", Event(name, "payment.requested", payload, request=name, time=now)
        paid = {**payload, "fee": fee}
        cause = 3 * number
        yield (
            f"account-{source}",
            Event(derived_id(stream, cause, 0), "payment.outgoing", paid, 1, name, name, now),
        )
        got = {"from": f"account-{source}", "amount": payload["amount"]}
        yield (
            f"account-{to}",
            Event(derived_id(stream, cause, 1), "payment.incoming", got, 1, name, name, now),
        )


def records_of(payments: int, *, seed: int = 1) -> list[Record]:
    return [
        Record(offset, key.encode(), CODEC.encode(event))
        for offset, (key, event) in enumerate(bank_events(payments, seed=seed))
    ]


def apply(
    projection: Projection, stores: ViewStores, records: list[Record], batch_max: int
) -> tuple[float, float]:
    """Applies the records to a new view; returns seconds, and processor seconds of this process."""
    store = stores.open(projection, TOPIC_ID, 1, generation=1)
    position = store.claim()[0]
    fold = ViewFold(projection, CODEC, store, 0, fresh=position == 0)
    with rare_collections():
        begin, used = time.perf_counter(), time.process_time()
        for at in range(0, len(records), batch_max):
            batch = fold.process(records[at : at + batch_max], position)
            store.commit([batch])
            fold.committed()
            position = batch.position
        seconds, used = time.perf_counter() - begin, time.process_time() - used
    store.close()
    return seconds, used


def produce(config: dict[str, str], topic: str, partitions: int, payments: int, *, rate: float = 0.0) -> None:
    """Fills a log as executors would; with `rate`, at so many events a second."""
    producer = Producer({**config, "linger.ms": 5 if rate else 50, "queue.buffering.max.messages": 1_000_000})
    streams = [stream_of("bank", TOPIC_ID, p) for p in range(partitions)]
    begin = time.monotonic()
    for number, (key, template) in enumerate(bank_events(payments)):
        partition, event = (number // 3) % partitions, template
        if template.id.startswith("="):
            _, cause, index = template.id.rsplit(".", 2)
            event = template._replace(id=f"{streams[partition]}.{cause}.{index}")
        producer.produce(topic, CODEC.encode(event), key.encode(), partition)
        if number % 1000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
        if rate and number % 20 == 0 and (early := begin + number / rate - time.monotonic()) > 0:
            time.sleep(early)
    producer.flush()


def main() -> None:
    """`python -m bench.views_load CONFIG TOPIC PARTITIONS PAYMENTS RATE`: load in a separate process."""
    config, topic, partitions, payments, rate = sys.argv[1:]
    produce(json.loads(config), topic, int(partitions), int(payments), rate=float(rate))


if __name__ == "__main__":
    main()
