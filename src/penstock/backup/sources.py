"""From which replica a partition is archived: an in-sync follower; a leader only if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import TypeVar

    Key = TypeVar("Key")


class Replicas(NamedTuple):
    leader: int  # −1: none
    isr: tuple[int, ...]


def choose_sources(
    replicas: Mapping[Key, Replicas], live: Collection[int], *, avoid: Collection[int] = ()
) -> dict[Key, int]:
    """The broker to fetch each partition from. Work is spread: each goes to the broker with the least.

    Partitions without a live replica are left out. `avoid` are brokers that failed a moment ago."""
    load = dict.fromkeys(live, 0)
    chosen: dict[Key, int] = {}
    for key, (leader, isr) in replicas.items():
        usable = [broker for broker in isr if broker in load and not is_shadow(broker)]
        followers = [broker for broker in usable if broker != leader]
        preferred = [b for b in followers if b not in avoid] or followers or usable
        if preferred:
            broker = min(preferred, key=lambda one: (load[one], one))
            load[broker] += 1
            chosen[key] = broker
    return chosen
