"""From nothing to tenants on clusters that existed before, every process on its own host.

Two Kafka clusters that others run are adopted. Two control planes and two gateways for each cluster run from
files, in namespaces that only a bridge joins. Tenants work from another namespace. Every process is killed in
turn, links are cut, and the whole home cluster fails: clients see retriable errors only, nothing acknowledged
is lost, and what others have on the clusters stays as it was.
"""

from __future__ import annotations

import json
import secrets
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.anywhere.deployment import Access, Deployment
from tests.anywhere.namespaces import Network, can_make_namespaces
from tests.anywhere.stock_kafka import StockCluster
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.harness.command import CommandResult

pytestmark = [
    pytest.mark.soak,
    pytest.mark.kafka,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and `ip netns`"),
]

PROGRESS_RECORDS = 20
RECOVERY_SECONDS_MAX = 240.0
TOPIC = "orders"


@dataclass
class TenantLoad:
    """A tenant's producer on the clients' host."""

    access: Access
    where: str
    process: subprocess.Popen[Any]
    acknowledged: Path
    errors: Path

    def count(self) -> int:
        return len(self.acknowledged.read_text().splitlines()) if self.acknowledged.exists() else 0

    def problems(self) -> str:
        return self.errors.read_text() if self.errors.exists() else ""


@dataclass
class Scenario:
    deployment: Deployment
    loads: list[TenantLoad]

    def start_load(self, access: Access, where: str, profile: str) -> None:
        made = self.deployment.penstock("topic", "create", TOPIC, "--partitions", "3", "--profile", profile)
        assert made.code == 0, made.err
        files = [self.deployment.directory / f"{access.tenant}.{kind}" for kind in ("acknowledged", "errors")]
        process = self.deployment.start_program("producer", access, TOPIC, *map(str, files))
        self.loads.append(TenantLoad(access, where, process, *files))

    def survives(self, what: str, disturb: Callable[[], None], repair: Callable[[], None]) -> None:
        """Every tenant makes progress without it, and after the repair."""
        disturb()
        self.progress(f"without {what}")
        repair()
        self.progress(f"after {what} is back")

    def progress(self, when: str, loads: Sequence[TenantLoad] = ()) -> None:
        """Of these tenants, or of all."""
        loads = loads or self.loads
        before = {load.access.tenant: load.count() for load in loads}
        for load in loads:

            def progressed(load: TenantLoad = load) -> bool:
                return load.count() >= before[load.access.tenant] + PROGRESS_RECORDS

            wait_for(progressed, what=f"progress {when}", seconds=RECOVERY_SECONDS_MAX)
            assert load.problems() == "", (when, load.problems())

    def finish(self) -> None:
        """Ends the producers; every acknowledged record can be read."""
        for load in self.loads:
            load.process.send_signal(signal.SIGTERM)
        for load in self.loads:
            load.process.wait(RECOVERY_SECONDS_MAX)
            acknowledged = load.acknowledged.read_text().split()
            read = self.deployment.run_program("reader", load.access, TOPIC, "3")
            assert set(acknowledged) <= read.keys()
            assert max(read[number] for number in acknowledged) == 1, "idempotent producers write once"
            assert load.problems() == ""


def tenant_profile(deployment: Deployment, access: Access) -> str:
    """A profile for the tenant, from a bootstrap address and a key."""
    secret = deployment.directory / f"{access.tenant}.secret"
    secret.write_text(access.secret)
    made = deployment.penstock(
        "profile", "create", access.tenant, "--no-use", "--bootstrap", access.bootstrap, "--key", access.key,
        "--secret-file", str(secret), "--tls", "--ca", access.ca,
    )  # fmt: skip
    assert made.code == 0, made.err
    return access.tenant


