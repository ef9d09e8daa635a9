"""Changing the controllers of a physical cluster: what each request changes in the registry. Pure.

There is one change per physical cluster at a time, and none while a roll runs: both stop controllers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.control.decisions import Decision, new_operation
from penstock.control.operations import controller_change
from penstock.control.registry import Put
from penstock.control.rolling.rolls import running_roll
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import ControllersChanging, RollRunning
from penstock.model.ids import Zone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry
    from penstock.model.entities import Operation


def require_unchanging(registry: Registry, physical: str) -> None:
    """Raises while a roll or another change of the controllers is under way."""
    if (roll := running_roll(registry, physical)) is not None:
        raise RollRunning(roll=roll.id, cluster=physical, state=str(roll.state))
    if (running := controller_change(registry, physical)) is not None:
        raise ControllersChanging(cluster=physical, operation=running.id)


def change_controllers(
    registry: Registry,
    context: DecisionContext,
    physical_id: str,
    action: str,
    zones: Mapping[int, str],
    directories: Mapping[int, str] | None = None,
) -> Decision:
    """`directories` identify the disks of voters that leave: another disk of the same id is left alone."""
    physical = registry.need(PhysicalCluster, physical_id)
    require_unchanging(registry, physical.id)
    operation = new_operation(registry, context, action, physical.id, None)
    arguments = {
        "zones": {str(node): zone for node, zone in zones.items()},
        "directories": {str(node): directory for node, directory in (directories or {}).items()},
    }
    operation = replace(operation, arguments=arguments)
    return Decision(operation, (Put(operation),), physical, physical)


def controllers_of(operation: Operation) -> dict[int, Zone]:
    """The controllers that come or go, with their zones."""
    zones = operation.arguments.get("zones")
    assert isinstance(zones, dict)
    return {int(node): Zone(str(zone)) for node, zone in zones.items()}


def directories_of(operation: Operation) -> dict[int, str]:
    """The disks that voters had when they were to leave."""
    directories = operation.arguments.get("directories")
    assert isinstance(directories, dict)
    return {int(node): str(directory) for node, directory in directories.items()}
