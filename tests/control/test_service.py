"""The control plane on a real Kafka: what it commits, provisions, publishes and deletes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from penstock.control import decisions, operations
from penstock.control.checker import Kind
from penstock.control.decisions import ClusterRequest
from penstock.control.gateways.state_publisher import PARTITION
from penstock.control.health.broker_states import clear_status, set_status
from penstock.control.leadership import TRANSACTIONAL_ID
from penstock.control.observation import read_actual_state, read_published_states
from penstock.kafka.admin import acls, groups, topics, users
from penstock.kafka.admin.acls import Acl, Operation, Pattern, ResourceType
from penstock.kafka.admin.group_offsets import CommittedOffset, commit
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.users import Credential
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import TransactionalProducer, bounds, read
from penstock.kafka.security import Mechanism
from penstock.model.api_keys import hashed
from penstock.model.entities import (
    ApiKey,
    BrokerState,
    BrokerStatus,
    ClusterState,
    Grant,
    LogicalCluster,
    OperationState,
    PhysicalCluster,
    Role,
    ServiceAccount,
)
from penstock.model.entities import Operation as RunningOperation
from penstock.model.errors.control import NameTaken, NotActive
from penstock.model.events import AuditEvent, registry_key
from penstock.model.ids import ServiceAccountId, kafka_user
from penstock.model.key_names import AUDIT_TOPIC
from penstock.model.tenant_acls import AclEntry
from penstock.model.tenant_state import TenantState
from tests.control.conftest import QUICK_SESSIONS, run_control_plane
from tests.harness.fleet import TINY
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.control.effects import ReportProgress
    from penstock.control.step_outcome import Outcome, Pending
    from tests.control.conftest import PlaneHarness
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka
SECRET = "s" * 64


@pytest.fixture
async def kafka(control_fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:
        yield client


async def test_a_new_cluster_has_its_user_acls_and_state(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))

    (account,) = harness.plane.registry.accounts(cluster.id)
    user = kafka_user(cluster.tenant, account.account)
    await harness.as_declared()
    actual = await read_actual_state(kafka)
    assert cluster.state is ClusterState.READY
    assert user in actual.access.users
    assert AclEntry(user, "topic", f"{cluster.id}_", "prefixed", "all") in actual.access.acls
    assert actual.states[cluster.id].accounts[0].id == account.id


async def test_a_brokers_state_is_published_to_the_tenants_of_its_cluster(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    physical = harness.plane.registry.need(PhysicalCluster, cluster.cluster)
    broker, status = physical.brokers[0].id, BrokerStatus.CORDONED

    changed = await harness.decide(
        lambda r, a: set_status(r, a, physical.id, broker, status, "old"), BrokerState
    )
    ended = await harness.ended(changed.operation.id)
    cordoned = (await read_published_states(kafka))[cluster.id].cordoned
    changed = await harness.decide(lambda r, a: clear_status(r, a, physical.id, broker, status), BrokerState)
    await harness.ended(changed.operation.id)

    assert ended.state is OperationState.DONE
    assert cordoned == (broker,)
    assert (await read_published_states(kafka))[cluster.id].cordoned == ()


async def test_client_quotas_follow_the_quota_and_are_deleted_with_the_tenant(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"), overrides={"ingress_bytes": 1e6, "egress_bytes": 2e6})
    (account,) = harness.plane.registry.accounts(cluster.id)
    user = kafka_user(cluster.tenant, account.account)

    async def client_quotas() -> dict[str, float]:
        await harness.as_declared()
        return dict((await read_actual_state(kafka)).access.client_quotas.get(user, {}))

    made = await client_quotas()
    values = {"overrides": {"ingress_bytes": 3e6, "egress_bytes": 2e6}}
    changed = await harness.decide(
        lambda r, a: decisions.update_cluster(r, a, cluster.id, None, values), LogicalCluster
    )
    await harness.ended(changed.operation.id)
    later = await client_quotas()
    await harness.delete(cluster.id)

    assert made == {"producer_byte_rate": 1_250_000.0, "consumer_byte_rate": 2_500_000.0}
    assert later == {"producer_byte_rate": 3_750_000.0, "consumer_byte_rate": 2_500_000.0}
    assert await client_quotas() == {}


async def test_a_deleted_cluster_leaves_nothing_behind(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    await harness.key(cluster.id, unique("k")[:8].ljust(16, "0"), SECRET)
    topic = f"{cluster.id}_orders"
    await topics.create(kafka, [topics.NewTopic(topic, 2, 1), topics.NewTopic(f"{cluster.id}_b", 1, 1)])
    await eventually(lambda: kafka.leaders([topic], strict=False))
    await commit(kafka, f"{cluster.id}_readers", {TopicPartition(topic, 0): CommittedOffset(0)})

    operation = await harness.delete(cluster.id)

    assert operation.state is OperationState.DONE
    assert harness.plane.registry.get(LogicalCluster, cluster.id) is None
    await harness.as_declared()
    assert not [name for name in await topics.describe(kafka) if name.startswith(cluster.id)]
    assert not [name for name in await groups.list_all(kafka) if name.startswith(cluster.id)]
    assert cluster.id not in await read_published_states(kafka)


async def test_a_deleted_cluster_takes_along_accounts_whose_deletion_is_not_complete(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    user = kafka_user(cluster.tenant, ServiceAccountId("sa-zzzzzz"))  # the registry has dropped it already
    await users.alter(kafka, upsert=[Credential(user, "x")])
    await acls.create(kafka, [Acl(f"User:{user}", Operation.READ, ResourceType.TOPIC, f"{cluster.id}_x")])

    async def known() -> bool:
        return user in await users.describe(kafka)

    await eventually(known)
    await harness.delete(cluster.id)

    await harness.as_declared()
    assert not [name for name in await users.describe(kafka) if name.startswith(cluster.id)]
    assert await acls.describe(kafka, acls.AclFilter(principal=f"User:{user}")) == []


async def test_grants_of_an_account_are_granted_and_revoked(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    grants = (Grant("topic", "orders", "read"), Grant("group", "app-", "read", "prefixed"))
    made = await harness.decide(
        lambda r, a: decisions.create_account(r, a, cluster.id, "app", Role.LIMITED, grants), ServiceAccount
    )
    await harness.ended(made.operation.id)
    account = harness.plane.registry.need(ServiceAccount, made.operation.subject)
    user = kafka_user(cluster.tenant, ServiceAccountId(account.id))
    await harness.as_declared()
    assert len(await acls.describe(kafka, acls.AclFilter(principal=f"User:{user}"))) == 3

    changed = await harness.decide(
        lambda r, a: decisions.update_account(r, a, account.id, account.version, grants[:1]), ServiceAccount
    )
    await harness.ended(changed.operation.id)

    async def revoked() -> bool:
        return len(await acls.describe(kafka, acls.AclFilter(principal=f"User:{user}"))) == 2

    await eventually(revoked)
    deletion = await harness.decide(
        lambda r, a: decisions.delete_account(r, a, account.id, None), ServiceAccount
    )
    await harness.ended(deletion.operation.id)
    await harness.as_declared()
    assert await users.describe(kafka, [user]) == {}


async def test_the_checker_reports_changes_by_hand_and_repair_reverts_them(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    (account,) = harness.plane.registry.accounts(cluster.id)
    user, unknown = kafka_user(cluster.tenant, account.account), "lkc-zzzzzz_sa-zzzzzz"
    foreign_acl = Acl(f"User:{user}", Operation.READ, ResourceType.TOPIC, "lkc-zzzzzz_", Pattern.PREFIXED)
    await acls.create(kafka, [foreign_acl])
    await users.alter(kafka, upsert=[Credential(unknown, "x")])
    await users.alter(kafka, delete=[(user, Mechanism.SCRAM_SHA_512)])
    topic = "lkc-zzzzzz_orphan"
    await topics.create(kafka, [topics.NewTopic(topic, 1, 1)])

    everything = {
        (Kind.UNDECLARED, "acl", user),
        (Kind.UNDECLARED, "user", unknown),
        (Kind.MISSING, "user", user),
        (Kind.UNDECLARED, "topic", topic),
    }

    async def differs(*expected: tuple[Kind, str, str]) -> bool:  # brokers apply changes with a delay
        return {(d.kind, d.what, d.name) for d in await harness.plane.check()} == {*expected}

    try:
        await eventually(lambda: differs(*everything))
        await harness.plane.repair()
        await eventually(lambda: differs((Kind.UNDECLARED, "topic", topic)))
    finally:
        await topics.delete(kafka, [topic])
        await harness.as_declared()


async def test_the_audit_log_has_actors_and_operations_and_no_secret(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    key = await harness.key(cluster.id, unique("k")[:8].ljust(16, "1"), SECRET)
    partition = TopicPartition(AUDIT_TOPIC, 0)
    position, end = await bounds(kafka, partition)
    audit_records: list[bytes] = []
    while position < end:
        chunk = await read(kafka, partition, position)
        audit_records += [record.value for record in chunk.records if record.value is not None]
        position = chunk.position

    events = [AuditEvent.from_bytes(value) for value in audit_records]

    audited = [(event.operation, event.actor) for event in events if event.tenant == cluster.id]
    assert audited == [("cluster.create", "test"), ("key.create", "test")]
    assert key.secret_sha256.encode() not in b"".join(audit_records)


async def test_many_concurrent_requests_all_succeed(
    harness: PlaneHarness, unique: Callable[[str], str]
) -> None:
    name = unique("many")

    made = await asyncio.gather(*(harness.create(f"{name}-{n}") for n in range(20)))

    assert len({cluster.id for cluster in made}) == 20
    with pytest.raises(NameTaken):
        await harness.create(f"{name}-3")
    await harness.as_declared()


async def test_a_standby_refers_to_the_active_one_follows_and_takes_over(
    control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    async with (
        run_control_plane(control_fleet, url="http://second") as second,
        run_control_plane(control_fleet, url="http://first") as first,
    ):
        by_url = {"http://first": first, "http://second": second}
        active = await eventually(lambda: _active(first, second))
        standby = first if active is second else second
        cluster = await active.create(unique("shop"))

        async def followed() -> bool:
            return standby.plane.registry.get(LogicalCluster, cluster.id) is not None

        await eventually(followed)
        assert by_url[standby.plane.active_url] is active
        with pytest.raises(NotActive):
            await standby.create(unique("other"))
        active.stop.set()
        await active.task

        await standby.active()
        after = await standby.create(unique("after"))

        assert after.state is ClusterState.READY


async def test_a_change_sent_to_a_term_that_has_ended_is_refused_and_the_next_term_takes_it(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    term = harness.plane._term
    assert term is not None
    await TransactionalProducer(kafka, TRANSACTIONAL_ID).init()  # fences the term
    with pytest.raises(NotActive):
        await harness.create(unique("fenced"))

    async def ended() -> bool:
        return harness.plane._term is not term

    await eventually(ended)

    with pytest.raises(NotActive):
        await asyncio.wait_for(term.propose(Mock(side_effect=AssertionError("it was decided"))), 10)

    await harness.active()
    assert (await harness.create(unique("after"))).state is ClusterState.READY


async def test_an_operation_with_a_defect_fails_alone(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = await asyncio.to_thread(make_fleet, **TINY, config=QUICK_SESSIONS)  # the failed operation stays
    monkeypatch.setattr(operations, "ATTEMPTS_MAX", 1)
    async with run_control_plane(fleet) as harness:
        await harness.active()
        term = harness.plane._term
        assert term is not None
        perform = term.effects.perform

        async def defective(operation: RunningOperation, report: ReportProgress) -> Outcome | Pending:
            if operation.id == broken.operation.id:
                raise KeyError("a defect")
            return await perform(operation, report)

        monkeypatch.setattr(term.effects, "perform", defective)
        broken = await harness.decide(
            lambda r, a: decisions.create_cluster(r, a, ClusterRequest("broken")), LogicalCluster
        )

        made = await harness.create("shop")
        ended = await harness.ended(broken.operation.id)

        assert made.state is ClusterState.READY
        assert (ended.state, ended.error_code) == (OperationState.FAILED, "PEN-5027")
        assert harness.plane._term is term


async def test_a_published_state_that_cannot_be_read_is_reported_and_replaced(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    damaged = await harness.create(unique("damaged"))
    await append(kafka, PARTITION, [(registry_key(TenantState.kind, damaged.id), b"not a state")])

    async def reported() -> bool:
        return any(damaged.id in difference.name for difference in await harness.plane.check())

    await eventually(reported)
    made = await harness.create(unique("shop"))

    assert made.state is ClusterState.READY
    assert await harness.plane.repair() == ()
    assert damaged.id in await read_published_states(kafka)


async def test_a_key_is_not_ready_while_its_state_cannot_be_published(
    harness: PlaneHarness, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    term = harness.plane._term
    assert term is not None
    publisher = term.publishers.pop(cluster.cluster)
    decided = await harness.decide(
        lambda r, a: decisions.create_key(r, a, cluster.id, None, "K" * 16, hashed(SECRET), ""), ApiKey
    )

    async def waits() -> bool:
        operation = harness.plane.registry.need(RunningOperation, decided.operation.id)
        return "cannot be reached" in operation.detail

    await eventually(waits)
    term.publishers[cluster.cluster] = publisher

    ended = await harness.ended(decided.operation.id)

    assert ended.state is OperationState.DONE
    assert [key.id for key in (await read_published_states(kafka))[cluster.id].keys] == ["K" * 16]


async def _active(*harnesses: PlaneHarness) -> PlaneHarness | None:
    return next((harness for harness in harnesses if harness.plane.role == "active"), None)
