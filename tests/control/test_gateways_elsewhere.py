"""Gateways from files alone, on a Kafka cluster that was there before: they register, serve, fail, recover.

Two gateways share a port with SO_REUSEPORT, as hosts behind one load balancer share an address.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
import yaml

from penstock.control.physical.configured import cluster_id
from penstock.control.physical.gateway_files import free_ports
from penstock.fleet.credentials.gateway_credentials import GatewayCredentials, gateway_token, tenants_key
from penstock.fleet.credentials.passwords import PLATFORM_USER, PlatformKey
from penstock.gateway.process.discovery import with_brokers
from penstock.gateway.process.tenant_source import GATEWAY_USER
from penstock.gateway.settings import parse_gateway
from penstock.kafka.admin import acls, topics, users
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds
from penstock.kafka.routing import CONTROLLER
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import CredentialsOfOtherCluster, CredentialsRefused
from penstock.model.errors.wire import AuthorityUnknown, CertificateExpired, LoginRefused
from penstock.model.ids import LogicalClusterId, ServiceAccountId, kafka_user
from penstock.wire.error_codes import Code
from tests.harness.command import Penstock, clean_environment
from tests.harness.control_planes import KEY, TOKEN, Plane, Planes
from tests.harness.fleet import wait_for
from tests.harness.processes import Processes
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.secured_kafka import SecuredKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

WITHIN_SECONDS = 60.0
GATEWAY_TOPICS = {
    key_names.STATE_TOPIC,
    key_names.QUOTA_TOPIC,
    key_names.GATEWAYS_TOPIC,
    key_names.USAGE_TOPIC,
    key_names.ACKS_TOPIC,
    key_names.PRESSURE_TOPIC,
    key_names.DURABILITY_TOPIC,
}


@dataclass
class Elsewhere:
    """A control plane, and the gateways of its cluster, each with the files of its host."""

    planes: Planes
    plane: Plane
    port: int
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    @property
    def kafka_id(self) -> str:
        return self.planes.kafka.fleet.kafka_id

    def document(self, **changes: Any) -> dict[str, Any]:
        kafka = self.planes.kafka
        return {
            "gateway": "gw-1",
            "kafka": {"bootstrap": kafka.fleet.bootstrap, "tls": {"ca": str(kafka.ca)}},
            "credentials": "gateway.credentials",
            "control": {"urls": [self.plane.url], "ca": "control-ca.pem"},
            "port": self.port - 1,  # the only broker has id 1
            "tls": {"certificate": "gateway.pem"},
        } | changes

    def host(self, name: str, **changes: Any) -> Path:
        host = self.planes.directory / name
        host.mkdir(exist_ok=True)
        key = tenants_key(KEY, self.kafka_id)
        GatewayCredentials(cluster_id(self.kafka_id), self.kafka_id, key).write(host / "gateway.credentials")
        self.planes.authority.cert_pem.write_to_path(host / "control-ca.pem")
        self.planes.certificate(host / "gateway.pem")
        (host / "gateway.yaml").write_text(yaml.safe_dump(self.document(**changes)))
        return host

    def start(self, name: str, **changes: Any) -> tuple[subprocess.Popen[Any], Path]:
        host = self.host(name, **changes)
        with (host / "log").open("ab") as log:
            process = self.planes.processes.start(
                [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(host / "gateway.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment({}),
                cwd=host,
            )
        self.started.append(process)
        return process, host / "log"

    def states(self) -> dict[str, str]:
        return {each["gateway"]: each["state"] for each in self.plane.get("/gateways")["items"]}

    def wait_for_state(self, gateway: str, state: str) -> None:
        wait_for(
            lambda: self.states().get(gateway) == state,
            what=f"{gateway} to be {state}",
            seconds=WITHIN_SECONDS,
        )

    def tenant(self, name: str) -> tuple[dict[str, Any], Login]:
        """A logical cluster, and the login of its owner."""
        made = self.plane.call("POST", "/clusters", {"name": name, "units": 1})
        self._done(made)
        logical = made["cluster"]["id"]
        key = self.plane.call("POST", f"/clusters/{logical}/keys", {})
        self._done(key)
        return self.plane.get(f"/clusters/{logical}"), Login(key["key"]["id"], key["secret"], Mechanism.PLAIN)

    def _done(self, accepted: dict[str, Any]) -> None:
        path = f"/operations/{accepted['operation']['id']}"
        wait_for(lambda: self.plane.get(path)["state"] == "done", what=path, seconds=WITHIN_SECONDS)

    def client(self, cluster: dict[str, Any], login: Login) -> Client:
        trusted = ssl.create_default_context()
        self.planes.authority.configure_trust(trusted)
        return Client(cluster["bootstrap"], Security(login, trusted))


def settings(planes: Planes, **changes: Any) -> dict[str, Any]:
    """Of a control plane, with a login that does not expire: a busy machine outlasts the tokens here."""
    document = planes.settings(**changes)
    login = planes.kafka.platform()
    document["home"]["login"] = {"user": login.user, "password": login.password}
    return document


@pytest.fixture(scope="module")
def elsewhere(secured_kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    with Processes() as processes:
        planes = Planes(secured_kafka, processes, tmp_path_factory.mktemp("elsewhere"))
        plane = planes.start(settings(planes))
        plane.wait_for_role("active")
        yield Elsewhere(planes, plane, free_ports(1)[0])


def grant(account: str) -> Acl:
    return Acl(f"User:{account}", Operation.READ, ResourceType.TOPIC, "orders")


async def code_of(client: Client, acl: Acl) -> int | None:
    """Kafka's error code of an attempt to create an ACL; None if it succeeds."""
    (outcome,) = (await acls.create(client, [acl])).values()
    return None if outcome is None else int(str(outcome.facts.get("error_code", -1)))


