"""What a stolen tenants' key does on real clusters, and how to replace it: `docs/security.md`, tried."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from penstock.control.physical.configured import cluster_id
from penstock.fleet.credentials.gateway_credentials import tenants_key
from penstock.gateway.process.tenant_source import GATEWAY_USER
from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.security import Login, Mechanism
from penstock.model import key_names
from penstock.model.errors.wire import LoginRefused
from penstock.model.events import GatewayHeartbeat
from tests.anywhere.deployment import KEY, Deployment
from tests.anywhere.namespaces import Network, can_make_namespaces
from tests.anywhere.stock_kafka import StockCluster
from tests.anywhere.test_namespaces import tenant_profile, wait_for_clusters
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kafka.client import Client

pytestmark = [
    pytest.mark.soak,
    pytest.mark.kafka,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and `ip netns`"),
]

WITHIN_SECONDS = 120.0
TOPIC = "orders"


async def topics_of(client: Client) -> set[str]:
    return {*await topics.describe(client)}


def test_a_stolen_key_is_confined_to_its_cluster_and_of_no_use_once_replaced(tmp_path: Path) -> None:
    with Network(secrets.token_hex(2)) as network:
        clusters = {}
        for name in ("east", "west"):
            (tmp_path / name).mkdir()
            clusters[name] = StockCluster(network.host(name), tmp_path / name, nodes=1)
            clusters[name].start()
            clusters[name].add_platform_user()
        deployment = Deployment(network, tmp_path, clusters)
        control = deployment.start_control(1)
        deployment.wait_until_active()
        deployment.create_profile()
        wait_for_clusters(deployment, clusters)
        gateway = deployment.start_gateway("east", 1)
        shop = deployment.create_tenant("shop", "east", "--adopted", "east")
        profile = tenant_profile(deployment, shop)
        created = deployment.penstock("topic", "create", TOPIC, "--partitions", "1", "--profile", profile)
        assert created.code == 0, created.err

        thief = Thief(clusters["east"])
        with pytest.raises(LoginRefused):
            clusters["west"].call(topics_of, thief.login(GATEWAY_USER))
        account = deployment.penstock("account", "list", "--cluster", "shop", "-o", "json").data[0]["id"]
        user = f"{shop.tenant}_{account}"
        assert clusters["east"].call(topics_of, thief.login(user)) == {f"{shop.tenant}_{TOPIC}"}

        thief.writes_what_no_gateway_writes(clusters["west"].kafka_id)
        wait_for(lambda: "thief" in states(deployment), what="the false gateway", seconds=WITHIN_SECONDS)
        listed = states(deployment)
        assert listed.keys() == {"gateway-east-1", "thief"}  # and none in the name of another cluster
        assert listed["gateway-east-1"] == "live"
        shown = deployment.penstock("cluster", "show", "shop", "-o", "json").data
        assert "thief" not in shown["bootstrap"]  # `gateways` is set in control.yaml

        raise_generation(control.directory / "control.yaml")
        control.kill()
        control.start()
        deployment.wait_until_active()
        repaired = deployment.penstock("control", "check", "--repair")
        assert repaired.code == 0, repaired.out + repaired.err
        for stolen in (GATEWAY_USER, user):
            with pytest.raises(LoginRefused):
                clusters["east"].call(topics_of, thief.login(stolen))

        files = ("--config", str(control.directory / "control.yaml"))
        renewed = gateway.directory / "gateway.credentials"
        written = deployment.penstock("gateway", "credentials", "east", *files, "--to", str(renewed))
        assert written.code == 0, written.err
        gateway.kill()
        gateway.start()
        wait_for(
            lambda: deployment.penstock("produce", TOPIC, "x", "--profile", profile).code == 0,
            what="the tenant to write again",
            seconds=WITHIN_SECONDS,
        )


def states(deployment: Deployment) -> dict[str, str]:
    listed = deployment.penstock("gateway", "list", "-o", "json")
    assert listed.code == 0, listed.err
    return {gateway["gateway"]: gateway["state"] for gateway in listed.data}


def raise_generation(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    document["home"]["key_generation"] = 2
    path.write_text(yaml.safe_dump(document))


class Thief:
    """Holds the gateway credentials of a cluster, and reaches its brokers."""

    def __init__(self, cluster: StockCluster) -> None:
        self._cluster = cluster
        self._key = tenants_key(KEY, cluster.kafka_id)

    def login(self, user: str) -> Login:
        return Login(user, self._key.password(user), Mechanism.SCRAM_SHA_512)

    def writes_what_no_gateway_writes(self, other: str) -> None:
        false = GatewayHeartbeat(
            cluster=cluster_id(self._cluster.kafka_id),
            gateway="thief",
            instance="thief",
            incarnation="thief",
            time_ms=0,
            started_ms=0,
            bootstrap="thief.example.com:9092",
        )
        elsewhere = replace(false, cluster=cluster_id(other), gateway="thief-elsewhere")
        gateways = TopicPartition(key_names.GATEWAYS_TOPIC, 0)
        records: dict[TopicPartition, list[tuple[bytes | None, bytes | None]]] = {
            gateways: [
                (b"\xff", None),
                (b"gateway-east-1", b"\x00"),
                (b"gateway-east-1", false.to_bytes().replace(b"thief.example.com", rb"\ud800")),
                (elsewhere.key, elsewhere.to_bytes()),
                (false.key, false.to_bytes()),
            ],
            TopicPartition(key_names.PRESSURE_TOPIC, 0): [(b"\xff", b"{}")],
        }

        async def write(client: Client) -> None:
            for partition, rows in records.items():
                await append(client, partition, rows)

        self._cluster.call(write, self.login(GATEWAY_USER))
