"""Reading as a tenant through a gateway, by TLS with an API key; and metering that use."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from penstock.kafka.admin import group_offsets
from penstock.kafka.client import Client
from penstock.model.events import UsageReport
from penstock.pipeline.job import Job, Sink, Source
from penstock.pipeline.jobs.invoices import InvoiceFormat, invoice_lines, write_lines
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.lake.columns import Column
from penstock.pipeline.settings import Connection
from penstock.pipeline.spark.kafka import group_of, sink_options, source_options
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.model.schema import Event
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access
    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark


@pytest.fixture
def tenant(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[Access, dict[str, Any], Connection, list[Event]]]:
    """A tenant of a TLS gateway, and the events that the gateway reports about it."""
    authority = trustme.CA()
    ca, certificate = tmp_path / "ca.pem", tmp_path / "gateway.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        str(certificate)
    )
    reports: list[Event] = []
    running = start_gateway(
        fleet, [new_access()], settings={"certificate": certificate}, publish=reports.extend
    )
    (access,) = running.accesses
    config = access.client_config() | {"security.protocol": "SASL_SSL", "ssl.ca.location": str(ca)}
    yield access, config, Connection(access.bootstrap, access.key, access.secret, authority=ca), reports
    running.stop()


def test_a_tenant_reads_its_topic_through_the_gateway_and_its_group_shows_the_lag(
    harness: PipelineHarness,
    tenant: tuple[Access, dict[str, Any], Connection, list[Event]],
    unique: Callable[[str], str],
) -> None:
    _, config, connection, _ = tenant
    topic = unique("orders")
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({**config, "transactional.id": unique("t")})
    producer.init_transactions(30)
    for committed in (True, False):
        producer.begin_transaction()
        for n in range(20):
            producer.produce(topic, json.dumps({"id": n, "kept": committed}).encode(), headers=[("h", b"1")])
        producer.flush(30)
        producer.commit_transaction(30) if committed else producer.abort_transaction(30)
    wait_for(lambda: _ended(admin, topic, 2), what="the last transaction's markers")
    job = Job(
        "orders",
        "",
        Source(topic, columns=(Column("id", "bigint"), Column("kept", "boolean")), headers=True),
        Sink("shop.orders"),
    )
    as_tenant = replace(harness, connection=connection)

    outcome = as_tenant.run(job)

    rows = as_tenant.rows("shop.orders", "id", "kept", "kafka_headers")
    assert sorted(n for n, _, _ in rows) == list(range(20))
    assert {(kept, headers[0][0], bytes(headers[0][1])) for _, kept, headers in rows} == {(True, "h", b"1")}
    assert outcome.lag == 0

    async def lag() -> int:
        async with Client(connection.bootstrap, connection.security()) as client:
            lags = await group_offsets.lag(client, group_of("orders"))
            return sum(each.records for each in lags.values() if isinstance(each, group_offsets.Lag))

    assert asyncio.run(lag()) == 0

    copies = unique("copies")
    admin.create_topics([NewTopic(copies, 1, 1)])[copies].result(30)
    table = as_tenant.session.table("lake.shop.orders")
    written = table.selectExpr("cast(id as string) as value", "kafka_headers as headers")
    written.write.format("kafka").options(**sink_options(connection, copies)).save()
    read = as_tenant.session.read.format("kafka").options(
        **source_options(connection, Source(copies, columns=(Column("id", "bigint"),), headers=True))
    )
    back = [(int(row.value), row.headers[0].key) for row in read.load().collect()]
    assert sorted(back) == [(n, "h") for n in range(20)]


def test_metered_usage_equals_the_gateway_s_counters_to_the_byte(
    harness: PipelineHarness,
    tenant: tuple[Access, dict[str, Any], Connection, list[Event]],
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
    usage_reports = [r for r in list(reports) if isinstance(r, UsageReport)]
    usage = harness.make_topic(unique("usage"), partitions=3)
    harness.send(usage, [r.to_bytes() for r in usage_reports], keys=[r.key for r in usage_reports])
    job = replace(METERING, source=replace(METERING.source, topic=usage))

    harness.run(job)

    counted = usage_reports[-1].used
    daily = harness.session.table("lake.platform.usage_daily")
    days = sorted(row.day for row in daily.collect())
    lines = invoice_lines(daily, days[0], days[-1], access.tenant.id)
    assert {line.dimension: line.used for line in lines} == {k: v for k, v in counted.items() if v}
    assert counted["ingress_bytes"] > 50_000
    for file_format in InvoiceFormat:
        write_lines(lines, harness.directory / f"bill.{file_format}", file_format)
    assert (
        f"ingress_bytes,{days[0]},{days[-1]},{counted['ingress_bytes']}"
        in (harness.directory / "bill.csv").read_text()
    )


def _ended(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether no transaction is open: EndTxn returns before its markers are written."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka leaves it untyped
    specs = {TopicPartition(topic, partition): latest for partition in range(partitions)}
    seen = [
        {at.partition: end.result().offset for at, end in futures.items()}
        for futures in (
            admin.list_offsets(specs, isolation_level=isolation, request_timeout=30)
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
    ]
    return seen[0] == seen[1]


def _quiet(reports: list[Event]) -> bool:
    """Whether the last three usage reports are equal: no client sends any more."""
    used = [r.used for r in list(reports) if isinstance(r, UsageReport)]
    return len(used) > 3 and used[-1] == used[-2] == used[-3] and used[-1]["requests"] > 0
