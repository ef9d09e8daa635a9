"""The local fleet grows by a cell, and says why it cannot."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.growing import add_cell, grown
from penstock.cli.settings import RemoteOptions
from penstock.control.local import LocalProvisioner
from penstock.control.reach import Reach
from penstock.control.steps import cells_after
from penstock.fleet.cluster import settle
from penstock.fleet.layout import Layout
from penstock.fleet.local import remember_spec
from penstock.fleet.parse import parse_fleet
from penstock.fleet.passwords import PlatformKey
from penstock.model.entities import BrokerPlace, CellPlace
from penstock.model.errors.fleet import NotRunning
from penstock.model.errors.settings import UsageInvalid
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.control.ground import physical
from tests.ground.command import Penstock
from tests.ground.fleet import wait_for
from tests.ground.platform import Platform

if TYPE_CHECKING:
    from pathlib import Path


def reach_with(brokers: int, zones: str = "abc", cells: tuple[CellPlace, ...] = ()) -> Reach:
    places = tuple(
        BrokerPlace(BrokerId(n), Zone(zones[(n - 1) % len(zones)]), "h", n) for n in range(1, brokers + 1)
    )
    key = PlatformKey(b"k" * 32)
    return Reach(PhysicalClusterId("pkc-000000"), "home", "local", "h:1", key, places, cells)


CELL_1 = CellPlace("cell-1", (BrokerId(1), BrokerId(2), BrokerId(3)))


def test_brokers_that_came_form_a_cell_and_the_old_one_stays_as_it_was() -> None:
    everything = CellPlace("cell-1", tuple(map(BrokerId, range(1, 7))))

    after = cells_after((CELL_1,), reach_with(6, cells=(everything,)))

    assert after == (CELL_1, CellPlace("cell-2", (BrokerId(4), BrokerId(5), BrokerId(6))))
    assert cells_after(after, reach_with(6)) == after


def test_brokers_that_make_up_no_cell_wait_for_others() -> None:
    assert cells_after((CELL_1,), reach_with(5)) == (CELL_1,)


def test_without_cells_that_still_hold_the_provider_says_which_there_are() -> None:
    said = (CellPlace("cell-1", (BrokerId(1), BrokerId(2))),)

    assert cells_after((), reach_with(2, cells=said)) == said
    assert cells_after((CELL_1,), reach_with(2, cells=said)) == said  # one of its brokers is gone
    assert cells_after((CELL_1,), reach_with(4, "ab", cells=said)) == said  # three over two zones


def test_who_needs_a_cell_is_told_the_command_that_adds_one(tmp_path: Path) -> None:
    said = LocalProvisioner(Layout(tmp_path)).growth(replace(physical(), provider="local"), 3)

    assert said == "3 brokers more, evenly over zones a,b,c: `penstock cell add`"


def fleet_of(layout: Layout, *shapes: dict[str, Any]) -> None:
    """One that was settled, and not started."""
    document = {"clusters": list(shapes)}
    for spec in parse_fleet(document):
        settle(spec, layout, secrets.SystemRandom(), running=False)
    remember_spec(layout, document)


def test_the_fleet_s_file_gets_as_many_brokers_more(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    fleet_of(layout, {"port": 0})

    (shape,) = grown(layout, 3)["clusters"]

    assert shape == {"port": 0, "brokers": 6}


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([{"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}], "controllers as well"),
        ([{"port": 0, "zones": ["a"], "brokers": [{"id": 1, "zone": "a"}]}], "one by one"),
        ([{"port": 0, "name": "one"}, {"port": 0, "name": "two"}], "2 clusters"),
    ],
)
def test_a_fleet_that_cannot_grow_by_itself_says_why(
    tmp_path: Path, shapes: list[dict[str, Any]], why: str
) -> None:
    layout = Layout(tmp_path)
    fleet_of(layout, *shapes)

    with pytest.raises(UsageInvalid, match=why):
        grown(layout, 1)


def test_nothing_grows_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(NotRunning):
        add_cell(RemoteOptions(home=tmp_path))


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
