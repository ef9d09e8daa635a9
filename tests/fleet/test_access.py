"""Access to a cluster with TLS: denied to everyone except the platform and users with ACLs."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.fleet.credentials.certificates import load_authority
from penstock.fleet.credentials.passwords import ANCHOR_USER
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.admin import users
from penstock.kafka.admin.users import Credential
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.wire import BrokerUntrusted, LoginRefused
from tests.harness.fleet import Fleet, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.fleet.node import Node

pytestmark = pytest.mark.kafka

SECONDS_MAX = 60
PASSWORD = "a tenant's own"
OUTSIDE = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_SSL")  # errors of a client that cannot connect


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One controller and one broker with TLS on every listener."""
    shape = {"port": 0, "brokers": 1, "zones": ["a"], "tls": True}
    fleet = Fleet.start(tmp_path_factory.mktemp("secured"), shape)
    yield fleet
    fleet.destroy()


@pytest.fixture(scope="module")
def tenant(secured: Fleet) -> str:
    """A SCRAM user that exists, and has no rights."""
    admin = AdminClient(secured.client_config())
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("tenant", info, PASSWORD.encode(), None)
    admin.alter_user_scram_credentials([change])["tenant"].result(SECONDS_MAX)
    return "tenant"


def assert_refused(config: dict[str, Any], *reasons: str) -> None:
    """The client gets one of these errors and cannot connect."""
    errors_seen: list[str] = []
    errors = {"error_cb": lambda error: errors_seen.append(error.name()), "log_level": 0}
    client = Producer(config | errors)
    wait_for(
        lambda: client.poll(0.02) or set(reasons) & set(errors_seen), what=f"{reasons}, not {errors_seen}"
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.3)


def test_the_platform_connects_with_tls(secured: Fleet) -> None:
    config = secured.client_config()

    assert config["security.protocol"] == "SASL_SSL"
    admin = AdminClient(config)
    assert admin.list_topics(timeout=SECONDS_MAX).cluster_id == secured.kafka_id


@pytest.fixture(params=["internal", "gateway"])
def listener(request: pytest.FixtureRequest, secured: Fleet) -> dict[str, str]:
    address = secured.bootstrap if request.param == "internal" else secured.gateway_bootstrap
    return {"bootstrap.servers": address}


def test_a_client_that_trusts_another_authority_cannot_connect(
    secured: Fleet, listener: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("other")
    load_authority(directory, now=dt.datetime.now(dt.UTC))

    other = {"ssl.ca.location": str(directory / "ca.pem")}
    assert_refused(secured.client_config() | listener | other, "_SSL")


def test_a_client_without_tls_cannot_connect(secured: Fleet, listener: dict[str, str]) -> None:
    plain = {"security.protocol": "SASL_PLAINTEXT"}

    assert_refused(secured.client_config() | listener | plain, *OUTSIDE)


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_an_anonymous_client_cannot_connect(secured: Fleet, listener: dict[str, str], protocol: str) -> None:
    config = {k: v for k, v in secured.client_config().items() if not k.startswith("sasl")}

    assert_refused(config | listener | {"security.protocol": protocol}, *OUTSIDE)


WRONG = {
    "an unknown user": {"sasl.username": "unknown"},
    "a wrong password": {"sasl.password": "wrong"},
    "a mechanism that is not offered": {"sasl.mechanism": "PLAIN"},
    "a weaker mechanism": {"sasl.mechanism": "SCRAM-SHA-256"},
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_client_without_a_valid_login_cannot_connect(
    secured: Fleet, listener: dict[str, str], mistake: str
) -> None:
    assert_refused(secured.client_config() | listener | WRONG[mistake], "_AUTHENTICATION")


def test_a_user_without_rights_may_do_nothing(
    secured: Fleet, listener: dict[str, str], tenant: str, unique: Callable[[str], str]
) -> None:
    platform = AdminClient(secured.client_config())
    topic = unique("orders")
    platform.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
    login = {"sasl.username": tenant, "sasl.password": PASSWORD}
    config = secured.client_config() | listener | login

    admin = AdminClient(config)
    visible = admin.list_topics(timeout=SECONDS_MAX).topics
    error = admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic].error
    with pytest.raises(KafkaException) as creation:
        admin.create_topics([NewTopic("mine", 1, 1)])["mine"].result(SECONDS_MAX)
    consumer = Consumer(config | {"group.id": unique("group"), "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = consumer.poll(SECONDS_MAX)
    consumer.close()

    assert topic not in visible
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert creation.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert read is not None
    read_error = read.error()
    assert read_error is not None
    assert read_error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )


def opened(node: Node, listener: Listener, security: Security) -> None:
    async def open_and_close() -> None:
        connection = await Connection.open(node.spec.host, node.spec.ports[listener], security)
        await connection.close()

    asyncio.run(open_and_close())


@pytest.mark.parametrize("mechanism", [Mechanism.PLAIN, Mechanism.SCRAM_SHA_512])
def test_controllers_reject_users_of_tenants(secured: Fleet, tenant: str, mechanism: Mechanism) -> None:
    controller = secured.node("c1001")
    security = security_of(controller)
    opened(controller, Listener.CONTROLLER, security)  # the platform can connect

    with pytest.raises(LoginRefused):
        opened(controller, Listener.CONTROLLER, Security(Login(tenant, PASSWORD, mechanism), security.tls))


def test_controllers_reject_clients_without_a_login(secured: Fleet) -> None:
    controller = secured.node("c1001")
    anonymous = Security(None, security_of(controller).tls)

    async def describe() -> Any:
        connection = await Connection.open("127.0.0.1", controller.spec.ports[Listener.CONTROLLER], anonymous)
        try:
            return await connection.call("DescribeCluster", {"EndpointType": 2})
        finally:
            await connection.close()

    with pytest.raises(Exception, match="PEN-3"):
        asyncio.run(describe())


def test_our_client_trusts_no_other_authority(
    secured: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("other")
    load_authority(directory, now=dt.datetime.now(dt.UTC))
    security = Security(security_of(secured.node("b1")).login, tls_context(directory / "ca.pem"))

    with pytest.raises(BrokerUntrusted):
        opened(secured.node("b1"), Listener.INTERNAL, security)


def test_the_anchor_user_comes_first_in_a_java_hash_map() -> None:
    code = 0
    for character in ANCHOR_USER:
        code = (31 * code + ord(character)) % 2**32

    assert code == 0  # Java's String.hashCode


def test_logins_work_after_a_restart_although_many_users_were_deleted(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Kafka 4.3.1 forgets all users if the first one that a replay of its log visits was deleted."""
    fleet = make_fleet()
    asyncio.run(_create_and_delete_users(fleet, [f"user-{number}" for number in range(40)]))

    fleet.restart("b1")

    asyncio.run(_create_and_delete_users(fleet, ["another"]))


async def _create_and_delete_users(fleet: Fleet, names: list[str]) -> None:
    mechanism = Mechanism.SCRAM_SHA_512
    async with Client(fleet.bootstrap, fleet.security()) as client:
        made = await users.alter(client, upsert=[Credential(name, PASSWORD, mechanism) for name in names])
        deleted = await users.alter(client, delete=[(name, mechanism) for name in names])
        assert {*made.values(), *deleted.values()} == {None}
