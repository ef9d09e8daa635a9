"""Kafka is upgraded under load, and its features are raised afterwards, by the commands of the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.fleet.jars import KAFKA_VERSION
from penstock.fleet.versions import METADATA_LEVELS, METADATA_VERSION
from tests.harness.command import Penstock
from tests.harness.platform import Platform
from tests.platform.test_rolls import WHOLE, Clients, Watcher, check_clients, tenant_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1200)]

BEFORE = "4.2.1"
SHAPE: dict[str, Any] = {"clusters": [{"port": 0, "brokers": 3, "kafka": BEFORE}]}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A fleet of an older version, which is fetched if it was never used."""
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(SHAPE))
    try:
        fetched = penstock("fleet", "fetch", "--kafka", BEFORE)
        assert fetched.code == 0, fetched.err
        ran = penstock("up", "--detach", "--fleet", str(path), env=WHOLE)
        assert ran.code == 0, ran.err
        yield Platform(penstock)
    finally:
        penstock("down")
        penstock.end_everything()


def versions(platform: Platform) -> tuple[dict[str, int], int]:
    """Nodes by version, and the metadata version in force."""
    known = platform.penstock("fleet", "versions", "-o", "json").data
    levels = {each["feature"]: each["level"] for each in known["features"]}
    return known["nodes"], levels[METADATA_VERSION]


def test_kafka_is_upgraded_without_client_errors_and_then_its_features_are_raised(platform: Platform) -> None:
    old, new = METADATA_LEVELS[4, 2], METADATA_LEVELS[4, 3]
    assert versions(platform) == ({BEFORE: 4}, old)
    with Clients(tenant_config(platform)) as clients, Watcher(platform) as watcher:
        early = platform.penstock("fleet", "upgrade", "finalize", "-o", "json")
        rolled = platform.penstock("fleet", "roll", "--kafka", KAFKA_VERSION, "--allow-downtime")
        assert rolled.code == 0, (rolled.out, rolled.err)
        assert versions(platform) == ({KAFKA_VERSION: 4}, old)

        raised = platform.penstock("fleet", "upgrade", "finalize")
        assert raised.code == 0, (raised.out, raised.err)
        assert versions(platform) == ({KAFKA_VERSION: 4}, new)
        back = platform.penstock("fleet", "roll", "--kafka", BEFORE, "-o", "json")

    assert early.code == 0  # every node supported the level in force, so there was nothing to raise
    assert back.error["code"] == "PEN-2053"
    check_clients(clients)
    assert all(len(zones) == 1 for zones in watcher.zones)
    assert watcher.below == []
