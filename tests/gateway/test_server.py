"""The server on a real fleet: TLS and SNI, hidden brokers, re-authentication, failures to start."""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.credentials.certificates import load_authority
from penstock.gateway.config import GatewayConfig
from penstock.gateway.limits.admission import Denial
from penstock.gateway.process.config_source import FileSource
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.process.server import Gateway
from penstock.gateway.process.upstream import dial
from penstock.gateway.settings import GatewaySettings, Routing, read_gateway_file
from penstock.kafka.connection import Connection
from penstock.kafka.login import log_in
from penstock.metrics_server import MetricsServer, page_of
from penstock.model.errors.gateway import (
    CertificateUnusable,
    ListenFailed,
    PlatformKeyMissing,
    ResponseUnexpected,
    UpstreamLoginRefused,
    UpstreamUnreachable,
)
from penstock.model.errors.wire import BrokerUnreachable, BrokerUntrusted, LoginRefused
from penstock.model.events import AckRanges, UsageReport
from penstock.model.ids import BrokerId, PhysicalClusterId
from penstock.wire.error_codes import Code
from tests.harness.fleet import wait_for
from tests.harness.gateway import Access, RunningGateway, brokers_of, new_access, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.gateway.process.session import Session
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka
DOMAIN = "kafka.example"
SECONDS = 30.0


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    authority = load_authority(tmp_path, now=dt.datetime.now(dt.UTC))
    path = tmp_path / "gateway.pem"
    hosts = ["127.0.0.1", f"*.{DOMAIN}"]
    path.write_bytes(authority.issue("gateway", hosts, now=dt.datetime.now(dt.UTC)))
    return path


def place(access: Access, broker: int = 0) -> tuple[str, int]:
    host, port = access.bootstrap.split(",")[broker].split(":")
    return host, int(port)


def test_a_client_connects_by_tls(
    make_gateway: Callable[..., RunningGateway], certificate: Path, unique: Callable[[str], str]
) -> None:
    running = make_gateway(new_access(), settings={"certificate": certificate})
    ca = str(certificate.parent / "ca.pem")
    config = running.accesses[0].client_config(security_protocol="SASL_SSL", ssl_ca_location=ca)
    client = AdminClient(config)
    topic = unique("orders")

    client.create_topics([NewTopic(topic, 1, 3)])[topic].result(SECONDS)

    wait_for(lambda: set(client.list_topics(timeout=SECONDS).topics) == {topic}, what="the topic")


def test_the_host_name_selects_tenant_and_broker(
    make_gateway: Callable[..., RunningGateway], certificate: Path
) -> None:
    accesses = (new_access(), new_access())
    by_name = {"certificate": certificate, "routing": Routing.SNI, "domain": DOMAIN}
    running = make_gateway(*accesses, settings=by_name)
    ada, bob = running.accesses
    trust = ssl.create_default_context(cafile=str(certificate.parent / "ca.pem"))

    async def ask(access: Access, host: str) -> list[tuple[str, int]]:
        security = replace(access.security(), tls=trust, server_name=f"{host}.{DOMAIN}")
        async with await Connection.open(*place(access), security) as connection:
            response = await connection.call("DescribeCluster", {})
            return [(broker["Host"], broker["Port"]) for broker in response["Brokers"]]

    listed = asyncio.run(ask(ada, ada.tenant.id))
    second = asyncio.run(ask(ada, f"b2-{ada.tenant.id}"))

    port = place(ada)[1]
    assert sorted(listed) == [(f"b{n}-{ada.tenant.id}.{DOMAIN}", port) for n in (1, 2, 3)]
    assert sorted(second) == sorted(listed)
    with pytest.raises(LoginRefused):
        asyncio.run(ask(bob, ada.tenant.id))
    for unknown in ("lkc-zzzzzz", "b9-" + ada.tenant.id, "www"):
        with pytest.raises((BrokerUnreachable, BrokerUntrusted)):
            asyncio.run(ask(ada, unknown))


def test_garbage_instead_of_tls_is_closed(
    make_gateway: Callable[..., RunningGateway], certificate: Path
) -> None:
    running = make_gateway(new_access(), settings={"certificate": certificate})

    async def send() -> bytes:
        reader, writer = await asyncio.open_connection(*place(running.accesses[0]))
        writer.write(b"\0" * 400)
        try:
            return await reader.read()
        except ConnectionResetError:  # closed with unread bytes
            return b""
        finally:
            writer.close()

    received = asyncio.run(send())

    assert b"lkc-" not in received
    wait_for(lambda: not running.gateway.sessions, what="the session to end")
    assert running.do(lambda: running.gateway.admission.open) == 0


