"""KEDA's own clients, built from its release, against this server.

The first build compiles about three thousand packages, which takes ten minutes on two cores. Go
caches them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from penstock.scale.decision.hpa_metric import METRIC
from penstock.scale.decision.values import GroupState
from penstock.scale.sampler.samples_topic import InMemoryJournal
from penstock.scale.settings import ServerTls
from tests.scale.fakes import FAST, INTERVAL, FakeCluster, Running, served, until

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1800)]
BUILD_SECONDS_MAX = 1700


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in peer/, which uses an external trigger as KEDA's operator does."""
    folder = tmp_path_factory.mktemp("peer")
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(Path(__file__).parent / "peer" / name, folder)
    build = ["go", "build", "-o", "peer", "."]
    done = subprocess.run(
        build, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "peer"


async def drive(peer: Path, up: Running, *, push_seconds: float = 0.0, **options: Any) -> dict[str, Any]:
    metadata: Mapping[str, str] = options.pop("metadata", {})
    trigger = {"scalerAddress": f"localhost:{up.port}", "group": "billing", "topic": "orders", **metadata}
    request = {
        "name": "billing", "namespace": "shop", "trigger_index": 2, "metadata": trigger,
        "push": push_seconds > 0, "push_seconds": push_seconds, **options,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        str(peer), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate(json.dumps(request).encode())
    assert process.returncode == 0, err.decode()
    response: dict[str, Any] = json.loads(out)
    return response


def scaler(cluster: FakeCluster, **options: Any) -> Any:
    return served(
        {"default": cluster}, InMemoryJournal(), {"default": INTERVAL}, listen="localhost:0", **options
    )


async def test_spec_value_and_activity_reach_the_hpa(peer: Path) -> None:
    async with scaler(FakeCluster(members=2, end=[107, 100])) as up:
        await drive(peer, up)  # creates the watch; the first value may be pending
        await until(lambda: any(watch.verdict for watch in up.verdicts.watches), "a verdict")
        response = await drive(peer, up)

    assert response["error"] == ""
    assert response["specs"] == [{"name": f"s2-{METRIC}", "target": 1, "kind": "AverageValue"}]
    assert response["values"] == [{"name": f"s2-{METRIC}", "value": 2}]
    assert response["active"] is True


async def test_a_scale_down_arrives_with_its_fraction(peer: Path) -> None:
    cluster = FakeCluster(members=2)
    async with scaler(cluster) as up:
        await drive(peer, up, metadata=FAST)
        await until(
            lambda: any(watch.verdict and watch.verdict.replicas == 1 for watch in up.verdicts.watches),
            "a scale-down",
        )
        response = await drive(peer, up, metadata=FAST)

    assert response["values"] == [{"name": f"s2-{METRIC}", "value": 0.001}]


async def test_errors_reach_keda_as_errors(peer: Path) -> None:
    async with scaler(FakeCluster(reachable=False)) as up:
        unreachable = await drive(peer, up)
        bad = await drive(peer, up, metadata={"sustainSeconds": "soon"})

    assert "code = Unavailable" in unreachable["error"]
    assert unreachable["values"] is None
    assert bad["error"] == "no metric spec"


async def test_activity_and_spec_are_pushed(peer: Path) -> None:
    cluster = FakeCluster(members=0, state=GroupState.EMPTY)
    async with scaler(cluster) as up:
        pushing = asyncio.create_task(drive(peer, up, push_seconds=4.0, metadata={"minReplicas": "0"}))
        await until(lambda: any(watch.verdict for watch in up.verdicts.watches), "a verdict")
        cluster.end[0] += 3
        response = await pushing

    assert response["pushed"] == [False, True]
    assert response["pushed_specs"] == [[{"name": f"s2-{METRIC}", "target": 1, "kind": "AverageValue"}]]


async def test_tls_with_a_client_certificate(peer: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, client = authority.issue_cert("localhost"), authority.issue_cert("keda")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    tls = ServerTls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    presented = {
        "caCert": authority.cert_pem.bytes().decode(),
        "tlsClientCert": client.cert_chain_pems[0].bytes().decode(),
        "tlsClientKey": client.private_key_pem.bytes().decode(),
    }
    async with scaler(FakeCluster(), tls=tls) as up:
        response = await drive(peer, up, auth_params=presented, metadata={"enableTLS": "true"})

    assert [spec["name"] for spec in response["specs"]] == [f"s2-{METRIC}"]
