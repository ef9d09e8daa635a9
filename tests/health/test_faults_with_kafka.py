"""A broker that is cut off on a real platform, until the broker is healthy again and leads as before."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform
from tests.health.test_with_kafka import (
    BROKER,
    SECONDS_MAX,
    Writer,
    all_readable,
    automatic,
    broker_of,
    entries,
    in_sync,
    leads,
    placement,
    recovered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from penstock.platform.control_client import ControlClient
    from tests.harness.network import Link

pytestmark = [pytest.mark.kafka, pytest.mark.soak]


@dataclass
class World:
    platform: Platform
    control: ControlClient
    admin: dict[str, Any]
    tenant: dict[str, Any]
    link: Link  # between gateways and broker 2

    def wait_for_steps(self, *steps: str) -> None:
        wait_for(
            lambda: broker_of(self.control)["steps"] == list(steps),
            what=", ".join(steps),
            seconds=SECONDS_MAX,
        )

    def wait_for_recovery(self, before: dict[str, tuple[tuple[int, ...], int]]) -> None:
        wait_for(lambda: recovered(self.control), what="recovery", seconds=SECONDS_MAX)
        wait_for(
            lambda: before.items() <= placement(self.admin).items(),
            what="its leadership",
            seconds=SECONDS_MAX,
        )
        assert BROKER in in_sync(self.admin)


@pytest.fixture
def world(tmp_path: Path, make_link: Callable[[str, int], Link]) -> Iterator[World]:
    """Three brokers in mode `auto`. Gateways reach broker 2 through a link."""
    (tmp_path / "work").mkdir()
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    link = make_link("127.0.0.1", port)
    linked = {"id": 2, "zone": "b", "ports": {"gateway": port}, "advertised": {"gateway": link.port}}
    brokers = [{"id": 1, "zone": "a"}, linked, {"id": 3, "zone": "c"}]
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(yaml.safe_dump({"clusters": [{"name": "home", "port": 0, "brokers": brokers}]}))
    command = Penstock(tmp_path / "home", tmp_path / "work")
    ran = command("up", "--detach", "--fleet", str(fleet), env={"PENSTOCK_FLEET_ONLY": "no"})
    try:
        assert ran.code == 0, ran.err
        platform = Platform(command)
        yield World(platform, *automatic(platform), link)
    finally:
        link.heal()
        command.end_everything()


def test_a_broker_that_is_cut_off_is_demoted_and_leads_again_when_the_link_heals(world: World) -> None:
    before = placement(world.admin)

    with Writer(world.tenant) as writer:
        world.link.cut()
        world.wait_for_steps("demote")
        assert broker_of(world.control)["health"] == "cut-off"
        wait_for(lambda: not leads(world.admin), what="other leaders", seconds=SECONDS_MAX)
        assert broker_of(world.control)["states"] == ["demoted"]
        assert BROKER in in_sync(world.admin)  # it replicates all along
        world.link.heal()
        world.wait_for_recovery(before)

    assert writer.failed == 0
    assert [what for what, _ in entries(world.control)] == ["finding", "demote", "done", "resolved"]
    assert all_readable(world.platform, writer)
