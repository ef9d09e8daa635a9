"""Where a mirror's replicas go: the shadow first, then real brokers in distinct zones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.errors.link import BrokersTooFew
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping

COPIES_MAX: Final = 3
COPIES_MIN: Final = 2


def mirror_assignment(
    partitions: range, racks: Mapping[int, str | None], shadow: int
) -> dict[int, tuple[int, ...]]:
    """Replicas of each partition; the leader after a promotion rotates over the brokers."""
    real = {broker: rack for broker, rack in racks.items() if not is_shadow(broker)}
    if len(real) < COPIES_MIN:
        raise BrokersTooFew(count=len(real), needed=COPIES_MIN)
    copies = min(COPIES_MAX, len(real))
    ordered = _zones_alternate(real)
    return {
        index: (shadow, *(ordered[(index + offset) % len(ordered)] for offset in range(copies)))
        for index in partitions
    }


def _zones_alternate(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers in an order in which neighbours are in different zones as far as possible."""
    zones: dict[str, list[int]] = {}
    for broker in sorted(racks):
        zones.setdefault(racks[broker] or "", []).append(broker)
    ordered: list[int] = []
    while any(zones.values()):
        ordered += [brokers.pop(0) for _, brokers in sorted(zones.items()) if brokers]
    return ordered
