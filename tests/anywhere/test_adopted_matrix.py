"""The gateway's tenant tests, with tenants on a Kafka cluster of others: the results are the same.

The cluster has three brokers with SASL_SSL and an authorizer, and topics, users and ACLs of others. The tests
run on the clients' host against a gateway there, which listens in plaintext on loopback, as theirs does.
"""

from __future__ import annotations

import json
import secrets
import sys
from typing import TYPE_CHECKING

import pytest

from tests.anywhere.deployment import Deployment
from tests.anywhere.namespaces import Network, can_make_namespaces
from tests.anywhere.stock_kafka import StockCluster
from tests.harness.command import ROOT, clean_environment
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.soak,
    pytest.mark.kafka,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and `ip netns`"),
]

MATRIX_SECONDS_MAX = 1500.0
FIRST_PORT = 31000
MODULES = (
    "test_matrix",
    "test_matrix_confluent",
    "test_matrix_kafka_python",
    "test_java",
    "test_librdkafka",
    "test_kafka_python",
    "test_aiokafka",
    "test_groups",
    "test_traps",
)


def test_tenants_on_a_cluster_of_others_pass_the_tests_of_the_gateway(tmp_path: Path) -> None:
    with Network(secrets.token_hex(2)) as network:
        (tmp_path / "east").mkdir()
        cluster = StockCluster(network.host("east"), tmp_path / "east")
        cluster.start()
        cluster.add_platform_user()
        cluster.add_neighbours()
        before = cluster.snapshot()
        deployment = Deployment(network, tmp_path, {"east": cluster})
        deployment.start_control(1)
        deployment.wait_until_active()
        deployment.create_profile()
        deployment.start_gateway(
            "east", 1, host=deployment.client, serving={"listen": "127.0.0.1", "port": FIRST_PORT}
        )
        tenants = [_tenant(deployment, name) for name in ("ada", "bob", "eve")]
        (tmp_path / "tenants.json").write_text(json.dumps(tenants))

        paths = [f"tests/gateway/{module}.py" for module in MODULES]
        done = deployment.client.start(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-m",
                "kafka",
                "-p",
                "no:cacheprovider",
                *paths,
            ],
            log=tmp_path / "matrix.log",
            cwd=ROOT,
            env=clean_environment({"PENSTOCK_TEST_TENANTS": str(tmp_path / "tenants.json")}),
        )

        assert done.wait(MATRIX_SECONDS_MAX) == 0, (tmp_path / "matrix.log").read_text()[-8000:]
        assert cluster.snapshot() == before


def _tenant(deployment: Deployment, name: str) -> dict[str, str]:
    created = deployment.penstock("cluster", "create", name, "--no-key", "--units", "4", "-o", "json")
    assert created.code == 0, created.err
    key = deployment.penstock("key", "create", "--cluster", name, "-o", "json")
    assert key.code == 0, key.err

    keys = deployment.penstock("key", "list", "--cluster", name, "-o", "json")
    assert keys.code == 0, keys.err

    def bootstrap() -> str:
        shown = deployment.penstock("cluster", "show", name, "-o", "json")
        return str(shown.data["bootstrap"])

    wait_for(lambda: bootstrap() != "", what=f"the gateways of {name}")
    return {
        "tenant": created.data["id"],
        "account": keys.data[0]["account"],
        "key": key.data.get("key", key.data.get("id")),
        "secret": key.data["secret"],
        "bootstrap": ",".join(f"127.0.0.1:{FIRST_PORT + broker}" for broker in (1, 2, 3)),
    }
