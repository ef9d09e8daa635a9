"""The control plane on a real Kafka: what it commits, provisions, tells gateways, and takes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.control import decisions
from penstock.control.checker import Kind
from penstock.control.observing import found, published
from penstock.control.rules import Rule
from penstock.kafka import acls, groups, topics, users
from penstock.kafka.acls import Acl, Operation, Pattern, ResourceType
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed, commit
from penstock.kafka.log import bounds, read
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.security import Mechanism
from penstock.kafka.users import Credential
from penstock.model.entities import ClusterState, Grant, LogicalCluster, OperationState, Role, ServiceAccount
from penstock.model.errors.control import NameTaken, NotActive
from penstock.model.events import AuditEvent
from penstock.model.ids import ServiceAccountId, kafka_user
from penstock.model.keys import AUDIT_TOPIC
from tests.control.conftest import open_office
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.control.conftest import Office
    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka
SECRET = "s" * 64


@pytest.fixture
async def kafka(control_fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:
        yield client


async def test_a_new_cluster_has_its_user_its_rights_and_its_state(
    office: Office, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))

    (account,) = office.plane.registry.accounts(cluster.id)
    user = kafka_user(cluster.tenant, account.account)
    await office.as_declared()
    seen = await found(kafka)
    assert cluster.state is ClusterState.READY
    assert user in seen.rights.users
    assert Rule(user, "topic", f"{cluster.id}_", "prefixed", "all") in seen.rights.rules
    assert seen.states[cluster.id].accounts[0].id == account.id


async def test_the_fuse_follows_the_quota_and_goes_with_the_tenant(
    office: Office, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"), overrides={"ingress_bytes": 1e6, "egress_bytes": 2e6})
    (account,) = office.plane.registry.accounts(cluster.id)
    user = kafka_user(cluster.tenant, account.account)

    async def rates() -> dict[str, float]:
        await office.as_declared()
        return dict((await found(kafka)).rights.rates.get(user, {}))

    made = await rates()
    values = {"overrides": {"ingress_bytes": 3e6, "egress_bytes": 2e6}}
    changed = await office.decide(
        lambda r, a: decisions.update_cluster(r, a, cluster.id, None, values), LogicalCluster
    )
    await office.ended(changed.operation.id)
    later = await rates()
    await office.delete(cluster.id)

    assert made == {"producer_byte_rate": 1_250_000.0, "consumer_byte_rate": 2_500_000.0}
    assert later == {"producer_byte_rate": 3_750_000.0, "consumer_byte_rate": 2_500_000.0}
    assert await rates() == {}


async def test_a_deleted_cluster_leaves_nothing_behind(
    office: Office, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))
    await office.key(cluster.id, unique("k")[:8].ljust(16, "0"), SECRET)
    topic = f"{cluster.id}_orders"
    await topics.create(kafka, [topics.NewTopic(topic, 2, 1), topics.NewTopic(f"{cluster.id}_b", 1, 1)])
    await eventually(lambda: kafka.leaders([topic], strict=False))
    await commit(kafka, f"{cluster.id}_readers", {TopicPartition(topic, 0): Committed(0)})

    operation = await office.delete(cluster.id)

    assert operation.state is OperationState.DONE
    assert office.plane.registry.get(LogicalCluster, cluster.id) is None
    await office.as_declared()
    assert not [name for name in await topics.describe(kafka) if name.startswith(cluster.id)]
    assert not [name for name in await groups.list_all(kafka) if name.startswith(cluster.id)]
    assert cluster.id not in await published(kafka)


async def test_grants_of_an_account_are_given_and_taken_again(
    office: Office, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))
    grants = (Grant("topic", "orders", "read"), Grant("group", "app-", "read", "prefixed"))
    made = await office.decide(
        lambda r, a: decisions.create_account(r, a, cluster.id, "app", Role.LIMITED, grants), ServiceAccount
    )
    await office.ended(made.operation.id)
    account = office.plane.registry.need(ServiceAccount, made.operation.subject)
    user = kafka_user(cluster.tenant, ServiceAccountId(account.id))
    await office.as_declared()
    assert len(await acls.describe(kafka, acls.AclFilter(principal=f"User:{user}"))) == 3

    changed = await office.decide(
        lambda r, a: decisions.update_account(r, a, account.id, account.version, grants[:1]), ServiceAccount
    )
    await office.ended(changed.operation.id)

    async def taken() -> bool:
        return len(await acls.describe(kafka, acls.AclFilter(principal=f"User:{user}"))) == 2

    await eventually(taken)
    gone = await office.decide(lambda r, a: decisions.delete_account(r, a, account.id, None), ServiceAccount)
    await office.ended(gone.operation.id)
    await office.as_declared()
    assert await users.describe(kafka, [user]) == {}


async def test_the_checker_finds_what_was_planted_and_repair_takes_it_away(
    office: Office, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))
    (account,) = office.plane.registry.accounts(cluster.id)
    user, stranger = kafka_user(cluster.tenant, account.account), "lkc-zzzzzz_sa-zzzzzz"
    planted = Acl(f"User:{user}", Operation.READ, ResourceType.TOPIC, "lkc-zzzzzz_", Pattern.PREFIXED)
    await acls.create(kafka, [planted])
    await users.alter(kafka, upsert=[Credential(stranger, "x")])
    await users.alter(kafka, delete=[(user, Mechanism.SCRAM_SHA_512)])
    topic = "lkc-zzzzzz_orphan"
    await topics.create(kafka, [topics.NewTopic(topic, 1, 1)])

    everything = {
        (Kind.UNDECLARED, "rule", user),
        (Kind.UNDECLARED, "user", stranger),
        (Kind.MISSING, "user", user),
        (Kind.UNDECLARED, "topic", topic),
    }

    async def differs(*told: tuple[Kind, str, str]) -> bool:  # in the eyes of a broker, which hears of it
        return {(d.kind, d.what, d.name) for d in await office.plane.check()} == {*told}

    try:
        await eventually(lambda: differs(*everything))
        await office.plane.repair()
        await eventually(lambda: differs((Kind.UNDECLARED, "topic", topic)))
    finally:
        await topics.delete(kafka, [topic])
        await office.as_declared()


async def test_who_asked_for_what_stands_in_the_audit_log_and_no_secret_does(
    office: Office, kafka: Client, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))
    key = await office.key(cluster.id, unique("k")[:8].ljust(16, "1"), SECRET)
    partition = TopicPartition(AUDIT_TOPIC, 0)
    position, end = await bounds(kafka, partition)
    told: list[bytes] = []
    while position < end:
        chunk = await read(kafka, partition, position)
        told += [record.value for record in chunk.records if record.value is not None]
        position = chunk.position

    events = [AuditEvent.from_bytes(value) for value in told]

    mine = [(event.operation, event.actor) for event in events if event.tenant == cluster.id]
    assert mine == [("cluster.create", "test"), ("key.create", "test")]
    assert key.secret_sha256.encode() not in b"".join(told)


async def test_many_asks_at_once_are_all_answered(office: Office, unique: Callable[[str], str]) -> None:
    name = unique("many")

    made = await asyncio.gather(*(office.create(f"{name}-{n}") for n in range(20)))

    assert len({cluster.id for cluster in made}) == 20
    with pytest.raises(NameTaken):
        await office.create(f"{name}-3")
    await office.as_declared()


async def test_a_standby_says_who_is_active_follows_and_takes_over(
    control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    async with (
        open_office(control_fleet, url="http://second") as second,
        open_office(control_fleet, url="http://first") as first,
    ):
        offices = {"http://first": first, "http://second": second}
        active = await eventually(lambda: _active(first, second))
        standby = first if active is second else second
        cluster = await active.create(unique("shop"))

        async def followed() -> bool:
            return standby.plane.registry.get(LogicalCluster, cluster.id) is not None

        await eventually(followed)
        assert offices[standby.plane.active_url] is active
        with pytest.raises(NotActive):
            await standby.create(unique("other"))
        active.stop.set()
        await active.task

        await standby.active()
        after = await standby.create(unique("after"))

        assert after.state is ClusterState.READY


async def _active(*offices: Office) -> Office | None:
    return next((office for office in offices if office.plane.role == "active"), None)
