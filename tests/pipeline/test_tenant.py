"""Reading as a tenant, through the gateway, by TLS with an API key; and what the gateway counted of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trustme
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from penstock.kafka import commits
from penstock.kafka.client import Client
from penstock.model.events import UsageReport
from penstock.pipeline.columns import Column
from penstock.pipeline.invoices import Paper, invoice_lines, write_lines
from penstock.pipeline.job import Job, Sink, Source
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.kafka import group_of, sink_options, source_options
from penstock.pipeline.settings import Connection
from tests.ground.fleet import wait_for
from tests.ground.gateway import new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.model.schema import Event
    from tests.ground.fleet import Fleet
    from tests.ground.gateway import Access
    from tests.pipeline.conftest import Ground

pytestmark = pytest.mark.spark


@pytest.fixture
def tenant(
    fleet: Fleet, tmp_path: Path
) -> Iterator[tuple[Access, dict[str, object], Connection, list[Event]]]:
    """A tenant of a gateway that speaks TLS, and what that gateway reports of it."""
    authority = trustme.CA()
    ca, certificate = tmp_path / "ca.pem", tmp_path / "gateway.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        str(certificate)
    )
    reports: list[Event] = []
    running = start_gateway(
        fleet, [new_access()], settings={"certificate": certificate}, evidence=reports.extend
    )
    (access,) = running.accesses
    config = access.client_config() | {"security.protocol": "SASL_SSL", "ssl.ca.location": str(ca)}
    yield access, config, Connection(access.bootstrap, access.key, access.secret, authority=ca), reports
    running.stop()


def test_a_tenant_reads_its_topic_through_the_gateway_and_its_lag_is_a_group_s(
    ground: Ground,
    tenant: tuple[Access, dict[str, object], Connection, list[Event]],
    unique: Callable[[str], str],
) -> None:
    _, config, connection, _ = tenant
    topic = unique("orders")
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({**config, "transactional.id": unique("t")})
    producer.init_transactions(30)
    for kept in (True, False):
        producer.begin_transaction()
        for n in range(20):
            producer.produce(topic, json.dumps({"id": n, "kept": kept}).encode(), headers=[("h", b"1")])
        producer.flush(30)
        producer.commit_transaction(30) if kept else producer.abort_transaction(30)
    wait_for(lambda: _ended(admin, topic, 2), what="the last transaction's markers")
    job = Job(
        "orders",
        "",
        Source(topic, columns=(Column("id", "bigint"), Column("kept", "boolean")), headers=True),
        Sink("shop.orders"),
    )
    mine = replace(ground, connection=connection)

    outcome = mine.run(job)

    rows = mine.rows("shop.orders", "id", "kept", "kafka_headers")
    assert sorted(n for n, _, _ in rows) == list(range(20))
    assert {(kept, headers[0][0], bytes(headers[0][1])) for _, kept, headers in rows} == {(True, "h", b"1")}
    assert outcome.behind == 0

    async def lag() -> int:
        async with Client(connection.bootstrap, connection.security()) as client:
            found = await commits.lag(client, group_of("orders"))
            return sum(each.records for each in found.values() if isinstance(each, commits.Lag))

    assert asyncio.run(lag()) == 0

    copies = unique("copies")
    admin.create_topics([NewTopic(copies, 1, 1)])[copies].result(30)
    table = mine.session.table("lake.shop.orders")
    written = table.selectExpr("cast(id as string) as value", "kafka_headers as headers")
    written.write.format("kafka").options(**sink_options(connection, copies)).save()
    read = mine.session.read.format("kafka").options(
        **source_options(connection, Source(copies, columns=(Column("id", "bigint"),), headers=True))
    )
    back = [(int(row.value), row.headers[0].key) for row in read.load().collect()]
    assert sorted(back) == [(n, "h") for n in range(20)]


def test_metered_use_is_what_the_gateway_counted_to_the_byte(
    ground: Ground,
    tenant: tuple[Access, dict[str, object], Connection, list[Event]],
    unique: Callable[[str], str],
) -> None:
    access, config, _, reports = tenant
    topic = unique("orders")
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(config)
    for n in range(500):
        producer.produce(topic, b"x" * 100 + str(n).encode())
    assert producer.flush(30) == 0
    consumer = Consumer({**config, "group.id": unique("g"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got = 0
    while got < 500:
        got += len(consumer.consume(500, 1.0))
    consumer.close()
    del producer
    wait_for(lambda: _quiet(reports), what="the gateway to have reported all of it")
    told = [r for r in list(reports) if isinstance(r, UsageReport)]
    usage = ground.make_topic(unique("usage"), partitions=3)
    ground.send(usage, [r.to_bytes() for r in told], keys=[r.key for r in told])
    job = replace(METERING, source=replace(METERING.source, topic=usage))

    ground.run(job)

    counted = told[-1].used
    daily = ground.session.table("lake.platform.usage_daily")
    days = sorted(row.day for row in daily.collect())
    lines = invoice_lines(daily, days[0], days[-1], access.tenant.id)
    assert {line.dimension: line.used for line in lines} == {k: v for k, v in counted.items() if v}
    assert counted["ingress_bytes"] > 50_000
    for form in Paper:
        write_lines(lines, ground.directory / f"bill.{form}", form)
    assert (
        f"ingress_bytes,{days[0]},{days[-1]},{counted['ingress_bytes']}"
        in (ground.directory / "bill.csv").read_text()
    )


def _ended(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether no transaction is open: its end is answered before its markers are written."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    seen = [
        {place.partition: end.result().offset for place, end in answers.items()}
        for answers in (
            admin.list_offsets(asked, isolation_level=isolation, request_timeout=30)
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
    ]
    return seen[0] == seen[1]


def _quiet(reports: list[Event]) -> bool:
    """The last three reports of use are the same: nobody is sending any more."""
    told = [r.used for r in list(reports) if isinstance(r, UsageReport)]
    return len(told) > 3 and told[-1] == told[-2] == told[-3] and told[-1]["requests"] > 0
