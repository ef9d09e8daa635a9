"""Who may do what on a cluster with TLS: nobody, except the platform itself and whom it lets in."""

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

from penstock.fleet.readiness import security_of
from penstock.fleet.security import load_authority
from penstock.fleet.spec import Listener
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model.errors.wire import BrokerUntrusted, LoginRefused
from tests.ground.fleet import Fleet, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.fleet.node import Node

pytestmark = pytest.mark.kafka

SECONDS_MAX = 60
PASSWORD = "a tenant's own"
OUTSIDE = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_SSL")  # what a client makes of a door that stays shut


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


def refused(config: dict[str, Any], *reasons: str) -> None:
    """The client is told one of the reasons, and stays outside."""
    told: list[str] = []
    errors = {"error_cb": lambda error: told.append(error.name()), "log_level": 0}
    client = Producer(config | errors)
    wait_for(lambda: client.poll(0.02) or set(reasons) & set(told), what=f"{reasons}, not {told}")
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.3)


def test_the_platform_itself_comes_in_by_tls(secured: Fleet) -> None:
    config = secured.client_config()

    assert config["security.protocol"] == "SASL_SSL"
    admin = AdminClient(config)
    assert admin.list_topics(timeout=SECONDS_MAX).cluster_id == secured.kafka_id


@pytest.fixture(params=["internal", "gateway"])
def listener(request: pytest.FixtureRequest, secured: Fleet) -> dict[str, str]:
    address = secured.bootstrap if request.param == "internal" else secured.gateway_bootstrap
    return {"bootstrap.servers": address}


def test_a_client_that_trusts_another_authority_does_not_come_in(
    secured: Fleet, listener: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("other")
    load_authority(directory, now=dt.datetime.now(dt.UTC))

    other = {"ssl.ca.location": str(directory / "ca.pem")}
    refused(secured.client_config() | listener | other, "_SSL")


def test_a_client_without_tls_does_not_come_in(secured: Fleet, listener: dict[str, str]) -> None:
    plain = {"security.protocol": "SASL_PLAINTEXT"}

    refused(secured.client_config() | listener | plain, *OUTSIDE)


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_anonymous_is_nobody(secured: Fleet, listener: dict[str, str], protocol: str) -> None:
    config = {k: v for k, v in secured.client_config().items() if not k.startswith("sasl")}

    refused(config | listener | {"security.protocol": protocol}, *OUTSIDE)


WRONG = {
    "an unknown user": {"sasl.username": "nobody"},
    "a wrong password": {"sasl.password": "wrong"},
    "a mechanism that is not offered": {"sasl.mechanism": "PLAIN"},
    "a weaker mechanism": {"sasl.mechanism": "SCRAM-SHA-256"},
}


@pytest.mark.parametrize("who", WRONG)
def test_whoever_cannot_log_in_does_not_come_in(secured: Fleet, listener: dict[str, str], who: str) -> None:
    refused(secured.client_config() | listener | WRONG[who], "_AUTHENTICATION")


def test_a_user_without_rights_may_do_nothing(
    secured: Fleet, listener: dict[str, str], tenant: str, unique: Callable[[str], str]
) -> None:
    platform = AdminClient(secured.client_config())
    topic = unique("orders")
    platform.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
    login = {"sasl.username": tenant, "sasl.password": PASSWORD}
    config = secured.client_config() | listener | login

    admin = AdminClient(config)
    seen = admin.list_topics(timeout=SECONDS_MAX).topics
    asked = admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic].error
    with pytest.raises(KafkaException) as creation:
        admin.create_topics([NewTopic("mine", 1, 1)])["mine"].result(SECONDS_MAX)
    consumer = Consumer(config | {"group.id": unique("group"), "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = consumer.poll(SECONDS_MAX)
    consumer.close()

    assert topic not in seen
    assert asked.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert creation.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert read.error().code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )


def opened(node: Node, listener: Listener, security: Security) -> None:
    async def open_and_close() -> None:
        connection = await Connection.open(node.spec.host, node.spec.ports[listener], security)
        await connection.close()

    asyncio.run(open_and_close())


@pytest.mark.parametrize("mechanism", [Mechanism.PLAIN, Mechanism.SCRAM_SHA_512])
def test_the_controllers_take_no_user_of_a_tenant(secured: Fleet, tenant: str, mechanism: Mechanism) -> None:
    controller = secured.node("c1001")
    security = security_of(controller)
    opened(controller, Listener.CONTROLLER, security)  # the platform itself comes in

    with pytest.raises(LoginRefused):
        opened(controller, Listener.CONTROLLER, Security(Login(tenant, PASSWORD, mechanism), security.tls))


def test_the_controllers_take_nobody_without_a_login(secured: Fleet) -> None:
    controller = secured.node("c1001")
    anonymous = Security(None, security_of(controller).tls)

    async def ask() -> Any:
        connection = await Connection.open("127.0.0.1", controller.spec.ports[Listener.CONTROLLER], anonymous)
        try:
            return await connection.call("DescribeCluster", {"EndpointType": 2})
        finally:
            await connection.close()

    with pytest.raises(Exception, match="PEN-3"):
        asyncio.run(ask())


def test_our_own_client_trusts_no_other_authority_either(
    secured: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("other")
    load_authority(directory, now=dt.datetime.now(dt.UTC))
    security = Security(security_of(secured.node("b1")).login, tls_trusting(directory / "ca.pem"))

    with pytest.raises(BrokerUntrusted):
        opened(secured.node("b1"), Listener.INTERNAL, security)
