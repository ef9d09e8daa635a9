"""A cell is added to the local fleet, or refused with the reason."""

from __future__ import annotations

import secrets
import signal
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.cluster_record import load_or_create_cluster
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import load_fleet_document, save_fleet_document
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import sole_supervisor
from penstock.model.errors.control import CellSlow
from penstock.model.errors.fleet import NotRunning
from penstock.model.errors.settings import UsageInvalid
from penstock.platform.expansion import add_cell, expanded
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from pathlib import Path

    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.control_api import ControlApi


def fleet_of(layout: Layout, *shapes: dict[str, Any]) -> None:
    """One that was settled, and not started."""
    document = {"clusters": list(shapes)}
    for spec in parse_fleet(document):
        load_or_create_cluster(spec, layout, secrets.SystemRandom(), running=False)
    save_fleet_document(layout, document)


def test_the_fleet_file_gets_that_many_more_brokers(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    fleet_of(layout, {"port": 0})

    (shape,) = expanded(layout, 3)["clusters"]

    assert shape == {"port": 0, "brokers": 6}


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([{"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}], "controllers as well"),
        ([{"port": 0, "zones": ["a"], "brokers": [{"id": 1, "zone": "a"}]}], "one by one"),
        ([{"port": 0, "name": "one"}, {"port": 0, "name": "two"}], "2 clusters"),
    ],
)
def test_a_fleet_that_cannot_be_expanded_names_the_reason(
    tmp_path: Path, shapes: list[dict[str, Any]], why: str
) -> None:
    layout = Layout(tmp_path)
    fleet_of(layout, *shapes)

    with pytest.raises(UsageInvalid, match=why):
        expanded(layout, 1)


def test_a_fleet_that_is_down_is_not_expanded(tmp_path: Path) -> None:
    with pytest.raises(NotRunning):
        add_cell(Layout(tmp_path))


def test_a_cell_that_does_not_appear_in_time_is_an_error(
    plane: InMemoryPlane, control_api: ControlApi, tmp_path: Path
) -> None:
    del plane
    layout = Layout(tmp_path)
    fleet_of(layout, {"port": 0})
    signals: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
    try:
        with sole_supervisor(layout), pytest.raises(CellSlow):
            add_cell(layout, control_api.url, seconds=0)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert signals == [signal.SIGUSR1]
    (shape,) = (load_fleet_document(layout) or {})["clusters"]
    assert shape["brokers"] == 6


def services(penstock: Penstock) -> list[str]:
    shown = penstock("status", "-o", "json").data["services"]
    return [f"{one['service'].split()[0]} {one['state']}" for one in shown if one["address"]]


@pytest.mark.kafka
def test_a_cell_is_added_to_a_fleet_that_runs_and_tenants_move_into_it(tmp_path: Path) -> None:
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    platform = Platform(penstock)
    try:
        words = ("up", "--brokers", "1", "--zones", "a", "--port", "0", "--detach", "-o", "json")
        up = penstock(*words, env={"PENSTOCK_FLEET_ONLY": "no"})
        assert up.code == 0, up.err
        before, supervisor = platform.process("b1"), platform.supervisor()
        wait_for(lambda: services(penstock) == ["control ready", "gateway ready"], what="all to be shown")

        added = penstock("cell", "add", "-o", "json")

        assert added.code == 0, added.err
        assert (added.data["id"], added.data["brokers"]) == ("cell-2", [2])
        assert platform.process("b1") == before
        assert platform.process("b2") is not None
        assert platform.supervisor() == supervisor
        moved = penstock("cluster", "move", "demo", "--cell", "cell-2")
        assert moved.code == 0, moved.err
        assert penstock("produce", "orders", "hello", "--cluster", "demo").code == 0
        assert penstock("control", "check").code == 0
    finally:
        penstock("down")
        penstock.end_everything()