async def code_of_one_attempt(client: Client, acl: Acl) -> int:
    """As `code_of`, without the client's retries."""
    creation = {
        "ResourceType": acl.resource_type,
        "ResourceName": acl.resource_name,
        "ResourcePatternType": acl.pattern,
        "Principal": acl.principal,
        "Host": acl.host,
        "Operation": acl.operation,
        "PermissionType": acl.permission,
    }
    response = await client.call("CreateAcls", {"Creations": [creation]}, to=CONTROLLER, retry=False)
    return int(response["Results"][0]["ErrorCode"])


async def created(client: Client, topic: str) -> bool:
    """Whether the topic could be created: a gateway learns of a new key a moment after it was made."""
    try:
        results_or_raise(await topics.create(client, [NewTopic(topic, 1, 1)]))
    except LoginRefused:
        return False
    return True


def reaches_all_addresses(elsewhere: Elsewhere, cluster: dict[str, Any], login: Login) -> None:
    penstock = Penstock(elsewhere.planes.directory / "home", elsewhere.planes.directory)
    ca = elsewhere.planes.directory / "gw-host-1" / "control-ca.pem"
    (elsewhere.planes.directory / "secret").write_text(login.password)
    profile = ("--bootstrap", cluster["bootstrap"], "--key", login.user, "--ca", str(ca), "--tls")
    created = penstock("profile", "create", "shop", *profile, "--secret-file", "secret")
    assert created.code == 0, created.err
    reached = penstock("doctor", "--from-here", "shop", "--profile", "shop", "-o", "json")
    assert reached.code == 0, reached.err
    assert {row["what"]: row["state"] for row in reached.data} == dict.fromkeys(
        ("bootstrap", "login", "advertised"), "fine"
    )


