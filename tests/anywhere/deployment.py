"""The platform in front of clusters that others run: every process on a separate host, from files alone.

`Deployment.start_gateway` is the only place that knows how a gateway's file looks.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from penstock.control.physical.configured import cluster_id
from penstock.fleet.credentials.certificates import load_authority
from penstock.fleet.credentials.gateway_credentials import GatewayCredentials, tenants_key
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.runtime import obtain_runtime
from tests.anywhere.stock_kafka import PLATFORM
from tests.harness.command import ROOT, CommandResult
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from tests.anywhere.namespaces import Host, Network
    from tests.anywhere.stock_kafka import StockCluster

KEY = PlatformKey(b"k" * 32)
TOKEN = "root-token-of-this-test"
CONTROL_PORT = 28080
GATEWAY_PORT = 9092
SESSION_SECONDS = 4.0
START_SECONDS_MAX = 240.0
# In a separate process: urllib leaves the socket of a failed request open.
_GET = """
import ssl, sys, urllib.request
url, token, ca = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
context = ssl.create_default_context(cafile=ca)
print(urllib.request.urlopen(request, timeout=5, context=context).read().decode())
"""


@dataclass
class Component:
    """A process of the platform that can be killed and started again."""

    name: str
    host: Host
    command: Sequence[str]
    directory: Path
    process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        self.process = self.host.start(self.command, log=self.directory / "log", cwd=self.directory)

    def kill(self) -> None:
        assert self.process is not None
        psutil.Process(self.process.pid).send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()


@dataclass
class Access:
    """How a tenant's clients connect."""

    tenant: str
    bootstrap: str
    key: str
    secret: str
    ca: str

    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.key,
            "sasl.password": self.secret,
            "ssl.ca.location": self.ca,
        }


