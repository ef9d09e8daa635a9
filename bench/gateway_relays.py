"""Starts the contenders of `bench.gateway`: a broker, and HAProxy and the gateway in front of it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import gateway_kroxylicious as kroxylicious
from bench.fleets import kill_nodes, start_fleet
from bench.gateway_load import SCRAM, Target
from bench.harness import ROOT
from penstock.fleet.credentials.certificates import load_authority, load_platform_key
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.gateway.config import ServiceAccount, Tenant
from penstock.gateway.tenancy.tenant_provisioning import provision
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.model.api_keys import hashed
from penstock.model.entities import Role
from penstock.model.errors import PenstockError
from penstock.model.ids import LogicalClusterId, ServiceAccountId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.fleet.local_fleet import LocalFleet

TENANT = LogicalClusterId("lkc-bench0")
ACCOUNT = ServiceAccountId("sa-000001")
SHAPE = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"], "heap": 768, "jit": "full"}
CONNECTIONS_MAX = 5_000
START_SECONDS = 30.0


@contextmanager
def contenders(topic_names: list[str]) -> Iterator[dict[str, Target]]:
    """Starts everything; returns by name how to reach the same topics of one broker."""
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    fleet = asyncio.run(_fleet(home, topic_names))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield _targets(fleet, home, processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
        kill_nodes(fleet)
        shutil.rmtree(home, ignore_errors=True)


async def _fleet(home: Path, topic_names: list[str]) -> LocalFleet:
    fleet = await start_fleet(home, SHAPE)
    tenant = Tenant(TENANT, {ACCOUNT: ServiceAccount(ACCOUNT, role=Role.OWNER)})
    bootstrap = fleet.clusters[0].cluster.spec.bootstrap()
    async with Client(bootstrap, security_of(fleet.nodes[0])) as client:
        await provision(client, [tenant], load_platform_key(fleet.layout.secrets))
        new_topics = [
            topics.NewTopic(f"{TENANT}_{name}", partitions=1, replication_factor=1) for name in topic_names
        ]
        for start in range(0, len(new_topics), 200):
            outcomes = await topics.create(client, new_topics[start : start + 200])
            for outcome in outcomes.values():
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
    through = partial(
        Target, host="127.0.0.1", mechanism=SCRAM, user=user, password=password, prefix=f"{TENANT}_"
    )
    targets = {"direct": through("direct", port=port)}
    if shutil.which("haproxy"):
        plain, tls = _haproxy(home, port, certificate, processes)
        pid = processes[-1].pid
        targets["haproxy"] = through("haproxy", port=plain, pid=pid)
        targets["haproxy-tls"] = through("haproxy-tls", port=tls, tls=trust, pid=pid)
    try:
        bootstrap = free_port()
        processes.append(kroxylicious.start(home, TENANT, node.spec.id, port, bootstrap))
        wait_listening(bootstrap)
        pid = processes[-1].pid
        targets["kroxylicious"] = through("kroxylicious", port=bootstrap, prefix="", pid=pid)
    except (kroxylicious.Missing, AssertionError) as missing:
        print(f"bench.gateway: no Kroxylicious: {missing}", file=sys.stderr)
    for name, encrypted in (("ours", False), ("ours-tls", True)):
        key, secret = secrets.token_hex(8), secrets.token_hex(32)
        gateway_port = _gateway(
            fleet, home / name, key, secret, certificate if encrypted else None, processes
        )
        targets[name] = Target(
            name,
            "127.0.0.1",
            gateway_port,
            "PLAIN",
            key,
            secret,
            "",
            trust if encrypted else None,
            processes[-1].pid,
        )
    return targets


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
                        "secret_sha256": hashed(secret),
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
    file.write_text(json.dumps(document))  # JSON is valid YAML
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(file)]
    with (home / "log").open("wb") as log:
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    wait_listening(port)
    return port


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_listening(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as opened:
                if opened.getsockname() != opened.getpeername():  # else connected to itself
                    return
        except OSError:
            pass  # not yet; the deadline below ends the wait
        assert time.monotonic() < deadline, f"nothing listens on {port}"
        time.sleep(0.05)
