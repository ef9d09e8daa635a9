"""Control planes from a file alone, on a Kafka cluster that was there before: TLS, takeover, failures."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.control.physical.configured import cluster_id, provide, require_same
from penstock.control.physical.gateway_files import free_ports
from penstock.control.registry import Put, Registry
from penstock.control.settings import ConfiguredCluster
from penstock.fleet.adopted.adoption import Target, adopt, load_target
from penstock.fleet.adopted.capabilities import Capability
from penstock.fleet.credentials.gateway_credentials import GatewayCredentials, tenants_key
from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.layout import Layout
from penstock.fleet.spec import Listener
from penstock.kafka.admin import acls, users
from penstock.kafka.admin.acls import Acl, Operation, Pattern, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.users import Credential
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism
from penstock.model.entities import PhysicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import ClusterReplaced, ClusterTwice, NoBrokersSelected, RightsMissing
from tests.harness.command import Penstock
from tests.harness.control_planes import KEY, TOKEN, Planes
from tests.harness.fleet import TINY, Fleet, wait_for
from tests.harness.secured_kafka import CLIENT, CLIENT_SECRET, SecuredKafka
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.control.physical.cluster_access import ProvidedCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def test_two_control_planes_share_a_home_that_runs_elsewhere(planes: Planes) -> None:
    first = planes.start(planes.settings())
    first.wait_for_role("active")
    known = {cluster["name"]: cluster["id"] for cluster in first.get("/physical-clusters")["items"]}
    assert known["home"] == cluster_id(planes.kafka.fleet.kafka_id)  # other tests may have added others
    second = planes.start(planes.settings(relieve=False))
    second.wait_for_role("standby")

    wait_for(lambda: "PEN-5029" in second.text, what="the difference in the standby's log")
    assert "relieve" in second.text
    stranger = planes.start(planes.settings(), key=b"x" * 32)
    wait_for(lambda: stranger.ended, what="the control plane with another key to end")
    assert "PEN-5030" in stranger.text

    first.process.kill()
    second.wait_for_role("active")
    for plane in planes.started:
        assert CLIENT_SECRET not in plane.text
        assert TOKEN not in plane.text


def test_the_credentials_of_one_cluster_are_written_for_its_gateways(planes: Planes) -> None:
    host = planes.host(planes.settings())
    path = host / "gateway.credentials"

    penstock = Penstock(host / "home", host)
    arguments = ("--config", str(host / "control.yaml"), "--to", str(path))
    written = penstock("gateway", "credentials", "home", *arguments)

    assert written.code == 0, written.err
    kafka_id = planes.kafka.fleet.kafka_id
    credentials = GatewayCredentials.read(path)
    assert (credentials.cluster, credentials.kafka_id) == (cluster_id(kafka_id), kafka_id)
    assert credentials.key == tenants_key(KEY, kafka_id)
    assert path.stat().st_mode & 0o077 == 0
    unknown = penstock("gateway", "credentials", "west", *arguments)
    assert unknown.code != 0
    assert "west" in unknown.err


def test_an_unreachable_home_is_waited_for_and_an_unusable_one_ends_the_process(planes: Planes) -> None:
    document = planes.settings()
    document["home"]["bootstrap"] = f"127.0.0.1:{free_ports(1)[0]}"
    waiting = planes.start(document)
    wait_for(lambda: "waiting for the home cluster" in waiting.text, what="the message")
    assert not waiting.ended

    waiting.process.terminate()
    assert waiting.process.wait(30) == 0
    document = planes.settings()
    planes.authority.cert_pem.write_to_path(planes.directory / "ca.pem")
    document["home"]["tls"]["ca"] = str(planes.directory / "ca.pem")
    untrusted = planes.start(document)
    assert untrusted.process.wait(60) != 0
    assert "PEN-3018" in untrusted.text


def test_a_further_cluster_that_starts_later_is_added(
    planes: Planes, make_fleet: Callable[..., Fleet]
) -> None:
    elsewhere = make_fleet(**TINY)
    elsewhere.kill("b1")
    login = {"user": PLATFORM_USER, "password": elsewhere.local.access.credentials.platform}
    east = {"name": "east", "bootstrap": elsewhere.bootstrap, "login": login, "gateways": "east.example:9092"}
    plane = planes.start(planes.settings(clusters=[east]))
    wait_for(lambda: "cluster not reached" in plane.text, what="the missing cluster in the log")

    elsewhere.start_node("b1")

    def listed() -> dict[str, Any]:
        return {one["name"]: one for one in plane.get("/physical-clusters")["items"]}

    wait_for(lambda: "east" in listed(), what="the second cluster")
    assert listed()["east"]["kafka_id"] == elsewhere.kafka_id
    wait_for(lambda: not plane.get("/check")["differences"], what="its state to be published")


async def test_every_missing_right_is_named_with_the_command_that_grants_it(
    secured_kafka: SecuredKafka,
) -> None:
    kafka = secured_kafka
    login = Login("penstock-limited", "limited", Mechanism.SCRAM_SHA_512)
    async with Client(kafka.fleet.bootstrap, kafka.security(kafka.platform())) as admin:
        credential = Credential(login.user, login.password, login.mechanism, 4096)
        results_or_raise(await users.alter(admin, upsert=[credential]))
    cluster = ConfiguredCluster("home", kafka.fleet.bootstrap, kafka.security(login))

    with pytest.raises(RightsMissing) as missing:
        await provide(cluster, KEY)

    rights, commands = str(missing.value.facts["rights"]), str(missing.value.facts["commands"])
    for right in (
        "Alter/Describe/DescribeConfigs/AlterConfigs on cluster",
        "topic _penstock.*",
        "topic lkc-*",
    ):
        assert right in rights
    for right in ("group _penstock.*", "group lkc-*", "Describe/Write on transactional-id _penstock.*"):
        assert right in rights
    assert commands.count("--allow-principal 'User:penstock-limited'") == 6


async def test_a_capability_gained_later_counts_at_the_next_probe(secured_kafka: SecuredKafka) -> None:
    kafka = secured_kafka
    login = Login("penstock-no-quotas", "limited", Mechanism.SCRAM_SHA_512)
    cluster = ConfiguredCluster("home", kafka.fleet.bootstrap, kafka.security(login))
    principal = f"User:{login.user}"
    async with Client(kafka.fleet.bootstrap, kafka.security(kafka.platform())) as admin:
        credential = Credential(login.user, login.password, login.mechanism, 4096)
        results_or_raise(await users.alter(admin, upsert=[credential]))
        kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        rights = [
            Acl(principal, Operation.ALL, kind, prefix, Pattern.PREFIXED)
            for kind in kinds
            for prefix in ("_penstock.", "lkc-")
        ]
        rights += [
            Acl(principal, operation, ResourceType.CLUSTER, "kafka-cluster")
            for operation in (Operation.CREATE, Operation.ALTER, Operation.DESCRIBE)
        ]
        results_or_raise(await acls.create(admin, rights))

        async def provided() -> ProvidedCluster | None:
            with suppress(PenstockError):  # brokers apply new users and ACLs a moment later
                return await provide(cluster, KEY)
            return None

        before = await eventually(provided)
        assert not before.sets_client_quotas
        (quotas,) = [each for each in before.missing if each.capability == "client-quotas"]
        assert "--operation AlterConfigs --cluster" in quotas.remedy
        assert before.sets_acls

        more = Acl(principal, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "kafka-cluster")
        results_or_raise(await acls.create(admin, [more]))

        async def gained() -> bool:
            return (await provide(cluster, KEY)).sets_client_quotas

        await eventually(gained)


async def test_brokers_that_are_selected_by_nothing_are_an_error(secured_kafka: SecuredKafka) -> None:
    security = secured_kafka.security(secured_kafka.platform())
    cluster = ConfiguredCluster("home", secured_kafka.fleet.bootstrap, security, brokers=frozenset((7,)))
    with pytest.raises(NoBrokersSelected, match="it has 1 in a"):
        await provide(cluster, KEY)


@pytest.mark.parametrize("listener", [Listener.INTERNAL, Listener.GATEWAY])
async def test_a_cluster_is_adopted_with_a_token_and_with_a_certificate(
    secured_kafka: SecuredKafka, tmp_path: Path, listener: Listener
) -> None:
    kafka = secured_kafka
    port = kafka.fleet.node("b1").spec.ports[listener]
    target = Target(f"127.0.0.1:{port}", tls=True, ca=str(kafka.ca))
    if listener is Listener.GATEWAY:
        target = replace(target, certificate=str(kafka.client_certificate()))
    else:
        target = replace(
            target, token_url=kafka.tokens.url, client_id=CLIENT, client_secret=CLIENT_SECRET, scope="kafka"
        )
    layout = Layout(tmp_path)

    known = await adopt(layout, "east", target)

    assert known.kafka_id == kafka.fleet.kafka_id
    assert load_target(layout, "east") == target
    assert CLIENT_SECRET not in (layout.adopted / "east.json").read_text()
    missing = {row.capability for row in known.capabilities if not row.available}
    assert (Capability.USERS in missing) is (listener is Listener.GATEWAY)  # tenants log in with SCRAM


async def test_a_cluster_of_the_same_name_that_is_another_one_is_refused(secured_kafka: SecuredKafka) -> None:
    kafka = secured_kafka
    security = kafka.security(kafka.platform())
    cluster = ConfiguredCluster("home", kafka.fleet.bootstrap, security, kafka_id="another")
    with pytest.raises(ClusterReplaced, match="another"):
        await provide(cluster, KEY)

    provided = await provide(ConfiguredCluster("home", kafka.fleet.bootstrap, security), KEY)
    assert (provided.id, provided.kafka_id) == (cluster_id(kafka.fleet.kafka_id), kafka.fleet.kafka_id)
    registry = Registry()
    other = PhysicalCluster(id="pkc-000001", version=1, name="home", provider="adopted", kafka_id="another")
    registry.accept([Put(other)])
    with pytest.raises(ClusterReplaced):
        require_same(registry, [], provided)
    with pytest.raises(ClusterTwice, match="'east' and 'home'"):
        require_same(Registry(), [provided], replace(provided, name="east"))