async def test_gateways_on_other_hosts_serve_fail_and_recover(elsewhere: Elsewhere) -> None:
    first, log = elsewhere.start("gw-host-1")
    second, _ = elsewhere.start("gw-host-2", gateway="gw-2")
    for name in ("gw-1", "gw-2"):
        elsewhere.wait_for_state(name, "live")
    cluster, login = elsewhere.tenant("shop")
    assert cluster["bootstrap"] == f"127.0.0.1:{elsewhere.port}"  # of both, as behind a load balancer
    assert cluster["tls"]
    (owner,) = elsewhere.plane.get(f"/clusters/{cluster['id']}/accounts")["items"]

    async with elsewhere.client(cluster, login) as client:
        await eventually(lambda: created(client, "orders"))
        await append(client, TopicPartition("orders", 0), [(b"k", b"v")])
        assert await bounds(client, TopicPartition("orders", 0)) == (0, 1)
        # The gateway's credentials do not allow this: the control plane executes it.
        assert await code_of(client, grant(owner["id"])) is None
        described = await acls.describe(client, AclFilter(principal=f"User:{owner['id']}"))
        assert grant(owner["id"]) in described
        removed = await acls.delete(client, [acls.exactly(grant(owner["id"]))])
        assert list(removed.values()) == [[grant(owner["id"])]]

        elsewhere.planes.processes.kill(second.pid)
        impostor, message = elsewhere.start("gw-host-3", port=free_ports(1)[0] - 1)
        assert impostor.wait(WITHIN_SECONDS) != 0
        assert "PEN-4016" in message.read_text()
        elsewhere.wait_for_state("gw-2", "stale")
        renewed = elsewhere.planes.certificate(log.with_name("gateway.pem"))
        expected = renewed.cert_chain_pems[0].bytes().decode().split()
        served = ("127.0.0.1", elsewhere.port)
        wait_for(
            lambda: ssl.get_server_certificate(served).split() == expected, what="the renewed certificate"
        )
        elsewhere.start("gw-host-2", gateway="gw-2")

    # Without a control plane tenants work on, and what needs it can be retried.
    elsewhere.planes.processes.kill(elsewhere.plane.process.pid)
    async with elsewhere.client(cluster, login) as client:
        await append(client, TopicPartition("orders", 0), [(b"k", b"w")])
        assert await code_of_one_attempt(client, grant(owner["id"])) == Code.REQUEST_TIMED_OUT
        port = elsewhere.plane.url.rpartition(":")[2]
        elsewhere.plane = elsewhere.planes.start(settings(elsewhere.planes, listen=f"127.0.0.1:{port}"))
        elsewhere.plane.wait_for_role("active")

        async def granted() -> bool:
            return await code_of(client, grant(owner["id"])) is None

        await eventually(granted)
        assert await bounds(client, TopicPartition("orders", 0)) == (0, 2)
    elsewhere.wait_for_state("gw-2", "live")

    reaches_all_addresses(elsewhere, cluster, login)
    first.terminate()
    assert first.wait(WITHIN_SECONDS) == 0, log.read_text()
    elsewhere.wait_for_state("gw-1", "stopped")


async def test_a_stolen_credential_does_exactly_what_the_security_page_lists(elsewhere: Elsewhere) -> None:
    kafka = elsewhere.planes.kafka
    shop, _ = elsewhere.tenant("stolen-shop")
    (owner,) = elsewhere.plane.get(f"/clusters/{shop['id']}/accounts")["items"]
    stolen = tenants_key(KEY, elsewhere.kafka_id)
    tenant, account = LogicalClusterId(shop["id"]), ServiceAccountId(owner["id"])

    def client(user: str) -> Client:
        login = Login(user, stolen.password(user), Mechanism.SCRAM_SHA_512)
        return Client(kafka.fleet.bootstrap, kafka.security(login))

    # It can: act as every tenant of this cluster.
    async with client(kafka_user(tenant, account)) as one:
        results_or_raise(await topics.create(one, [NewTopic(f"{tenant}_taken", 1, 1)]))
        # It cannot: leave the tenant's prefix, or change rights.
        (refused,) = (await topics.create(one, [NewTopic("other", 1, 1)])).values()
        assert isinstance(refused, PenstockError)
        assert await code_of(one, Acl("User:x", Operation.ALL, ResourceType.TOPIC, "x")) == (
            Code.CLUSTER_AUTHORIZATION_FAILED
        )
        user = users.Credential("x", "password", Mechanism.SCRAM_SHA_512, 4096)
        (unchanged,) = (await users.alter(one, upsert=[user])).values()
        assert isinstance(unchanged, PenstockError)
    # It can: read tenants' states, where secrets are hashes, and write reports and registrations.
    async with client(GATEWAY_USER) as gateway:
        await bounds(gateway, TopicPartition(key_names.STATE_TOPIC, 0))
        assert set(await topics.describe(gateway)) == GATEWAY_TOPICS  # not the registry, nor the audit log
        with pytest.raises(PenstockError, match="AUTHORIZATION"):
            await append(gateway, TopicPartition(key_names.STATE_TOPIC, 0), [(b"k", b"v")], attempts_max=1)
        assert await code_of(gateway, Acl("User:x", Operation.ALL, ResourceType.TOPIC, "x")) == (
            Code.CLUSTER_AUTHORIZATION_FAILED
        )
    # It cannot: log in as the platform.
    with pytest.raises(LoginRefused):
        async with client(PLATFORM_USER) as platform:
            await users.describe(platform)

    token = gateway_token(cluster_id(elsewhere.kafka_id), "gw-1", stolen)
    control_plane_confines_it(elsewhere.plane, token, shop["id"], owner["id"])


