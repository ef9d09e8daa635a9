"""Kills control planes one after the other: each dies at the next fault point, and its standby takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class KillablePlane(Protocol):
    @property
    def dead(self) -> bool: ...
    def role(self) -> str: ...


P = TypeVar("P", bound=KillablePlane)


def die_in_turn(start: Callable[[str], P], at: Sequence[str], request: Callable[[P], None]) -> P:
    """Starts a control plane for every fault point, and a last one without, which is returned.

    The first is given the request once it is active. A standby is started when the one before it is active
    or dead: of two that wait for leadership, either may get it, and each dies at its own point only.
    """
    active = start(at[0])
    _wait_until_settled(active)
    request(active)
    for point, following in zip(at, (*at[1:], ""), strict=True):
        _wait_until_settled(active)
        standby = start(following)
        wait_for(lambda: active.dead or standby.dead, what=f"the death at {point}")  # noqa: B023 - at once
        assert active.dead, f"the standby took over before the death at {point}"
        active = standby
    return active


def _wait_until_settled(plane: KillablePlane) -> None:
    wait_for(lambda: plane.dead or plane.role() == "active", what="a control plane to become active")