@dataclass
class Deployment:
    network: Network
    directory: Path
    clusters: dict[str, StockCluster]  # the first is the home
    components: dict[str, Component] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # changes to control.yaml

    def __post_init__(self) -> None:
        self.client = self.network.host("client")
        self.authority = load_authority(self.directory / "ca", now=dt.datetime.now(dt.UTC))
        self.ca = self.directory / "ca" / "ca.pem"

    # Files and processes

    def control_file(self, directory: Path, host: Host) -> Path:
        """Everything that a control plane's host needs."""
        directory.mkdir(exist_ok=True)
        clusters = [self._cluster(name, cluster) for name, cluster in self.clusters.items()]
        document = {
            "home": clusters[0],
            "clusters": clusters[1:],
            "platform_key": "platform.key",
            "token_file": "token",
            "listen": f"{host.address}:{CONTROL_PORT}",
            "tls": {"certificate": "control.pem"},
            "session_seconds": SESSION_SECONDS,
        } | self.settings
        (directory / "kafka.password").write_text(PLATFORM.password)
        (directory / "token").write_text(TOKEN)
        (directory / "platform.key").write_bytes(KEY.secret)
        (directory / "control.pem").write_bytes(self._certificate(host.address))
        path = directory / "control.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def _cluster(self, name: str, cluster: StockCluster) -> dict[str, Any]:
        return {
            "name": name,
            "bootstrap": cluster.bootstrap,
            "tls": {"ca": str(cluster.ca)},
            "login": {"user": PLATFORM.user, "password_file": "kafka.password"},
            "gateways": f"gateways.{name}.test:{GATEWAY_PORT}",
        }

    def _certificate(self, *names: str) -> bytes:
        return self.authority.issue(names[0], names, now=dt.datetime.now(dt.UTC))

    def start_control(self, number: int) -> Component:
        name = f"control-{number}"
        host = self.network.host(name)
        path = self.control_file(self.directory / name, host)
        return self._start(name, host, "control", "run", "--config", str(path))

    def start_gateway(
        self, cluster: str, number: int, *, host: Host | None = None, serving: dict[str, Any] | None = None
    ) -> Component:
        """`serving` replaces how it listens: by SNI, with TLS."""
        name = f"gateway-{cluster}-{number}"
        host = host or self.network.host(name)
        directory = self.directory / name
        directory.mkdir()
        kafka = self.clusters[cluster]
        key = tenants_key(KEY, kafka.kafka_id)
        credentials = GatewayCredentials(cluster_id(kafka.kafka_id), kafka.kafka_id, key)
        credentials.write(directory / "gateway.credentials")
        (directory / "gateway.pem").write_bytes(self._certificate(f"*.{cluster}.test"))
        document = {
            "gateway": name,
            "kafka": {"bootstrap": kafka.bootstrap, "tls": {"ca": str(kafka.ca)}},
            "credentials": "gateway.credentials",
            "control": {
                "urls": [f"https://{one.host.address}:{CONTROL_PORT}" for one in self.controls()],
                "ca": str(self.ca),
            },
        }
        document |= serving or {
            "listen": host.address,
            "routing": "sni",
            "domain": f"{cluster}.test",
            "port": GATEWAY_PORT,
            "tls": {"certificate": "gateway.pem"},
        }
        path = directory / "gateway.yaml"
        path.write_text(yaml.safe_dump(document))
        return self._start(name, host, "gateway", "run", "--config", str(path))

    def _start(self, name: str, host: Host, *words: str) -> Component:
        command = [sys.executable, "-m", "penstock", *words]
        component = Component(name, host, command, self.directory / name)
        self.components[name] = component
        component.start()
        return component

    # The control plane as seen from the clients' host

    def controls(self) -> list[Component]:
        return [one for name, one in self.components.items() if name.startswith("control-")]

    def status(self, control: Component) -> dict[str, Any]:
        """As its HTTP API reports it; the role is `away` if it does not respond."""
        url = f"https://{control.host.address}:{CONTROL_PORT}/v1/status"
        done = self.client.run([sys.executable, "-c", _GET, url, TOKEN, str(self.ca)])
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {"role": "away"}

    def wait_until_active(self) -> None:
        def active() -> bool:
            return any(self.status(control)["role"] == "active" for control in self.controls())

        wait_for(active, what="an active control plane", seconds=START_SECONDS_MAX)

    def create_profile(self) -> None:
        token = self.directory / "operator.token"
        token.write_text(TOKEN)
        urls = ",".join(f"https://{one.host.address}:{CONTROL_PORT}" for one in self.controls())
        created = self.penstock(
            "profile", "create", "ops", "--url", urls, "--token-file", str(token), "--ca", str(self.ca)
        )
        assert created.code == 0, created.err

    def penstock(self, *words: str) -> CommandResult:
        """A command on the clients' host, with profiles of this deployment."""
        environment = {"XDG_CONFIG_HOME": str(self.directory / "config")}
        done = self.client.run(
            [sys.executable, "-m", "penstock", *words], environment=environment, cwd=self.directory
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    # Tenants

    def create_tenant(self, name: str, cluster: str, *words: str) -> Access:
        """A logical cluster and a key, by the CLI; its names resolve to all gateways of the cluster."""
        created = self.penstock("cluster", "create", name, "--no-key", *words, "-o", "json")
        assert created.code == 0, created.err
        tenant = created.data["id"]
        key = self.penstock("key", "create", "--cluster", name, "-o", "json")
        assert key.code == 0, key.err
        addresses = [
            one.host.address for at, one in self.components.items() if at.startswith(f"gateway-{cluster}-")
        ]
        kafka = self.clusters[cluster]
        labels = [tenant, *(f"b{broker}-{tenant}" for broker in range(1, kafka.nodes + 1))]
        self.network.resolve({f"{label}.{cluster}.test": addresses for label in labels})
        data = key.data
        return Access(
            tenant,
            f"{tenant}.{cluster}.test:{GATEWAY_PORT}",
            data.get("key", data.get("id")),
            data["secret"],
            str(self.ca),
        )

    def start_program(self, program: str, access: Access, *words: str) -> subprocess.Popen[Any]:
        """A program of `tests.anywhere` on the clients' host, with the tenant's settings."""
        log = self.directory / f"{program}-{access.tenant}.log"
        return self.client.start(self._program(program, access, *words), log=log, cwd=ROOT)

    def run_program(self, program: str, access: Access, *words: str) -> Any:
        """Runs a program to its end; it prints JSON."""
        done = self.client.run(self._program(program, access, *words), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run_java(self, program: str, *words: str) -> str:
        """Runs a Java program of `tests.anywhere` on the clients' host; what it printed."""
        runtime = asyncio.run(obtain_runtime())
        source = Path(__file__).with_name(f"{program}.java")
        done = self.client.run(
            [str(runtime.java.executable), "-cp", runtime.jars.classpath, str(source), *words],
            cwd=self.directory,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _program(self, program: str, access: Access, *words: str) -> list[str]:
        path = self.directory / f"{access.tenant}.json"
        path.write_text(json.dumps(access.librdkafka()))
        return [sys.executable, "-m", f"tests.anywhere.{program}", str(path), *words]