def coordinator_of(access: Access, group: str) -> int:
    """The coordinator of a group, once the cluster has one."""

    async def coordinator_id() -> int:
        async with asyncio.timeout(SECONDS), await Connection.open(*place(access), access.security()) as one:
            while True:
                response = await one.call(
                    "FindCoordinator", {"KeyType": 0, "CoordinatorKeys": [group]}, version=4
                )
                (coordinator,) = response["Coordinators"]
                if coordinator["ErrorCode"] == Code.NONE:
                    return int(coordinator["NodeId"])
                assert coordinator["ErrorCode"] == Code.COORDINATOR_NOT_AVAILABLE, coordinator
                await asyncio.sleep(0.05)

    return asyncio.run(coordinator_id())


def test_a_tenant_sees_its_brokers_and_the_coordinators_it_was_sent_to(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    running = make_gateway(new_access(brokers=frozenset({BrokerId(2), BrokerId(3)})))
    access = running.accesses[0]
    client = AdminClient(access.client_config())
    topic = unique("orders")

    client.create_topics([NewTopic(topic, 4, 2)])[topic].result(SECONDS)
    asyncio.run(wait_for_topic(access, topic, 4))
    before = client.list_topics(timeout=SECONDS)
    coordinators = set()
    for number in range(40):  # groups until one is coordinated by broker 1
        coordinators.add(coordinator_of(access, f"g{number}"))
        if 1 in coordinators:
            break
    refreshed = [client.list_topics(timeout=SECONDS) for _ in range(10)]

    assert set(before.brokers) == {2, 3}
    assert {r for p in before.topics[topic].partitions.values() for r in p.replicas} == {2, 3}
    assert 1 in coordinators
    assert all(set(seen.brokers) == {1, 2, 3} for seen in refreshed)
    assert coordinator_of(access, f"g{number}") == 1


async def test_a_client_reauthenticates_only_as_the_same_account(ada: Access, bob: Access) -> None:
    connection = await Connection.open(*place(ada), ada.security())
    login = ada.security().login
    other = bob.security().login
    assert login is not None
    assert other is not None

    await log_in(connection, login)

    assert (await connection.call("DescribeCluster", {}))["ClusterId"] == ada.tenant.id
    with pytest.raises(Exception, match=r"PEN-"):
        await log_in(connection, other)
    await connection.close()


async def test_ids_unknown_to_this_gateway_are_looked_up(
    ada: Access, gateway: RunningGateway, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    async with await Connection.open(*place(ada), ada.security()) as connection:
        coordinator_id = {
            "Name": topic,
            "NumPartitions": 1,
            "ReplicationFactor": 3,
            "Assignments": [],
            "Configs": [],
        }
        made = await connection.call("CreateTopics", {"Topics": [coordinator_id], "TimeoutMs": 10_000})
        topic_id = made["Topics"][0]["TopicId"]
        await wait_for_topic(ada, topic)
        context = gateway.gateway.contexts[ada.tenant.id]
        gateway.do(lambda: context.topics.forget((ada.prefix + topic).encode()))
        body = {"Groups": [{"GroupId": "g", "Topics": [{"TopicId": topic_id, "PartitionIndexes": [0]}]}]}

        await connection.call("OffsetFetch", body, version=10)
        wait_for(lambda: topic_id.bytes in context.topics.by_id, what="the id to be learned")

        response = await connection.call(
            "Metadata", {"Topics": [{"TopicId": topic_id, "Name": None}]}, version=12
        )
        assert response["Topics"][0]["Name"] == topic


def test_usage_and_acknowledged_ranges_are_published(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    events: list[object] = []
    running = make_gateway(new_access(), publish=events.extend)
    access = running.accesses[0]
    topic = unique("orders")
    client = AdminClient(access.client_config())
    client.create_topics([NewTopic(topic, 1, 3)])[topic].result(SECONDS)
    from confluent_kafka import Producer

    producer = Producer(access.client_config(acks="all", linger_ms=0))
    for _ in range(10):
        producer.produce(topic, b"x")
    assert producer.flush(SECONDS) == 0

    def ranges() -> list[tuple[int, int]]:
        return [(one.first, one.last) for e in list(events) if isinstance(e, AckRanges) for one in e]

    wait_for(lambda: sum(last - first + 1 for first, last in ranges()) == 10, what="ten acknowledged records")
    reports = [e for e in events if isinstance(e, UsageReport)]
    assert reports[-1].used["ingress_bytes"] > 0
    assert min(first for first, _ in ranges()) == 0


def test_metrics_are_served_with_bounded_labels(gateway: RunningGateway, ada: Access) -> None:
    client = AdminClient(ada.client_config())
    client.list_topics(timeout=SECONDS)
    server = MetricsServer(page_of(GatewayMetrics(gateway.gateway)), "127.0.0.1", 0)

    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=SECONDS) as response:
        page = response.read().decode()
    server.close()

    assert f'penstock_gateway_requests_total{{tenant="{ada.tenant.id}"}}' in page
    assert 'penstock_gateway_denials_total{reason="bad_credentials"}' in page
    assert ada.secret not in page


async def test_a_changed_file_is_applied_and_an_invalid_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    broker = {"id": 1, "zone": "a", "address": "127.0.0.1:1"}
    document = {"cluster": "pkc-000001", "brokers": [broker], "tenants": []}
    path.write_text(yaml.safe_dump(document))
    followed = FileSource(path).follow()
    first = asyncio.ensure_future(anext(followed))
    await asyncio.sleep(0)

    path.write_text("tenants: [")
    path.write_text(yaml.safe_dump(document | {"tenants": [{"id": "lkc-7hq2mz"}]}))

    config = await asyncio.wait_for(first, SECONDS)
    assert [tenant.id for tenant in config.tenants] == ["lkc-7hq2mz"]
    assert read_gateway_file(path)[1] == config
    await followed.aclose()


# Failures to start and to reach a broker


def settings_of(fleet: Fleet, **more: Any) -> GatewaySettings:
    key = fleet.local.layout.secrets / "platform.key"
    plain = GatewaySettings("g", "127.0.0.1", "127.0.0.1", key)
    return replace(plain, **more)


async def started(settings: GatewaySettings, config: GatewayConfig) -> None:
    gateway = Gateway(settings, config)
    try:
        await gateway.start()
    finally:
        await gateway.close()


async def test_a_gateway_that_cannot_start_reports_why(fleet: Fleet, tmp_path: Path) -> None:
    config = GatewayConfig(PhysicalClusterId("pkc-000001"), brokers_of(fleet))
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    taken = replace(config, brokers=(replace(config.brokers[0], listen_port=config.brokers[0].port),))

    with pytest.raises(PlatformKeyMissing):
        await started(settings_of(fleet, platform_key=tmp_path / "none"), config)
    with pytest.raises(CertificateUnusable):
        await started(settings_of(fleet, certificate=wrong), config)
    with pytest.raises(ListenFailed):
        await started(settings_of(fleet), taken)


async def test_an_unreachable_broker_or_a_refused_login_is_reported(fleet: Fleet) -> None:
    broker = brokers_of(fleet)[0]

    with pytest.raises(UpstreamUnreachable):
        await dial(replace(broker, port=1), "u", "p", None)
    with pytest.raises(UpstreamLoginRefused):
        await dial(broker, "lkc-zzzzzz_sa-000001", secrets.token_hex(), None)


async def test_an_unexpected_response_closes_the_connection(ada: Access, gateway: RunningGateway) -> None:
    connection = await Connection.open(*place(ada), ada.security())
    before = gateway.gateway.denials[Denial.UPSTREAM]
    here = connection._writer.get_extra_info("sockname")

    def ours() -> Session:
        """Sessions of this connection, without those that clients of other tests still have open."""
        sessions = gateway.gateway.sessions.values()
        return next(s for s in sessions if s.transport and s.transport.get_extra_info("peername") == here)

    session = gateway.do(ours)
    gateway.do(lambda: session.from_broker(bytes.fromhex("00000004000000ff")))

    wait_for(lambda: session.connection.number not in gateway.gateway.sessions, what="the session to end")
    assert gateway.gateway.denials[Denial.UPSTREAM] == before + 1
    assert ResponseUnexpected(actual="x", expected="y").code == "PEN-4007"
    await connection.close()
