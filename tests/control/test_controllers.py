"""Changing controllers: what is recorded, what excludes it, and what the list of them shows."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from penstock.control.operations import (
    CONTROLLERS_ADD,
    CONTROLLERS_REMOVE,
    CONTROLLERS_REPLACE,
    STEPS,
    Step,
    next_step,
)
from penstock.control.physical.local_controllers import directory_id_of
from penstock.control.rolling import rolls
from penstock.control.size.controller_changes import ControllerRow, controller_rows
from penstock.control.size.controllers import change_controllers, controllers_of, directories_of
from penstock.kafka.quorum import NO_DIRECTORY, Quorum, Replica
from penstock.kafka.routing import Address
from penstock.model.errors.fleet import ControllersChanging, RollRunning
from penstock.model.ids import Zone
from tests.control.in_memory_control import PHYSICAL, InMemoryControl

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model.entities import Operation

ONE, TWO = UUID(int=1), UUID(int=2)


@pytest.fixture
def memory() -> InMemoryControl:
    return InMemoryControl.with_cells()


def begun(memory: InMemoryControl, action: str = CONTROLLERS_REMOVE) -> Operation:
    context = memory.context()
    decided = change_controllers(memory.registry, context, PHYSICAL, action, {1002: "b"}, {1002: str(TWO)})
    return memory.accept(decided).operation


def test_a_change_records_which_disks_leave(memory: InMemoryControl) -> None:
    operation = begun(memory)

    assert controllers_of(operation) == {1002: Zone("b")}
    assert directories_of(operation) == {1002: str(TWO)}
    assert next_step(operation) is Step.LEAVE


def test_a_controller_is_no_voter_before_it_stops_and_runs_before_it_is_one() -> None:
    assert STEPS[CONTROLLERS_ADD] == (Step.START, Step.JOIN)
    assert STEPS[CONTROLLERS_REPLACE] == STEPS[CONTROLLERS_REMOVE] + STEPS[CONTROLLERS_ADD]
    assert STEPS[CONTROLLERS_REMOVE] == (Step.LEAVE, Step.STOP, Step.FORGET)


def test_controllers_change_one_request_at_a_time(memory: InMemoryControl) -> None:
    first = begun(memory)
    with pytest.raises(ControllersChanging, match=first.id):
        begun(memory, CONTROLLERS_ADD)
    memory.complete(first)
    assert begun(memory, CONTROLLERS_ADD).id != first.id


def test_a_roll_and_a_change_of_controllers_exclude_each_other(memory: InMemoryControl) -> None:
    request = rolls.RollRequest(PHYSICAL, (1, 2, 3))
    change = begun(memory)
    with pytest.raises(ControllersChanging):
        rolls.start_roll(memory.registry, memory.context(), request)
    memory.complete(change)
    memory.accept(rolls.start_roll(memory.registry, memory.context(), request))
    with pytest.raises(RollRunning):
        begun(memory)


def quorum(*voters: Replica, observers: tuple[Replica, ...] = ()) -> Quorum:
    return Quorum(1001, 3, 90, voters, observers, {1001: Address("127.0.0.1", 1)})


def test_the_list_shows_voters_and_observers_but_no_brokers() -> None:
    active, lost = Replica(1001, ONE, 100, -1, 50_000), Replica(1002, TWO, 40, 0, 20_000)
    joining = Replica(1003, UUID(int=3), 100, 50_000, 50_000)
    described = quorum(active, lost, observers=(joining, Replica(1, UUID(int=4), 100, 0, 0)))

    rows = controller_rows(described, {1}, None)

    assert rows == [
        ControllerRow(1001, "", "active", True, 0, "127.0.0.1:1", str(ONE)),
        ControllerRow(1002, "", "voter", False, 60, "", str(TWO)),
        ControllerRow(1003, "", "observer", False, 0, "", str(UUID(int=3))),
    ]


def test_a_quorum_whose_voters_have_no_directory_is_static() -> None:
    assert quorum(Replica(1001, ONE, 1, -1, 1)).is_dynamic
    assert not quorum(Replica(1001, NO_DIRECTORY, 1, -1, 1)).is_dynamic


def test_a_disk_is_known_by_its_id_once_it_is_formatted(tmp_path: Path) -> None:
    meta = tmp_path / "meta.properties"
    assert directory_id_of(meta) is None
    meta.write_text("#\ncluster.id=x\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\nnode.id=1002\nversion=1\n")
    assert directory_id_of(meta) == TWO
