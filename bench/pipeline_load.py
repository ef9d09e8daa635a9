"""Topics full of events for `bench.pipeline`, and the plain Python loops it compares with.

Orders and probes are made once and sent repeatedly: reading, parsing and writing cost the same for a
repeated value. Reports and histories are all different, because their jobs reduce equal records.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.model.durability import LogEvent, Placement, Policy, Replica, What, members_of
from penstock.model.events import HealthProbe, Probe, UsageReport
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.model.durability import Facts

PARTITIONS = 4
DISTINCT = 50_000
KEYS = 100_000
BEGIN_MS = 1_699_833_600_000
REPORT_MS = 10_000
FILE_ROWS = 250_000  # per file of the loops
CLUSTER = PhysicalClusterId("pkc-000000")

Values = list[tuple[bytes, bytes]]  # key, value


def orders(count: int = DISTINCT) -> Values:
    values = []
    for n in range(count):
        value = {
            "id": n, "account": f"acc-{n % KEYS:06d}", "amount": n % 977, "time": BEGIN_MS + n,
            "note": "x" * 40,
            "currency": "EUR", "kind": "payment", "price": n * 0.5,
        }  # fmt: skip
        values.append((f"{n % KEYS}".encode(), json.dumps(value).encode()))
    return values


def usage(count: int, *, tenants: int = 1000, gateways: int = 3) -> Iterator[tuple[bytes, bytes]]:
    """A fleet's reports every ten seconds, with rising counters; no two are equal."""
    used = ("ingress_bytes", "egress_bytes", "requests", "request_time_us", "connection_attempts")
    templates = []
    for gateway, tenant in itertools.product(range(gateways), range(tenants)):
        report = UsageReport(
            cluster=CLUSTER, gateway=f"g{gateway}", incarnation=f"g{gateway}-1", sequence=434343,
            tenant=LogicalClusterId(f"lkc-{tenant:06d}"), time_ms=454545,
            used=dict.fromkeys(used, 424242),
            levels={"connections": 3},
        )  # fmt: skip
        template = report.to_bytes().replace(b"434343", b"%(turn)d").replace(b"454545", b"%(time)d")
        templates.append((report.key, template.replace(b"424242", b"%%(turn)d%03d" % tenant)))
    for turn in itertools.count(1):
        at = {b"turn": turn, b"time": BEGIN_MS + turn * REPORT_MS}
        for key, template in templates[:count]:
            yield key, template % at
        count -= len(templates)
        if count <= 0:
            return


def probes() -> Values:
    chance, values = random.Random(1), []
    for n in range(DISTINCT):
        probe = HealthProbe(
            cluster=PhysicalClusterId(f"pkc-{n % 20:06d}"), broker=BrokerId(n % 3), zone=Zone("a"),
            partition=n % 3,
            probe=Probe.CONSUME if n % 2 else Probe.PRODUCE, checker="h", sequence=n,
            time_ms=BEGIN_MS + n * 600,
            latency_us=int(chance.lognormvariate(9, 0.5)),
        )  # fmt: skip
        values.append((probe.key, probe.to_bytes()))
    return values


def histories(count: int, *, subjects: int = 1_000) -> Iterator[tuple[bytes, bytes]]:
    """Sweeps of partitions without retention; half-way, the log of one of them loses its first records."""
    policy, placement = Policy(), Placement("t", (1,), (1,), 1, 0, 0)

    def text(what: What, facts: Facts) -> str:
        members = members_of(facts)
        event = LogEvent(CLUSTER, "@subject", "auditor", 424242, 434343, what, members).to_bytes().decode()
        filled = event.replace("%", "%%").replace("@subject", "partition/t/%d")
        return filled.replace("424242", "%d").replace("434343", "%d")

    replica = text(What.REPLICA, Replica(1, 444444, 454545)).replace("444444", "%d").replace("454545", "%d")
    first = [text(What.POLICY, policy), text(What.PLACEMENT, placement)]
    for n in range(count):
        turn, subject = divmod(n, subjects)
        values: tuple[int, ...] = (subject, n, BEGIN_MS + 10_000 * turn)
        if turn >= len(first):
            lost = subject == 0 and turn > count // subjects // 2
            values += (5 if lost else 0, 100 + turn)
        template = first[turn] if turn < len(first) else replica
        yield b"%s/partition/t/%d" % (CLUSTER.encode(), subject), (template % values).encode()


def repeated(values: Values, count: int) -> Iterator[tuple[bytes, bytes]]:
    while count > 0:
        yield from values[:count]
        count -= len(values)


def fill(config: dict[str, Any], topic: str, values: Iterable[tuple[bytes, bytes]]) -> None:
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer(
        config
        | {
            "linger.ms": 50, "batch.size": 1 << 20, "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 400_000,
        }
    )  # fmt: skip
    for key, value in values:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def plain_loop(config: dict[str, Any], topic: str, count: int, directory: Path, *, arrow: bool) -> float:
    """Seconds of a plain consumer that writes Parquet and commits offsets with each file.

    With `arrow`, it parses joined values with `pyarrow.json`, the fastest such loop; else with `json.loads`.
    """
    directory.mkdir(parents=True)
    consumer = Consumer(
        config
        | {
            "group.id": f"plain-{time.time_ns()}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    start, got, files = time.monotonic(), 0, 0
    waiting: list[Any] = []
    while got < count:
        messages = consumer.consume(10_000, 5.0)
        got += len(messages)
        waiting += messages
        if len(waiting) >= FILE_ROWS or got >= count:
            table = _by_arrow(waiting) if arrow else _by_json(waiting)
            pq.write_table(table, directory / f"{files}.parquet", compression="zstd")
            ends = {m.partition(): m.offset() + 1 for m in waiting}
            consumer.commit(
                offsets=[TopicPartition(topic, p, o) for p, o in ends.items()], asynchronous=False
            )
            files, waiting = files + 1, []
    seconds = time.monotonic() - start
    consumer.close()
    return seconds


def _by_json(messages: Sequence[Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                **json.loads(m.value()),
                "_partition": m.partition(),
                "_offset": m.offset(),
                "_timestamp": m.timestamp()[1],
            }
            for m in messages
        ]
    )


def _by_arrow(messages: Sequence[Any]) -> pa.Table:
    table = pj.read_json(io.BytesIO(b"\n".join([m.value() for m in messages])))
    for name, values in {
        "_partition": [m.partition() for m in messages],
        "_offset": [m.offset() for m in messages],
        "_timestamp": [m.timestamp()[1] for m in messages],
    }.items():
        table = table.append_column(name, pa.array(values))
    return table