def test_tenants_on_clusters_of_others_survive_the_loss_of_every_process(tmp_path: Path) -> None:
    with Network(secrets.token_hex(2)) as network:
        clusters = {}
        for name in ("east", "west"):
            directory = tmp_path / name
            directory.mkdir()
            clusters[name] = StockCluster(network.host(name), directory)
            clusters[name].start()
            clusters[name].add_platform_user()
            clusters[name].add_neighbours()
        before = {name: cluster.snapshot() for name, cluster in clusters.items()}
        deployment = Deployment(network, tmp_path, clusters)
        for number in (1, 2):
            deployment.start_control(number)
        deployment.wait_until_active()
        deployment.create_profile()
        wait_for_clusters(deployment, clusters)  # before, a cluster refuses the credentials of its gateways
        for name in clusters:
            for number in (1, 2):
                deployment.start_gateway(name, number)
        scenario = Scenario(deployment, [])

        for tenant, where in (("alpha", "east"), ("beta", "east"), ("gamma", "west")):
            access = deployment.create_tenant(tenant, where, "--adopted", where)
            profile = tenant_profile(deployment, access)
            scenario.start_load(access, where, profile)
            seen = deployment.penstock("topic", "list", "--profile", profile, "-o", "json")
            assert [topic["name"] for topic in seen.data] == [TOPIC]
            groups = deployment.penstock("group", "list", "--profile", profile, "-o", "json")
            assert groups.data == []
            java_and_the_command_line_work(deployment, profile)

        for name, component in deployment.components.items():
            scenario.survives(name, component.kill, component.start)
        for name, cluster in clusters.items():
            for number in range(1, cluster.nodes + 1):
                kill, start = partial(cluster.kill_node, number), partial(cluster.start_node, number)
                scenario.survives(f"broker {number} of {name}", kill, start)
                cluster.wait()
        gateway = deployment.components["gateway-east-1"].host
        scenario.survives("the link of a gateway", gateway.cut, gateway.heal)
        control = deployment.components["control-1"].host
        scenario.survives("the link of a control plane", control.cut, control.heal)
        home, numbers = clusters["east"], range(1, clusters["east"].nodes + 1)
        for number in numbers:
            home.kill_node(number)
        scenario.progress("without the home cluster", [one for one in scenario.loads if one.where == "west"])
        for number in numbers:
            home.start_node(number)
        home.wait()
        scenario.progress("after the home cluster is back")
        scenario.finish()

        deployment.wait_until_active()
        wait_for(
            lambda: deployment.penstock("control", "check").code == 0,
            what="Kafka to be in the declared state",
            seconds=RECOVERY_SECONDS_MAX,
        )
        assert {name: cluster.snapshot() for name, cluster in clusters.items()} == before


def java_and_the_command_line_work(deployment: Deployment, profile: str) -> None:
    """With the settings of `cluster connect`; over TLS and SNI, as all clients here."""
    file = deployment.directory / f"{profile}.properties"
    connected = deployment.penstock(
        "cluster", "connect", "--client", "java", "--to", str(file), "--profile", profile
    )
    assert connected.code == 0, connected.err
    values = ", ".join(f"v{number}" for number in range(10))
    assert deployment.run_java("RoundTrip", str(file), "java").strip() == f"[java, {TOPIC}] [{values}]"

    def command(*words: str) -> CommandResult:
        done = deployment.penstock(*words, "--profile", profile)
        assert done.code == 0, done.err
        return done

    command("topic", "create", "notes", "--partitions", "1")
    command("produce", "notes", "one", "two")
    rows = command("consume", "notes", "-b", "--no-follow", "-o", "jsonl").out.splitlines()
    assert [json.loads(row)["value"] for row in rows] == ["one", "two"]
    command("topic", "delete", "notes", "--yes")


def wait_for_clusters(deployment: Deployment, names: dict[str, StockCluster]) -> None:
    def listed() -> bool:
        result = deployment.penstock("physical", "list", "-o", "json")
        return result.code == 0 and {one["name"] for one in json.loads(result.out)} >= names.keys()

    wait_for(listed, what="every cluster to be known", seconds=RECOVERY_SECONDS_MAX)
