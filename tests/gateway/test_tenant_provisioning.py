"""What accounts get inside Kafka: everything, their rights, or nothing."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.control.acls import declared_acls
from penstock.fleet.credentials.certificates import load_platform_key
from penstock.gateway.config import ApiKey, ServiceAccount, Tenant
from penstock.gateway.tenancy.tenant_provisioning import acls_for, kafka_quotas
from penstock.kafka.admin import quotas
from penstock.kafka.admin.acls import Acl, Operation, Pattern, ResourceType, acl_entry
from penstock.model import entities
from penstock.model.api_keys import new_api_key
from penstock.model.entities import GRANT_PATTERNS, GRANT_RESOURCES, Grant, Role
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId, ServiceAccountId, new_service_account_id
from tests.gateway.test_librdkafka import SECONDS, create
from tests.harness.fleet import wait_for
from tests.harness.gateway import Access, new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import RunningGateway

ACCOUNT = ServiceAccountId("sa-000001")
PRINCIPAL = "User:lkc-7hq2mz_sa-000001"


def given(account: ServiceAccount) -> set[Acl]:
    """The ACLs of an account without the right to write idempotently, which all have."""
    tenant = Tenant(LogicalClusterId("lkc-7hq2mz"), {ACCOUNT: account})
    return {rule for rule in acls_for(tenant) if rule.resource_type is not ResourceType.CLUSTER}


def test_an_account_without_a_role_and_rights_gets_none() -> None:
    assert given(ServiceAccount(ACCOUNT)) == set()


def test_an_owner_gets_everything_below_its_prefix_and_nothing_else() -> None:
    acls = given(ServiceAccount(ACCOUNT, role=Role.OWNER))

    assert {rule.resource_name for rule in acls} == {"lkc-7hq2mz_"}
    assert {rule.pattern for rule in acls} == {Pattern.PREFIXED}
    assert len(acls) == 3


def test_every_right_is_below_the_prefix() -> None:
    rights = (
        Grant("topic", "orders", "read"),
        Grant("transactional-id", "*", "describe-configs"),
        Grant("group", "lkc-9xk4vt_g", "all", "prefixed"),
    )

    assert given(ServiceAccount(ACCOUNT, rights=rights)) == {
        Acl(PRINCIPAL, Operation.READ, ResourceType.TOPIC, "lkc-7hq2mz_orders"),
        Acl(
            PRINCIPAL,
            Operation.DESCRIBE_CONFIGS,
            ResourceType.TRANSACTIONAL_ID,
            "lkc-7hq2mz_",
            Pattern.PREFIXED,
        ),
        Acl(PRINCIPAL, Operation.ALL, ResourceType.GROUP, "lkc-7hq2mz_lkc-9xk4vt_g", Pattern.PREFIXED),
    }


@pytest.mark.parametrize("pattern", sorted(GRANT_PATTERNS))
@pytest.mark.parametrize("name", ["orders", "*", "lkc-9xk4vt_g"])
@pytest.mark.parametrize("role", Role)
def test_a_right_in_a_file_is_the_same_acl_as_a_grant_of_the_control_plane(
    role: Role, name: str, pattern: str
) -> None:
    rights = tuple(Grant(kind, name, "describe-configs", pattern) for kind in sorted(GRANT_RESOURCES))
    tenant_id = LogicalClusterId("lkc-7hq2mz")
    tenant = Tenant(tenant_id, {ACCOUNT: ServiceAccount(ACCOUNT, role=role, rights=rights)})
    granted = entities.ServiceAccount(id=ACCOUNT, tenant=tenant_id, name="app", role=role, grants=rights)

    assert set(map(acl_entry, acls_for(tenant))) == declared_acls(granted)


def test_every_user_gets_its_tenants_whole_quota_and_loses_unlimited_rates() -> None:
    tenant = Tenant(LogicalClusterId("lkc-7hq2mz"), {ACCOUNT: ServiceAccount(ACCOUNT)})
    limited = replace(tenant, quota={Dimension.INGRESS_BYTES: 1e6})

    user = quotas.entity(user="lkc-7hq2mz_sa-000001")
    assert kafka_quotas(limited) == {user: {"producer_byte_rate": 1_250_000.0, "consumer_byte_rate": None}}
    assert kafka_quotas(tenant) == {user: {"producer_byte_rate": None, "consumer_byte_rate": None}}


@pytest.mark.kafka
def test_a_client_that_bypasses_the_gateway_is_throttled_by_the_broker(
    fleet: Fleet, make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    topic, throttled = unique("orders"), list[Any]()
    (owner,) = make_gateway(new_access(quota={Dimension.INGRESS_BYTES: 1_000.0})).accesses
    create(owner, topic)
    password = load_platform_key(fleet.local.layout.secrets).password(owner.user)
    past = replace(owner, bootstrap=fleet.gateway_bootstrap, key=owner.user, secret=password)
    config = past.client_config(sasl_mechanism="SCRAM-SHA-512", linger_ms=0)
    producer = Producer(config | {"throttle_cb": throttled.append})
    producer.produce(f"{owner.tenant.id}_{topic}", bytes(100_000))

    wait_for(lambda: producer.poll(0.1) is not None and bool(throttled), what="a throttle by the broker")

    assert throttled[0].throttle_time > 0


def joined(owner: Access, *rights: Grant) -> tuple[Access, Access]:
    """The owner's tenant with one more account, and that account's access."""
    account = new_service_account_id(secrets.choice)
    key = new_api_key(secrets.choice)
    tenant = replace(
        owner.tenant,
        accounts={**owner.tenant.accounts, account: ServiceAccount(account, rights=rights)},
        keys=(*owner.tenant.keys, ApiKey(key.id, bytes.fromhex(key.secret_sha256), account)),
    )
    return replace(owner, tenant=tenant), Access(tenant, account, key.id, key.secret)


@pytest.mark.kafka
def test_accounts_of_one_tenant_see_and_write_what_their_rights_allow(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    orders, secret = unique("orders"), unique("secret")
    owner, clerk = joined(new_access(), Grant("topic", orders, "write"))
    owner, powerless = joined(owner)
    running = make_gateway(owner)
    owner, clerk, powerless = (replace(one, bootstrap=running.bootstrap) for one in (owner, clerk, powerless))
    create(owner, orders, secret)

    def seen(access: Access) -> set[str]:
        return set(AdminClient(access.client_config()).list_topics(timeout=SECONDS).topics)

    wait_for(lambda: seen(clerk) == {orders}, what="its one topic")  # ACLs reach each broker separately
    assert seen(powerless) == set()
    assert written(clerk, orders) is None
    assert written(clerk, secret) == written(powerless, orders) == "TOPIC_AUTHORIZATION_FAILED"


def written(access: Access, topic: str) -> str | None:
    """The error of producing a record; None if it was acknowledged."""
    errors: list[str | None] = []
    producer = Producer(access.client_config(linger_ms=0))
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else None))
    assert producer.flush(SECONDS) == 0
    return errors[0]
