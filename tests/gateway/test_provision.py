"""What accounts get inside Kafka: all, what they were granted, or nothing."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.fleet.security import load_platform_key
from penstock.gateway.config import ApiKey, ServiceAccount, Tenant
from penstock.gateway.provision import rates, rules
from penstock.kafka import quotas
from penstock.kafka.acls import Acl, Operation, Pattern, ResourceType
from penstock.model.entities import Grant, Role
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId, ServiceAccountId, new_service_account_id
from tests.gateway.test_librdkafka import SECONDS, create
from tests.ground.fleet import wait_for
from tests.ground.gateway import ALPHANUMERIC, Access, new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet
    from tests.ground.gateway import RunningGateway

ACCOUNT = ServiceAccountId("sa-000001")
PRINCIPAL = "User:lkc-7hq2mz_sa-000001"


def given(account: ServiceAccount) -> set[Acl]:
    """But for the right to write idempotently, which all have."""
    tenant = Tenant(LogicalClusterId("lkc-7hq2mz"), {ACCOUNT: account})
    return {rule for rule in rules(tenant) if rule.resource_type is not ResourceType.CLUSTER}


def test_an_account_without_a_role_and_rights_gets_none() -> None:
    assert given(ServiceAccount(ACCOUNT)) == set()


def test_an_owner_gets_everything_below_its_prefix_and_nothing_else() -> None:
    found = given(ServiceAccount(ACCOUNT, role=Role.OWNER))

    assert {rule.resource_name for rule in found} == {"lkc-7hq2mz_"}
    assert {rule.pattern for rule in found} == {Pattern.PREFIXED}
    assert len(found) == 3


def test_a_right_lies_below_the_prefix_whatever_its_name() -> None:
    rights = (
        Grant("topic", "orders", "read"),
        Grant("transactional-id", "*", "describe-configs"),
        Grant("group", "lkc-9xk4vt_g", "all", "prefixed"),
    )

    assert given(ServiceAccount(ACCOUNT, rights=rights)) == {
        Acl(PRINCIPAL, Operation.READ, ResourceType.TOPIC, "lkc-7hq2mz_orders"),
        Acl(PRINCIPAL, Operation.DESCRIBE_CONFIGS, ResourceType.TRANSACTIONAL_ID, "lkc-7hq2mz_*"),
        Acl(PRINCIPAL, Operation.ALL, ResourceType.GROUP, "lkc-7hq2mz_lkc-9xk4vt_g", Pattern.PREFIXED),
    }


def test_every_user_has_its_tenant_s_whole_quota_as_a_fuse_and_loses_what_is_unlimited() -> None:
    tenant = Tenant(LogicalClusterId("lkc-7hq2mz"), {ACCOUNT: ServiceAccount(ACCOUNT)})
    limited = replace(tenant, quota={Dimension.INGRESS_BYTES: 1e6})

    user = quotas.entity(user="lkc-7hq2mz_sa-000001")
    assert rates(limited) == {user: {"producer_byte_rate": 1_250_000.0, "consumer_byte_rate": None}}
    assert rates(tenant) == {user: {"producer_byte_rate": None, "consumer_byte_rate": None}}


@pytest.mark.kafka
def test_who_goes_round_the_gateway_is_throttled_by_the_broker(
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
    """The owner's tenant with one more account, and that account's way in."""
    account = new_service_account_id(secrets.choice)
    key = "".join(secrets.choice(ALPHANUMERIC) for _ in range(16))
    secret = secrets.token_urlsafe(48)
    tenant = replace(
        owner.tenant,
        accounts={**owner.tenant.accounts, account: ServiceAccount(account, rights=rights)},
        keys=(*owner.tenant.keys, ApiKey(key, hashlib.sha256(secret.encode()).digest(), account)),
    )
    return replace(owner, tenant=tenant), Access(tenant, account, key, secret)


@pytest.mark.kafka
def test_accounts_of_one_tenant_see_and_write_what_their_rights_say(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    orders, secret = unique("orders"), unique("secret")
    owner, clerk = joined(new_access(), Grant("topic", orders, "write"))
    owner, nobody = joined(owner)
    running = make_gateway(owner)
    owner, clerk, nobody = (replace(one, bootstrap=running.bootstrap) for one in (owner, clerk, nobody))
    create(owner, orders, secret)

    def seen(access: Access) -> set[str]:
        return set(AdminClient(access.client_config()).list_topics(timeout=SECONDS).topics)

    wait_for(lambda: seen(clerk) == {orders}, what="its one topic")  # rules reach each broker by itself
    assert seen(nobody) == set()
    assert written(clerk, orders) is None
    assert written(clerk, secret) == written(nobody, orders) == "TOPIC_AUTHORIZATION_FAILED"


def written(access: Access, topic: str) -> str | None:
    """What became of a record; None if it was taken."""
    told: list[str | None] = []
    producer = Producer(access.client_config(linger_ms=0))
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error and error.name()))
    assert producer.flush(SECONDS) == 0
    return told[0]
