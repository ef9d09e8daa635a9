"""Control planes from a file alone, on a Kafka cluster that was there before: TLS, takeover, failures."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
import trustme
import yaml

from penstock.control.physical.configured import cluster_id, provide, require_same
from penstock.control.physical.gateway_files import free_ports
from penstock.control.registry import Put, Registry
from penstock.control.settings import ConfiguredCluster, cluster_key
from penstock.fleet.passwords import PLATFORM_USER, PlatformKey
from penstock.kafka.admin import users
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.users import Credential
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import ClusterReplaced, ClusterTwice, RightsMissing
from tests.harness.command import Penstock, clean_environment
from tests.harness.fleet import TINY, Fleet, wait_for
from tests.harness.secured_kafka import CLIENT, CLIENT_SECRET, SecuredKafka

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.processes import Processes

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

TOKEN = "root-token-of-this-test"
KEY = PlatformKey(b"k" * 32)


@dataclass
class Plane:
    process: subprocess.Popen[Any]
    log: Path
    trusted: ssl.SSLContext

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def url(self) -> str:
        wait_for(lambda: "control plane at" in self.text or self.ended, what="the control plane to listen")
        match = re.search(r"control plane at (https://\S+)", self.text)
        assert match, self.text
        return match[1]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def get(self, path: str) -> dict[str, Any]:
        request = Request(f"{self.url}/v1{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=10, context=self.trusted) as response:
            return dict(json.load(response))

    def status(self) -> dict[str, Any]:
        try:
            return self.get("/status")
        except OSError:
            return {"role": "away"}

    def wait_for_role(self, role: str) -> None:
        wait_for(lambda: self.status()["role"] == role or self.ended, what=f"role {role}")
        assert not self.ended, self.text


@dataclass
class Planes:
    """Starts control planes from files, as on different hosts: they share nothing but Kafka."""

    kafka: SecuredKafka
    processes: Processes
    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    started: list[Plane] = field(default_factory=list)

    def certificate(self, path: Path) -> trustme.LeafCert:
        leaf = self.authority.issue_cert("127.0.0.1")
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        return leaf

    def settings(self, **changes: Any) -> dict[str, Any]:
        login = {"mechanism": "OAUTHBEARER", "token_url": self.kafka.tokens.url, "client_id": CLIENT}
        home = {
            "bootstrap": self.kafka.fleet.bootstrap,
            "tls": {"ca": str(self.kafka.ca)},
            "login": login | {"client_secret_file": "secret"},
        }
        return {
            "home": home,
            "platform_key": "platform.key",
            "token_file": "token",
            "listen": "127.0.0.1:0",
            "tls": {"certificate": "control.pem"},
            "session_seconds": 1.5,
        } | changes

    def host(self, document: dict[str, Any], *, key: bytes = KEY.secret) -> Path:
        """The files of one host."""
        host = self.directory / f"host-{len(self.started)}"
        host.mkdir()
        (host / "secret").write_text(CLIENT_SECRET)
        (host / "token").write_text(TOKEN)
        (host / "platform.key").write_bytes(key)
        self.certificate(host / "control.pem")
        (host / "control.yaml").write_text(yaml.safe_dump(document))
        return host

    def start(self, document: dict[str, Any], *, key: bytes = KEY.secret) -> Plane:
        host = self.host(document, key=key)
        with (host / "log").open("wb") as log:
            process = self.processes.start(
                [sys.executable, "-m", "penstock", "control", "run", "--config", str(host / "control.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment({}),
                cwd=host,
            )
        trusted = ssl.create_default_context()
        self.authority.configure_trust(trusted)
        self.started.append(Plane(process, host / "log", trusted))
        return self.started[-1]


@pytest.fixture
def planes(secured_kafka: SecuredKafka, processes: Processes, tmp_path: Path) -> Planes:
    return Planes(secured_kafka, processes, tmp_path)


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


def test_the_key_of_one_cluster_is_written_for_its_gateways(planes: Planes) -> None:
    host = planes.host(planes.settings())
    key = host / "gateway.key"

    penstock = Penstock(host / "home", host)
    written = penstock(
        "control", "cluster-key", "home", "--config", str(host / "control.yaml"), "--to", str(key)
    )

    assert written.code == 0, written.err
    assert key.read_bytes() == cluster_key(KEY, planes.kafka.fleet.kafka_id).secret
    assert key.stat().st_mode & 0o077 == 0


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
