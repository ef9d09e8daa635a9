"""The contenders of the gateway's bench: a broker, HAProxy before it, and the gateway before it."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench import gateway_kroxylicious as kroxylicious
from bench.frame import ROOT
from bench.gateway_load import SCRAM, Target
from penstock.fleet.layout import Layout
from penstock.fleet.local import open_fleet
from penstock.fleet.parse import parse_fleet
from penstock.fleet.readiness import security_of, wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.security import load_authority, load_platform_key
from penstock.fleet.spec import Listener
from penstock.gateway.config import ServiceAccount, Tenant
from penstock.gateway.provision import provision
from penstock.kafka import topics
from penstock.kafka.client import Client
from penstock.model.entities import Role
from penstock.model.errors import PenstockError
from penstock.model.ids import LogicalClusterId, ServiceAccountId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.fleet.local import LocalFleet

TENANT = LogicalClusterId("lkc-bench0")
ACCOUNT = ServiceAccountId("sa-000001")
SHAPE = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"], "heap": 768, "jit": "full"}
CONNECTIONS_MAX = 5_000
START_SECONDS = 30.0


@contextmanager
def contenders(topic_names: list[str]) -> Iterator[dict[str, Target]]:
    """Everything up and warm: by name, the way to the same topics of one broker."""
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    fleet = asyncio.run(_fleet(home, topic_names))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield _targets(fleet, home, processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
        for node in fleet.nodes:
            if (identity := node.running()) is not None:
                identity.signal(signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


async def _fleet(home: Path, topic_names: list[str]) -> LocalFleet:
    fleet = open_fleet(parse_fleet({"clusters": [dict(SHAPE)]}), Layout(home), await obtain_runtime())
    await fleet.prepare()
    for node in fleet.nodes:
        await node.start()
    await wait_until_ready(fleet.nodes)
    tenant = Tenant(TENANT, {ACCOUNT: ServiceAccount(ACCOUNT, role=Role.OWNER)})
    bootstrap = fleet.clusters[0].cluster.spec.bootstrap()
    async with Client(bootstrap, security_of(fleet.nodes[0])) as client:
        await provision(client, [tenant], load_platform_key(fleet.layout.secrets))
        wanted = [
            topics.NewTopic(f"{TENANT}_{name}", partitions=1, replication_factor=1) for name in topic_names
        ]
        for begin in range(0, len(wanted), 200):
            made = await topics.create(client, wanted[begin : begin + 200])
            for outcome in made.values():
                if isinstance(outcome, PenstockError):
                    raise outcome
    return fleet


def _targets(fleet: LocalFleet, home: Path, processes: list[subprocess.Popen[bytes]]) -> dict[str, Target]:
    node = fleet.nodes[0]
    port = node.spec.ports[Listener.GATEWAY]
    user = f"{TENANT}_{ACCOUNT}"
    password = load_platform_key(fleet.layout.secrets).password(user)
    authority = load_authority(home / "secrets", now=dt.datetime.now(dt.UTC))
    certificate = home / "relay.pem"
    certificate.write_bytes(authority.issue("relay", ["localhost"], now=dt.datetime.now(dt.UTC)))
    trust = ssl.create_default_context(cafile=str(home / "secrets" / "ca.pem"))
    through = {"mechanism": SCRAM, "user": user, "password": password, "prefix": f"{TENANT}_"}
    found = {"direct": Target("direct", "127.0.0.1", port, **through)}
    if shutil.which("haproxy"):
        plain, tls = _haproxy(home, port, certificate, processes)
        pid = processes[-1].pid
        found["haproxy"] = Target("haproxy", "127.0.0.1", plain, **through, pid=pid)
        found["haproxy-tls"] = Target("haproxy-tls", "127.0.0.1", tls, **through, tls=trust, pid=pid)
    try:
        bootstrap = free_port()
        processes.append(kroxylicious.start(home, TENANT, node.spec.id, port, bootstrap))
        wait_listening(bootstrap)
        peer = {**through, "prefix": ""}
        found["kroxylicious"] = Target("kroxylicious", "127.0.0.1", bootstrap, **peer, pid=processes[-1].pid)
    except (kroxylicious.Missing, AssertionError) as missing:
        print(f"bench.gateway: no Kroxylicious: {missing}", file=sys.stderr)
    for name, crypted in (("ours", False), ("ours-tls", True)):
        key, secret = secrets.token_hex(8), secrets.token_hex(32)
        listens = _gateway(fleet, home / name, key, secret, certificate if crypted else None, processes)
        found[name] = Target(
            name,
            "127.0.0.1",
            listens,
            "PLAIN",
            key,
            secret,
            "",
            trust if crypted else None,
            processes[-1].pid,
        )
    return found


def _haproxy(
    home: Path, port: int, certificate: Path, processes: list[subprocess.Popen[bytes]]
) -> tuple[int, int]:
    plain, tls = free_port(), free_port()
    pem = home / "haproxy.pem"
    pem.write_bytes(certificate.read_bytes())
    config = home / "haproxy.cfg"
    limits = "timeout connect 5s\n  timeout client 1m\n  timeout server 1m"
    config.write_text(
        f"global\n  nbthread 1\n  maxconn {CONNECTIONS_MAX}\n"
        f"defaults\n  mode tcp\n  {limits}\n"
        f"frontend plain\n  bind 127.0.0.1:{plain} backlog 4096\n  default_backend kafka\n"
        f"frontend tls\n  bind 127.0.0.1:{tls} ssl crt {pem} backlog 4096\n  default_backend kafka\n"
        f"backend kafka\n  server b1 127.0.0.1:{port}\n"
    )
    processes.append(subprocess.Popen(["haproxy", "-db", "-f", str(config)], stderr=subprocess.DEVNULL))
    wait_listening(plain)
    wait_listening(tls)
    return plain, tls


def _gateway(
    fleet: LocalFleet,
    home: Path,
    key: str,
    secret: str,
    certificate: Path | None,
    processes: list[subprocess.Popen[bytes]],
) -> int:
    home.mkdir()
    port = free_port()
    node = fleet.nodes[0]
    address = f"127.0.0.1:{node.spec.ports[Listener.GATEWAY]}"
    document = {
        "gateway": home.name,
        "cluster": "pkc-000000",
        "platform_key": str(fleet.layout.secrets / "platform.key"),
        "metrics_port": 0,
        "brokers": [
            {
                "id": node.spec.id,
                "zone": "a",
                "address": address,
                "port": port,
            }
        ],
        "tenants": [
            {
                "id": TENANT,
                "accounts": [{"id": ACCOUNT}],
                "keys": [
                    {
                        "id": key,
                        "secret_sha256": hashlib.sha256(secret.encode()).hexdigest(),
                        "account": ACCOUNT,
                    }
                ],
                "limits": {
                    "connections_max": CONNECTIONS_MAX,
                    "connection_attempts_per_second": CONNECTIONS_MAX,
                },
            }
        ],
    }
    if certificate is not None:
        document["tls"] = {"certificate": str(certificate)}
    file = home / "gateway.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML, too
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(file)]
    with (home / "log").open("wb") as log:
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    wait_listening(port)
    return port


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_listening(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as opened:
                if opened.getsockname() != opened.getpeername():  # a free port may be connected to itself
                    return
        except OSError:
            pass  # not yet: the deadline below says when that is too late
        assert time.monotonic() < deadline, f"nothing listens on {port}"
        time.sleep(0.05)