def control_plane_confines_it(plane: Plane, token: str, tenant: str, account: str) -> None:
    """With the credential's token: ACLs of tenants of its cluster, and nothing else."""

    def status(method: str, path: str, body: Any = None, *, by: str = token) -> int:
        try:
            plane.call(method, path, body, token=by)
        except HTTPError as refusal:
            return refusal.code
        return 200

    def call(name: str, user: str, *, of: str = tenant, by: str = token, resource: str = "") -> int:
        acl = {"user": user, "resource": "topic", "name": resource or f"{of}_t", "pattern": "literal"}
        acl |= {"operation": "read"}
        return status(
            "POST", "/gateway-calls", {"tenant": of, "call": name, "arguments": {"acls": [acl]}}, by=by
        )

    own = f"{tenant}_{account}"
    assert call("create_acls", own) == 200
    assert call("delete_acls", own) == 200
    assert call("create_acls", own, resource="lkc-000000_t") == 403
    assert call("create_acls", own, resource="*") == 403
    assert call("create_acls", PLATFORM_USER) == 403
    assert call("create_acls", own, of="lkc-000000") == 403
    assert call("unknown", own) == 422
    assert call("create_acls", own, by=token[:-1] + ("A" if token[-1] != "A" else "B")) == 401
    assert call("create_acls", own, by=TOKEN) == 401  # an operator's token is none of a gateway
    assert call("create_acls", own, by=gateway_token("pkc-000000", "gw-1", PlatformKey(b"x" * 32))) == 401
    for path in ("/clusters", "/gateways", "/physical-clusters", "/tokens", "/export", "/status"):
        assert status("GET", path) == 401
    assert status("POST", "/clusters", {"name": "mine", "units": 1}) == 401
    names = {
        "tenant": tenant,
        "call": "broker_configs",
        "arguments": {"broker": 1, "names": ["ssl.keystore.location"]},
    }
    assert status("POST", "/gateway-calls", names) == 403
    parts = {"tenant": tenant, "call": "log_dirs", "arguments": {"broker": 1, "partitions": {"other": [0]}}}
    assert status("POST", "/gateway-calls", parts) == 403


async def test_what_needs_an_operator_ends_a_gateway_at_its_start(
    planes: Planes, secured_kafka: SecuredKafka
) -> None:
    kafka_id, path = secured_kafka.fleet.kafka_id, planes.directory
    planes.authority.cert_pem.write_to_path(path / "other-ca.pem")

    async def start(key: PlatformKey, kafka_id: str, bootstrap: str, ca: Path) -> None:
        GatewayCredentials(cluster_id(kafka_id), kafka_id, key).write(path / "gateway.credentials")
        document = {
            "gateway": "gw-1",
            "kafka": {"bootstrap": bootstrap, "tls": {"ca": str(ca)}},
            "credentials": "gateway.credentials",
        }
        settings, config = parse_gateway(document, beside=path)
        await with_brokers(path / "gateway.yaml", settings, config, print)

    bootstrap, key = secured_kafka.fleet.bootstrap, tenants_key(KEY, kafka_id)
    with pytest.raises(AuthorityUnknown):
        await start(key, kafka_id, bootstrap, path / "other-ca.pem")
    with pytest.raises(CredentialsRefused, match=r"gateway\.yaml"):
        await start(tenants_key(KEY, kafka_id, generation=9), kafka_id, bootstrap, secured_kafka.ca)
    async with Client(bootstrap, secured_kafka.security(secured_kafka.platform())) as admin:
        user = users.Credential(GATEWAY_USER, key.password(GATEWAY_USER), Mechanism.SCRAM_SHA_512, 4096)
        results_or_raise(await users.alter(admin, upsert=[user]))
    with pytest.raises(CredentialsOfOtherCluster, match="another"):
        await start(key, "another", bootstrap, secured_kafka.ca)
    with expired(planes, path / "expired.pem") as address, pytest.raises(CertificateExpired):
        await start(key, kafka_id, address, path / "other-ca.pem")


class expired:  # noqa: N801 - used as a function
    """A TLS server whose certificate has expired."""

    def __init__(self, planes: Planes, path: Path) -> None:
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        leaf = planes.authority.issue_cert("127.0.0.1", not_after=past)
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(path)

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                try:
                    self._context.wrap_socket(client, server_side=True).close()
                except OSError:
                    continue

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
