"""Gateways that follow `_penstock.state`: API keys reach them, and they serve without a control plane."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from penstock.control import decisions
from penstock.control.physical.gateway_files import GatewayFile
from penstock.fleet.credentials.certificates import load_platform_key
from penstock.gateway.config import GatewayConfig
from penstock.gateway.process import server
from penstock.gateway.process.server import Gateway
from penstock.gateway.process.tenant_source import StateSource, enforced_by, state_source, tenant_of
from penstock.gateway.settings import GatewaySettings, TenantsFrom, parse_gateway, read_gateway_file
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.partition_log import read
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import ApiKey, BrokerEndpoint, NetworkRule
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import PlatformKeyMissing
from penstock.model.errors.settings import SettingInvalid
from penstock.model.errors.wire import LoginRefused
from penstock.model.events import Dimension
from penstock.model.ids import BrokerId, PhysicalClusterId, ServiceAccountId, Zone
from penstock.model.tenant_state import AccountState, KeyState, TenantState
from penstock.quota.enforcement import SHARED
from penstock.wire.records import Record
from tests.control.conftest import run_control_plane
from tests.harness.gateway import brokers_of
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from tests.control.conftest import PlaneHarness
    from tests.harness.fleet import Fleet

SECRET = "s" * 64


def gateway_settings(fleet: Fleet) -> GatewaySettings:
    return GatewaySettings(
        gateway="test",
        listen="127.0.0.1",
        advertised_host="127.0.0.1",
        platform_key=fleet.local.layout.secrets / "platform.key",
        tenants_from=TenantsFrom.STATE,
    )


async def started(fleet: Fleet) -> Gateway:
    """Starts a gateway like `penstock gateway run`."""
    settings = gateway_settings(fleet)
    base = GatewayConfig(PhysicalClusterId("pkc-000000"), brokers_of(fleet))
    source = state_source(settings, base)
    gateway = Gateway(settings, await source.first(), source=source)
    await gateway.start()
    return gateway


@pytest.fixture
async def gateway(harness: PlaneHarness, control_fleet: Fleet) -> AsyncIterator[Gateway]:
    del harness
    one = await started(control_fleet)
    yield one
    await one.close()


def login(key: str, secret: str = SECRET) -> Security:
    return Security(Login(key, secret, Mechanism.PLAIN))


async def works(gateway: Gateway, key: str, secret: str = SECRET) -> bool:
    try:
        async with Client(gateway.bootstrap, login(key, secret)) as client:
            await client.call("Metadata", {"Topics": []}, retry=False)
    except LoginRefused:
        return False
    return True


def new_key(unique: Callable[[str], str]) -> str:
    return unique("k").replace("-", "")[:16].upper().ljust(16, "0")


@pytest.mark.kafka
async def test_keys_reach_the_gateway_when_created_rotated_and_revoked(
    harness: PlaneHarness, gateway: Gateway, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    key, new = new_key(unique), new_key(unique)[::-1]

    async def wait_until_known(key: str, *, valid: bool) -> None:
        async def there() -> bool:
            return (key in gateway.config.keys) is valid

        await eventually(there)
        assert await works(gateway, key) is valid

    await harness.key(cluster.id, key, SECRET)
    await wait_until_known(key, valid=True)
    sha = harness.plane.registry.need(ApiKey, key).secret_sha256
    rotated = await harness.decide(lambda r, a: decisions.rotate_key(r, a, key, new, sha, 0), ApiKey)
    await harness.ended(rotated.operation.id)
    await wait_until_known(new, valid=True)
    await wait_until_known(key, valid=False)
    revoked = await harness.decide(lambda r, a: decisions.revoke_key(r, a, new, None), ApiKey)
    await harness.ended(revoked.operation.id)
    await wait_until_known(new, valid=False)


@pytest.mark.kafka
async def test_a_deleted_clusters_connections_are_closed(
    harness: PlaneHarness, gateway: Gateway, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    key = new_key(unique)
    await harness.key(cluster.id, key, SECRET)

    async def known() -> bool:
        return key in gateway.config.keys

    await eventually(known)
    async with Client(gateway.bootstrap, login(key)) as client:
        await client.call("Metadata", {"Topics": []})
        connection = await client.connection()

        await harness.delete(cluster.id)

        async def closed() -> bool:
            return connection.closed

        await eventually(closed)


@pytest.mark.kafka
async def test_gateways_start_and_serve_while_no_control_plane_runs(
    control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    key = new_key(unique)
    async with run_control_plane(control_fleet) as harness:
        await harness.active()
        cluster = await harness.create(unique("shop"), network=NetworkRule(allow=("127.0.0.0/8",)))
        await harness.key(cluster.id, key, SECRET)

    gateway = await started(control_fleet)
    try:
        assert await works(gateway, key)
        assert not await works(gateway, key, "wrong" * 12)
    finally:
        await gateway.close()


@pytest.mark.kafka
async def test_a_rotated_key_expires_while_no_control_plane_runs(
    control_fleet: Fleet, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, new = new_key(unique), new_key(unique)[::-1]
    async with run_control_plane(control_fleet) as harness:
        await harness.active()
        cluster = await harness.create(unique("shop"))
        await harness.key(cluster.id, key, SECRET)
        sha = harness.plane.registry.need(ApiKey, key).secret_sha256
        gateway = await started(control_fleet)
        rotated = await harness.decide(
            lambda r, a: decisions.rotate_key(r, a, key, new, sha, 3_600_000), ApiKey
        )

        async def both_published() -> bool:
            return new in gateway.config.keys and gateway.config.keys[key][1].expires_ms is not None

        await eventually(both_published)
    try:
        expires_ms = gateway.config.next_expiry_ms
        assert await works(gateway, new)
        async with Client(gateway.bootstrap, login(key)) as client:
            await client.call("Metadata", {"Topics": []})
            connection = await client.connection()

            monkeypatch.setattr(server, "_epoch_ms", lambda: int(expires_ms))

            async def closed() -> bool:
                return connection.closed

            await eventually(closed)
        assert not await works(gateway, key)
        assert await works(gateway, new)
    finally:
        await gateway.close()
        # Tests that share this registry kill a control plane at the first operation that it runs.
        async with run_control_plane(control_fleet) as harness:
            await harness.active()
            await harness.delete(cluster.id)
            await harness.ended(rotated.operation.id)


class FailingSource(StateSource):
    """Its reader dies of the first record, once."""

    failures_left = 1

    def _take(self, records: Sequence[Record]) -> None:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("a defect")
        super()._take(records)


@pytest.mark.kafka
async def test_a_reader_of_the_state_that_dies_is_started_again(
    harness: PlaneHarness, gateway: Gateway, control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    working = gateway.source
    assert isinstance(working, StateSource)
    failing = FailingSource(working._bootstrap, working._security, working._base)
    other = Gateway(gateway_settings(control_fleet), working._base, source=failing)
    await other.start()
    try:

        async def knows_the_tenant() -> bool:
            return cluster.id in other.config.tenant_of

        await eventually(knows_the_tenant)
    finally:
        await other.close()

    assert failing.failures_left == 0


@pytest.mark.kafka
async def test_the_gateways_user_may_read_state_and_shares_write_reports_and_nothing_else(
    harness: PlaneHarness, control_fleet: Fleet
) -> None:
    del harness
    settings = gateway_settings(control_fleet)
    key = load_platform_key(control_fleet.local.layout.secrets)
    user = "_penstock.gateway"
    security = Security(Login(user, key.password(user), Mechanism.SCRAM_SHA_512))
    async with Client(control_fleet.gateway_bootstrap, security) as client:
        names = ("state", "quota", "usage", "pressure", "acks", "gateways", "durability")
        read_or_written = {f"_penstock.{name}" for name in names}

        async def sees_these() -> bool:
            response = await client.call("Metadata", {"Topics": None})
            return {topic["Name"] for topic in response["Topics"]} == read_or_written

        await eventually(sees_these)
        with pytest.raises(PenstockError, match="TOPIC_AUTHORIZATION_FAILED"):
            await read(client, TopicPartition("_penstock.usage", 0), 0)

    assert settings.tenants_from is TenantsFrom.STATE


def test_a_tenant_state_becomes_a_gateways_tenant() -> None:
    account = ServiceAccountId("sa-000001")
    state = TenantState(
        id="lkc-000001",
        accounts=(AccountState(account, 3),),
        keys=(
            KeyState("K" * 16, account, "ab" * 32),
            KeyState("L" * 16, ServiceAccountId("sa-000002"), "ab" * 32),
        ),
        brokers=(BrokerId(1),),
        network=NetworkRule(deny=("10.0.0.0/8",)),
        quota={"connections": 7.0, "connection_attempts": 2.0, "ingress_bytes": 5e6, "partitions": 40.0},
    )

    tenant = tenant_of(state)

    assert [key.id for key in tenant.keys] == ["K" * 16]  # a key of an unknown account is left out
    assert tenant.accounts[account].generation == 3
    assert (tenant.limits.connections_max, tenant.limits.connection_attempts_per_second) == (7, 2.0)
    assert tenant.limits.partitions_max == 40
    assert tenant.quota == {"ingress_bytes": 5e6}
    assert not tenant.network.admit("10.1.2.3")


def test_request_time_is_shared_where_every_brokers_metrics_are_known(tmp_path: Path) -> None:
    places = tuple(BrokerEndpoint(BrokerId(n), Zone("a"), "127.0.0.1", 9000 + n) for n in (1, 2))
    known = ((1, "127.0.0.1", 9401), (2, "::1", 9402))
    time = Dimension.REQUEST_TIME_US
    state = TenantState(id="lkc-000001", quota={str(time): 5e5})

    for metrics, quota in ((known, {time: 5e5}), (known[:1], {}), ((), {})):
        file = GatewayFile("east", "pkc-000000", places, tmp_path / "key", None, metrics, 4)
        _, config = read_gateway_file(file.write(tmp_path / "gateway.yaml", [1, 2]))

        configured = [
            (int(b.id), b.metrics.host, b.metrics.port) for b in config.brokers if b.metrics is not None
        ]
        assert configured == list(metrics)
        assert {b.metrics.handler_threads for b in config.brokers if b.metrics is not None} <= {4}
        assert tenant_of(state, enforced_by(config)).quota == quota
        assert str(time) in SHARED


def test_a_gateway_file_declares_where_tenants_come_from(tmp_path: Path) -> None:
    document = {
        "cluster": "pkc-000000",
        "tenants_from": "state",
        "brokers": [{"id": 1, "zone": "a", "address": "127.0.0.1:9"}],
    }
    settings, config = parse_gateway(document, beside=tmp_path)
    assert settings.tenants_from is TenantsFrom.STATE

    with pytest.raises(PlatformKeyMissing):
        state_source(settings, config)
    for wrong in ({"tenants_from": "heaven"}, {"tenants": [{"id": "lkc-000000"}]}):
        with pytest.raises(SettingInvalid):
            parse_gateway(document | wrong)


def test_a_tenant_with_an_unreadable_state_stays_unchanged() -> None:
    source = StateSource("127.0.0.1:1", Security(), GatewayConfig(PhysicalClusterId("pkc-000000"), ()))
    good = TenantState(id="lkc-000001", version=1).to_record()
    source._take([Record(0, 0, good.key, good.to_bytes())])

    endless = good.to_bytes().replace(b'"quota":{}', b'"quota":{"connections":1e999}')
    source._take([Record(1, 0, good.key, b"{}"), Record(2, 0, b"other/x", b"{}")])
    source._take([Record(2, 0, good.key, endless)])
    assert endless != good.to_bytes()

    assert list(source._tenants) == list(source.unread) == ["lkc-000001"]
    source._take([Record(3, 0, good.key, good.to_bytes())])
    assert source.unread == {}
    source._take([Record(4, 0, good.key, b"{}"), Record(5, 0, good.key, None)])
    assert not source._tenants
    assert not source.unread


async def test_a_state_is_current_once_it_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    source = StateSource("127.0.0.1:1", Security(), GatewayConfig(PhysicalClusterId("pkc-000000"), ()))
    state = TenantState(id="lkc-000001", version=1).to_record()

    async def follow(reader: CompactedTopicReader) -> None:
        reader._start_over()
        reader.position = reader.end = 0
        reader._notify()
        await asyncio.Event().wait()

    monkeypatch.setattr(CompactedTopicReader, "run", follow)
    source.fresh_at = started = source.fresh_at - 100.0
    async with aclosing(source.follow()) as configs:
        await anext(configs)
        following = asyncio.ensure_future(anext(configs))
        await asyncio.sleep(0)
        source._moved()
        assert source.fresh_at > started

        source.fresh_at = started
        source._take([Record(0, 0, state.key, state.to_bytes())])
        source._moved()
        assert [tenant.id for tenant in (await following).tenants] == ["lkc-000001"]
        source._moved()
        assert source.fresh_at == started  # it is read, and not in force
