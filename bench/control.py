"""How fast the control plane creates tenants, and what many tenants cost.

A real control plane and a real gateway run as processes in front of one small Kafka. Creation is timed
from the first HTTP call to the first acknowledged record through the gateway, including topic and key; once
more with both processes from files alone, on a cluster that they know by address and login.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from bench.harness import Result, Run, main
from penstock.control.physical.addresses import root_token
from penstock.control.physical.configured import cluster_id
from penstock.control.physical.gateway_files import free_ports
from penstock.control.physical.local import write_gateway_file
from penstock.fleet.credentials.gateway_credentials import GatewayCredentials, tenants_key
from penstock.fleet.credentials.passwords import PLATFORM_USER, PlatformKey
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, open_fleet, save_fleet_document
from penstock.fleet.readiness import wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import stop_nodes
from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import wait_for_leaders
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import LoginRefused
from penstock.platform.control_client import ControlClient

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE: dict[str, Any] = {"combined": True, "brokers": 1, "zones": ["a"], "port": 0}
FIRST_RECORDS, FIRST_RECORDS_QUICK = 100, 8
CLUSTERS, CLUSTERS_QUICK = 2_000, 100
CALLERS = 16
PAGES = 30
READY_SECONDS_MAX = 60.0
# Each key costs a few refused logins, and a gateway blocks an address after twenty in ten seconds.
KEY_SECONDS_BETWEEN = 2.0


def measure(run: Run) -> Iterator[Result]:
    for part in (_measure_all, _measure_adopted):
        home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        try:
            fleet = asyncio.run(_start_fleet(home))
            try:
                yield from part(run, fleet, home)
            finally:
                asyncio.run(stop_nodes(fleet.nodes))
        finally:
            shutil.rmtree(home)


def _measure_all(run: Run, fleet: LocalFleet, home: Path) -> Iterator[Result]:
    layout = Layout(home)
    (port,) = free_ports(1)
    config = write_gateway_file(layout, fleet.clusters[0], free_ports(1), fleet.access.ca)
    url = f"http://127.0.0.1:{port}"
    words = ["control", "run", "--home", str(home), "--listen", f"127.0.0.1:{port}"]
    gateway = ["gateway", "run", "--config", str(config)]
    with _process(words, home / "control.log") as plane:
        control = ControlClient(url, root_token(layout))
        _wait_until(lambda: control.get("/status")["role"] == "active")
        with _process(gateway, home / "gateway.log") as served:
            _wait_until(lambda: "serves" in (home / "gateway.log").read_text())
            empty_mb = psutil.Process(served.pid).memory_info().rss / 1e6
            yield from _first_records(run, control)
            yield from _keys(run, control)
        yield from _many(run, control, plane.pid, gateway, empty_mb)


def _measure_adopted(run: Run, fleet: LocalFleet, home: Path) -> Iterator[Result]:
    """Control plane and gateway from files alone, on a cluster of which they know address and login."""
    cluster = fleet.clusters[0].cluster
    bootstrap = cluster.spec.bootstrap()
    control_port, gateway_port = free_ports(2)
    url = f"http://127.0.0.1:{control_port}"
    key = PlatformKey(secrets.token_bytes(32))
    (home / "platform.key").write_bytes(key.secret)
    (home / "token").write_text(secrets.token_hex(16))
    (home / "password").write_text(fleet.access.credentials.platform)
    login = {"user": PLATFORM_USER, "password_file": "password"}
    control_file = {
        "home": {"bootstrap": bootstrap, "login": login},
        "platform_key": "platform.key",
        "token_file": "token",
        "listen": f"127.0.0.1:{control_port}",
    }
    (home / "control.yaml").write_text(yaml.safe_dump(control_file))
    credentials = GatewayCredentials(
        cluster_id(cluster.kafka_id), cluster.kafka_id, tenants_key(key, cluster.kafka_id)
    )
    credentials.write(home / "gateway.credentials")
    gateway_file = {
        "gateway": "gw-1",
        "kafka": {"bootstrap": bootstrap},
        "credentials": "gateway.credentials",
        "control": {"urls": [url]},
        "port": gateway_port - 1,  # the only broker has id 1
    }
    (home / "gateway.yaml").write_text(yaml.safe_dump(gateway_file))
    with _process(["control", "run", "--config", str(home / "control.yaml")], home / "control.log"):
        control = ControlClient(url, (home / "token").read_text())
        _wait_until(lambda: control.get("/status")["role"] == "active")
        gateway = ["gateway", "run", "--config", str(home / "gateway.yaml")]
        with _process(gateway, home / "gateway.log"):
            _wait_until(lambda: "serves" in (home / "gateway.log").read_text())
            yield from _first_records(run, control, "adopted-")


def _first_records(run: Run, control: ControlClient, home: str = "") -> Iterator[Result]:
    """From the first call to the first acknowledged record."""
    count = FIRST_RECORDS_QUICK if run.quick else FIRST_RECORDS
    run.log(f"{count} times from creation to a first record")
    waits = [asyncio.run(_create_and_produce(control, f"first-{number}")) for number in range(count)]
    yield Result.of_runs(
        f"{home}create-to-first-record-p99",
        [_percentile(waits, 0.99)],
        unit="s",
        goal="< 2",
        detail={"p50": round(statistics.median(waits), 3), "times": count},
    )


async def _create_and_produce(control: ControlClient, name: str) -> float:
    start = time.perf_counter()
    created = await asyncio.to_thread(control.change, "POST", "/clusters", {"name": name})
    await asyncio.to_thread(control.wait, created["operation"])
    key = await asyncio.to_thread(control.change, "POST", f"/clusters/{name}/keys", {})
    await asyncio.to_thread(control.wait, key["operation"])
    bootstrap = created["cluster"]["bootstrap"]
    security = Security(Login(key["key"]["id"], key["secret"], Mechanism.PLAIN))
    while True:
        try:
            async with Client(bootstrap, security) as client:
                await topics.create(client, [topics.NewTopic("orders", 1, 1)])
                await append(client, (await wait_for_leaders(client, "orders"))[0], [(None, b"first")])
                return time.perf_counter() - start
        except LoginRefused:  # the gateway has not read the key yet
            await asyncio.sleep(0.01)


def _keys(run: Run, control: ControlClient) -> Iterator[Result]:
    """Time until the gateway accepts a new key, and until it refuses a revoked one."""
    count = FIRST_RECORDS_QUICK if run.quick else FIRST_RECORDS // 4
    run.log(f"{count} keys created and revoked")
    waits: dict[str, list[float]] = {"created": [], "revoked": []}
    for _ in range(count):
        created = control.change("POST", "/clusters/first-0/keys", {})
        login = created["key"]["id"], created["secret"]
        bootstrap = control.get("/clusters/first-0")["bootstrap"]
        waits["created"].append(_seconds_until_login(bootstrap, login, valid=True))
        control.change("DELETE", f"/keys/{login[0]}")
        waits["revoked"].append(_seconds_until_login(bootstrap, login, valid=False))
        time.sleep(KEY_SECONDS_BETWEEN)
    for what, seen in waits.items():
        yield Result.of_runs(f"key-{what}-to-gateway-max", [max(seen)], unit="s", goal="< 2")


def _seconds_until_login(bootstrap: str, login: tuple[str, str], *, valid: bool) -> float:
    async def accepted() -> bool:
        try:
            async with Client(bootstrap, Security(Login(*login, Mechanism.PLAIN))) as client:
                await client.call("Metadata", {"Topics": []}, retry=False)
        except LoginRefused:
            return False
        return True

    start = time.perf_counter()
    _wait_until(lambda: asyncio.run(accepted()) is valid)
    return time.perf_counter() - start


def _many(
    run: Run, control: ControlClient, pid: int, gateway: list[str], empty_mb: float
) -> Iterator[Result]:
    """Creates half of the clusters, measures listing and a gateway restart, then creates the rest."""
    count = CLUSTERS_QUICK if run.quick else CLUSTERS
    before_mb = psutil.Process(pid).memory_info().rss / 1e6
    seconds = _create_clusters(run, control, range(count // 2))
    yield from _pages(control)
    yield from _restart(run, gateway, Path(gateway[-1]).with_name("again.log"), empty_mb, control)
    seconds += _create_clusters(run, control, range(count // 2, count))
    each_kb = (psutil.Process(pid).memory_info().rss / 1e6 - before_mb) / count * 1000
    yield Result.of_runs(
        "clusters-created",
        [count / seconds],
        unit="clusters/s until ready",
        detail={"clusters": count, "callers": CALLERS},
    )
    yield Result.of_runs("control-memory-per-cluster", [each_kb], unit="KB")


def _create_clusters(run: Run, control: ControlClient, numbers: range) -> float:
    run.log(f"{len(numbers)} clusters through the API")

    def create(number: int) -> None:
        ControlClient(control.url, control.token).change("POST", "/clusters", {"name": f"many-{number}"})

    start = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(create, numbers))
    _wait_until(lambda: not control.get("/operations", state="running", limit="1")["items"], seconds=900)
    return time.perf_counter() - start


def _pages(control: ControlClient) -> Iterator[Result]:
    waits = []
    for _ in range(PAGES):
        start = time.perf_counter()
        control.get("/clusters", limit="100")
        waits.append(time.perf_counter() - start)
    detail = {
        "clusters": control.get("/status")["clusters"],
        "page": 100,
        "p50_ms": round(statistics.median(waits) * 1000, 2),
    }
    p99_ms = _percentile(waits, 0.99) * 1000
    yield Result.of_runs("list-page-p99", [p99_ms], unit="ms", goal="< 100", detail=detail)


def _restart(
    run: Run, words: list[str], log: Path, empty_mb: float, control: ControlClient
) -> Iterator[Result]:
    """Starts a gateway with all these tenants."""
    tenants = control.get("/status")["clusters"]
    run.log(f"starting a gateway with {tenants} tenants")
    start = time.perf_counter()
    with _process(words, log) as served:
        _wait_until(lambda: "serves" in log.read_text())
        seconds = time.perf_counter() - start
        each_kb = (psutil.Process(served.pid).memory_info().rss / 1e6 - empty_mb) / tenants * 1000
    yield Result.of_runs(
        "gateway-serves-after",
        [seconds],
        unit="s, process start included",
        goal="< 3",
        detail={"tenants": tenants},
    )
    yield Result.of_runs("gateway-memory-per-tenant", [each_kb], unit="KB")


async def _start_fleet(home: Path) -> LocalFleet:
    document = {"clusters": [SHAPE]}
    fleet = open_fleet(parse_fleet(document), Layout(home), await obtain_runtime())
    save_fleet_document(Layout(home), document)
    await fleet.prepare()
    for node in fleet.nodes:
        await node.start()
    await wait_until_ready(fleet.nodes)
    return fleet


@contextmanager
def _process(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield child
    finally:
        child.terminate()
        child.wait(30)


def _wait_until(condition: Any, *, seconds: float = READY_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except PenstockError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def _percentile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * fraction))]


if __name__ == "__main__":
    sys.exit(main("control", measure))
