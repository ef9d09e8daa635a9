"""franz-go, built here, as two tenants with the same names at once. It uses the newest versions."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

pytestmark = [pytest.mark.peers, pytest.mark.kafka, pytest.mark.timeout(900)]
BUILD_SECONDS_MAX = 800


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("peer")
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(Path(__file__).parent / "peer" / name, place)
    done = subprocess.run(
        ["go", "build", "-o", "peer", "."],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return place / "peer"


async def run(peer: Path, access: Access, name: str, **names: str) -> dict[str, Any]:
    request = {
        "bootstrap": access.bootstrap.split(","),
        "key": access.key,
        "secret": access.secret,
        "name": name,
    }
    process = await asyncio.create_subprocess_exec(
        str(peer), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate(json.dumps(request | names).encode())
    assert process.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out)
    return result


async def test_franz_go_as_two_tenants_sees_each_its_own_cluster(
    peer: Path, ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group, writer = unique("orders"), unique("readers"), unique("writer")
    names = {"topic": topic, "group": group, "writer": writer}
    alone = {"topic": unique("alone"), "group": unique("hermits"), "writer": unique("hermit")}
    await run(peer, bob, "bob", **alone, foreign="none")

    of_ada, of_bob = await asyncio.gather(
        run(peer, ada, "ada", **names, foreign=alone["topic"]),
        run(peer, bob, "bob", **names, foreign="none"),
    )

    for access, name, result in ((ada, "ada", of_ada), (bob, "bob", of_bob)):
        assert result["values"] == sorted(f"{name}-{n}" for n in range(10))
        assert result["committed"] >= 10  # records, and the transactions' markers
        assert result["cluster"] == access.tenant.id
        assert set(result["brokers"]) == set(access.bootstrap.split(","))
        assert topic in result["topics"]
        assert group in result["groups"]
        assert result["retention"] == "3600000"
        assert not any(entry.startswith("lkc-") for entry in result["topics"] + result["groups"])
    assert alone["topic"] in of_bob["topics"]
    assert alone["topic"] not in of_ada["topics"]
    assert alone["group"] not in of_ada["groups"]
    assert of_ada["foreign"] == "UNKNOWN_TOPIC_OR_PARTITION"
