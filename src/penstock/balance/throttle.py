"""Kafka's replication throttle (KIP-73) for the time of a move.

Each topic lists its replicas that are throttled; on tenants' topics that list is the platform's, and
is deleted after a move. Each broker has a rate, taken from its dynamic configuration only: one that
an operator has set stays. Ours are known by their last digits, so that whoever resumes a move after
a crash, with another rate perhaps, changes and takes away what its predecessor set.

Kafka never throttles a replica that is in sync, so a throttle cannot push one out of sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.kafka import configs
from penstock.kafka.configs import Change, Operation, Source
from penstock.kafka.outcomes import all_done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.balance.moving import Transfer
    from penstock.kafka.client import Client
    from penstock.kafka.configs import Entry, Resource

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
RATE_MIN: Final = 1_000_000  # bytes a second; below, single fetches hardly get through
MARK: Final = 7  # the rest of our rates divided by a thousand


def marked(rate: float) -> str:
    return str(int(max(rate, RATE_MIN)) // 1000 * 1000 + MARK)


def is_ours(entry: Entry | None) -> bool:
    return _is_set(entry) and entry is not None and int(entry.value or 0) % 1000 == MARK


async def throttle(client: Client, batch: Sequence[Transfer], rate: float) -> None:
    """Before a batch begins: bounds what its brokers send and receive for it."""
    wanted: dict[Resource, list[Change]] = {}
    for topic in sorted({each.partition[0] for each in batch}):
        mine = [each for each in batch if each.partition[0] == topic]
        leaders = [f"{each.partition[1]}:{broker}" for each in mine for broker in each.source]
        followers = [f"{each.partition[1]}:{broker}" for each in mine for broker in each.adding]
        wanted[configs.topic(topic)] = [
            Change(LEADERS, ",".join(leaders)),
            Change(FOLLOWERS, ",".join(followers)),
        ]
    brokers = sorted({int(b) for each in batch for b in (*each.source, *each.target)})
    for resource, entries in (await _rates(client, brokers)).items():
        free = [n for n in RATES if not _is_set(entries.get(n)) or is_ours(entries.get(n))]
        if free:
            wanted[resource] = [Change(name, marked(rate)) for name in free]
    all_done(await configs.alter(client, wanted))


async def lift(client: Client, topics: Sequence[str], brokers: Sequence[int]) -> None:
    """After a move: nothing of ours stays behind.

    A broker may not have heard yet of what was set a moment ago, so that whatever is not known to be
    somebody else's is deleted; deleting what is not set does nothing.
    """
    wanted: dict[Resource, list[Change]] = {
        configs.topic(name): [Change(key, None, Operation.DELETE) for key in (LEADERS, FOLLOWERS)]
        for name in topics
    }
    for resource, entries in (await _rates(client, brokers)).items():
        ours = [name for name in RATES if not _is_set(entries.get(name)) or is_ours(entries.get(name))]
        if ours:
            wanted[resource] = [Change(name, None, Operation.DELETE) for name in ours]
    if wanted:
        all_done(await configs.alter(client, wanted))


async def _rates(client: Client, brokers: Sequence[int]) -> dict[Resource, dict[str, Entry]]:
    resources = [configs.broker(broker) for broker in brokers]
    return all_done(await configs.describe(client, resources, names=RATES))


def _is_set(entry: Entry | None) -> bool:
    return entry is not None and entry.source is Source.BROKER_DYNAMIC and bool(entry.value)
