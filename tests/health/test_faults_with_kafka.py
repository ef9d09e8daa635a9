"""Faults of a broker on a real platform, each until the broker is healthy again and leads as before."""

from __future__ import annotations

import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.harness.command import Penstock
from tests.harness.disk import without_faulty_disk
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
    from tests.harness.disk import FaultyDisk
    from tests.harness.network import Link

pytestmark = [pytest.mark.kafka, pytest.mark.soak]


@dataclass
class World:
    platform: Platform
    control: ControlClient
    admin: dict[str, Any]
    tenant: dict[str, Any]
    link: Link  # between gateways and broker 2
    disk: FaultyDisk | None  # of broker 2; None: this machine has none

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
def world(
    tmp_path: Path, make_link: Callable[[str, int], Link], make_disk: Callable[[Path], FaultyDisk]
) -> Iterator[World]:
    """Three brokers in mode `auto`. A link leads to broker 2, and its data is on a faulty disk."""
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
    data = tmp_path / "home" / "clusters" / "home" / "b2" / "data"
    disk = None if without_faulty_disk() else make_disk(data)
    more = {"PENSTOCK_FLEET_ONLY": "no"} | ({} if disk is None else disk.environment())
    ran = command("up", "--detach", "--fleet", str(fleet), env=more)
    try:
        assert ran.code == 0, ran.err
        platform = Platform(command)
        yield World(platform, *automatic(platform), link, disk)
    finally:
        link.heal()
        if disk is not None:
            disk.heal()
        command.end_everything()


@pytest.mark.parametrize("back_only", [False, True], ids=["both ways", "one way"])
def test_a_broker_that_is_cut_off_is_demoted_and_leads_again_when_the_link_heals(
    world: World, *, back_only: bool
) -> None:
    before = placement(world.admin)

    with Writer(world.tenant) as writer:
        world.link.cut(there=not back_only, back=True)
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


def test_a_broker_whose_disk_hangs_is_stopped_until_it_can_be_written_and_leads_again(world: World) -> None:
    if world.disk is None:
        pytest.skip(f"{without_faulty_disk()}")
    before, hung = placement(world.admin), world.platform.process("b2")
    assert hung is not None

    with Writer(world.tenant) as writer:
        world.disk.hang()
        world.wait_for_steps("demote", "hold")
        assert broker_of(world.control)["health"] == "storage-stuck"
        wait_for(lambda: not hung.is_alive(), what="the end of the broker", seconds=SECONDS_MAX)
        wait_for(lambda: not leads(world.admin), what="other leaders", seconds=SECONDS_MAX)
        assert broker_of(world.control)["states"] == ["demoted"]
        world.disk.heal()
        world.wait_for_recovery(before)

    assert world.platform.process("b2") not in (None, hung)
    assert writer.failed == 0
    assert entries(world.control)[-1][0] == "resolved"
    assert all_readable(world.platform, writer)


def test_a_broker_that_an_operator_holds_is_left_alone_until_it_is_released(world: World) -> None:
    before, frozen = placement(world.admin), world.platform.process("b2")
    assert frozen is not None
    held = world.platform.penstock("health", "hold", "2", "--for", "1h", "--reason", "replacing its disk")
    assert held.code == 0, held.err

    frozen.signal(signal.SIGSTOP)
    try:
        wait_for(
            lambda: "replacing its disk" in broker_of(world.control)["blocked"],
            what="a step that the hold forbids", seconds=SECONDS_MAX,
        )  # fmt: skip
        assert broker_of(world.control)["steps"] == []
        assert broker_of(world.control)["states"] == ["normal"]
        assert world.platform.penstock("health", "release", "2").code == 0
        world.wait_for_steps("demote")
    finally:
        frozen.signal(signal.SIGCONT)
    world.wait_for_recovery(before)
    assert [what for what, _ in entries(world.control)][:3] == ["finding", "blocked", "demote"]


def test_a_killed_broker_is_started_again_and_leads_again(world: World) -> None:
    before = placement(world.admin)

    with Writer(world.tenant) as writer:
        world.platform.kill("b2")
        wait_for(
            lambda: broker_of(world.control)["health"] != "healthy", what="a symptom", seconds=SECONDS_MAX
        )
        wait_for(
            lambda: world.platform.process("b2") is not None, what="another process", seconds=SECONDS_MAX
        )
        world.wait_for_recovery(before)

    assert writer.failed == 0
    assert {each["state"] for each in world.control.every("/incidents")} <= {"resolved"}
    assert all_readable(world.platform, writer)
