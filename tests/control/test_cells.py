"""Which cells the brokers of a physical cluster form, and how an operator adds one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.control.effects import cells_after
from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.control.physical.local import LocalProvisioner
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.layout import Layout
from penstock.model.entities import BrokerEndpoint, CellMembers
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.control.in_memory_control import physical

if TYPE_CHECKING:
    from pathlib import Path


def cluster_with(brokers: int, zones: str = "abc", cells: tuple[CellMembers, ...] = ()) -> ProvidedCluster:
    endpoints = tuple(
        BrokerEndpoint(BrokerId(n), Zone(zones[(n - 1) % len(zones)]), "h", n) for n in range(1, brokers + 1)
    )
    key = PlatformKey(b"k" * 32)
    return ProvidedCluster(PhysicalClusterId("pkc-000000"), "home", "local", "h:1", key, endpoints, cells)


CELL_1 = CellMembers("cell-1", (BrokerId(1), BrokerId(2), BrokerId(3)))


def test_new_brokers_form_a_cell_and_the_existing_one_stays() -> None:
    everything = CellMembers("cell-1", tuple(map(BrokerId, range(1, 7))))

    after = cells_after((CELL_1,), cluster_with(6, cells=(everything,)))

    assert after == (CELL_1, CellMembers("cell-2", (BrokerId(4), BrokerId(5), BrokerId(6))))
    assert cells_after(after, cluster_with(6)) == after


def test_brokers_that_do_not_fill_a_cell_wait_for_others() -> None:
    assert cells_after((CELL_1,), cluster_with(5)) == (CELL_1,)


def test_without_valid_cells_those_of_the_provider_are_used() -> None:
    of_provider = (CellMembers("cell-1", (BrokerId(1), BrokerId(2))),)

    assert cells_after((), cluster_with(2, cells=of_provider)) == of_provider
    assert (
        cells_after((CELL_1,), cluster_with(2, cells=of_provider)) == of_provider
    )  # one of its brokers no longer exists
    assert (
        cells_after((CELL_1,), cluster_with(4, "ab", cells=of_provider)) == of_provider
    )  # three over two zones


def test_the_remedy_names_the_command_that_adds_a_cell(tmp_path: Path) -> None:
    remedy = LocalProvisioner(Layout(tmp_path)).growth(replace(physical(), provider="local"), 3)

    assert remedy == "add 3 brokers, evenly over zones a,b,c: `penstock cell add`"
