"""Which controllers may join and leave a quorum, decided from what it shows. Pure.

Voters change one at a time (KIP-853), and every change must be committed by a majority of the new set. So a
change begins only if, after each of its steps, a majority of the voters is caught up. Controllers that serve
no more leave first: they count in the majority and contribute nothing to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.fleet.spec import CONTROLLER_ID_FIRST
from penstock.model.errors.fleet import ControllerMajority, ControllersNotKnown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

CONTROLLERS_MAX: Final = 9  # more only slow every change of metadata down


def new_controllers(existing: Mapping[int, str], count: int, zones: Sequence[str]) -> dict[int, str]:
    """Ids and zones of further controllers: the lowest free ids, each in the zone with the fewest.

    Kafka never forgets the registration of a controller, so ids are used again."""
    placed = dict(existing)
    number = CONTROLLER_ID_FIRST
    while len(placed) < len(existing) + count:
        if number not in placed:
            used = list(placed.values())
            placed[number] = min(zones, key=lambda zone: (used.count(zone), zones.index(zone)))
        number += 1
    return {number: zone for number, zone in sorted(placed.items()) if number not in existing}


def leaving_order(leaving: Collection[int], caught_up: Collection[int], leader: int) -> list[int]:
    """Those that serve no more first, the active controller last."""
    return sorted(leaving, key=lambda node: (node == leader, node in caught_up, node))


def check_leaving(
    voters: Collection[int], caught_up: Collection[int], leader: int, leaving: Collection[int]
) -> None:
    """Raises if a majority would not be caught up while these voters leave, or none would stay."""
    left, serving = set(voters), set(caught_up)
    for node in leaving_order(set(leaving) & left, serving, leader):
        left.discard(node)
        serving.discard(node)
        if len(serving) <= len(left) // 2:
            shown = ", ".join(map(str, sorted(leaving)))
            raise ControllerMajority(controllers=shown, left=len(serving), voters=len(left))


def check_known(known: Mapping[str, Collection[str]], staying: Collection[str]) -> None:
    """Raises if a running node knows the address of no controller that stays.

    Brokers look for a new active controller at the addresses that they were started with."""
    cut_off = [node for node, addresses in sorted(known.items()) if not set(addresses) & set(staying)]
    if cut_off:
        raise ControllersNotKnown(nodes=", ".join(cut_off))
