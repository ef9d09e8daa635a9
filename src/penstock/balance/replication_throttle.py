"""Kafka's replication throttles (KIP-73) for the duration of a move.

Each topic lists its throttled replicas. On tenants' topics that list belongs to the platform, and is
deleted after a move. Each broker has a rate in its dynamic configuration; a rate set by an operator
stays. The platform's rates are recognized by their last digits, so that the process that resumes a
move after a crash can change and remove the rates of its predecessor.

Kafka never throttles an in-sync replica, so a throttle cannot push a replica out of sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.kafka.admin import configs
from penstock.kafka.admin.configs import Change, Operation, Source
from penstock.kafka.admin.outcomes import results_or_raise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.balance.move_plan import Transfer
    from penstock.kafka.admin.configs import Entry, Resource
    from penstock.kafka.client import Client

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
RATE_MIN: Final = 1_000_000  # bytes a second; below that, single fetches hardly get through
RATE_MARK: Final = 7  # the platform's rates modulo 1000


def marked_rate(rate: float) -> str:
    return str(int(max(rate, RATE_MIN)) // 1000 * 1000 + RATE_MARK)


def is_platform_rate(entry: Entry | None) -> bool:
    return _is_set(entry) and entry is not None and int(entry.value or 0) % 1000 == RATE_MARK


async def set_throttles(client: Client, batch: Sequence[Transfer], rate: float) -> None:
    """Call before a batch starts: bounds what its brokers send and receive for it."""
    changes: dict[Resource, list[Change]] = {}
    for topic in sorted({each.partition[0] for each in batch}):
        of_topic = [each for each in batch if each.partition[0] == topic]
        leaders = [f"{each.partition[1]}:{broker}" for each in of_topic for broker in each.source]
        followers = [f"{each.partition[1]}:{broker}" for each in of_topic for broker in each.adding]
        changes[configs.topic(topic)] = [
            Change(LEADERS, ",".join(leaders)),
            Change(FOLLOWERS, ",".join(followers)),
        ]
    brokers = sorted({int(b) for each in batch for b in (*each.source, *each.target)})
    for resource, entries in (await _rates(client, brokers)).items():
        if names := _platform_rates(entries):
            changes[resource] = [Change(name, marked_rate(rate)) for name in names]
    results_or_raise(await configs.alter(client, changes))


async def remove_throttles(client: Client, topics: Sequence[str], brokers: Sequence[int]) -> None:
    """Call after a move: deletes every throttle that no operator has set.

    A broker may not have seen a rate set a moment ago, so rates that look unset are deleted, too.
    """
    changes: dict[Resource, list[Change]] = {
        configs.topic(name): [Change(key, None, Operation.DELETE) for key in (LEADERS, FOLLOWERS)]
        for name in topics
    }
    for resource, entries in (await _rates(client, brokers)).items():
        if names := _platform_rates(entries):
            changes[resource] = [Change(name, None, Operation.DELETE) for name in names]
    if changes:
        results_or_raise(await configs.alter(client, changes))


def _platform_rates(entries: Mapping[str, Entry]) -> list[str]:
    """The names of the rates that no operator has set."""
    return [name for name in RATES if not _is_set(entries.get(name)) or is_platform_rate(entries.get(name))]


async def _rates(client: Client, brokers: Sequence[int]) -> dict[Resource, dict[str, Entry]]:
    resources = [configs.broker(broker) for broker in brokers]
    return results_or_raise(await configs.describe(client, resources, names=RATES))


def _is_set(entry: Entry | None) -> bool:
    return entry is not None and entry.source is Source.BROKER_DYNAMIC and bool(entry.value)
