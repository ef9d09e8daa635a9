"""Kafka's replication throttles (KIP-73) for the duration of moves.

Each topic lists its throttled replicas; each broker has a rate in its dynamic configuration. Both may also
be set by an operator, and are left as the operator has them:

- A rate that an operator set on a broker stays and applies. The platform's rates are recognized by their
  last digits, so that a process that resumes after a crash can change and remove those of its predecessor.
  Values of another source (the cluster's default, a file) apply again once the platform's are deleted.
- Of a topic's list the platform adds and removes only the partitions that it moves. The list `*` stays.

A dead broker has no configuration that can be read, and needs no throttle: it is skipped, and `remove_rates`
is called again when it is back (KAFKA-13392). Kafka never throttles an in-sync replica, so a throttle cannot
push a replica out of sync.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.balance.plan_document import RATE_MIN
from penstock.kafka.admin import configs
from penstock.kafka.admin.configs import Change, Operation, Source
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.errors import PenstockError
from penstock.wire.error_codes import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.kafka.admin.configs import Entry, Resource
    from penstock.kafka.client import Client

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
RATE_MARK: Final = 7  # the platform's rates modulo 1000
EVERY_REPLICA: Final = "*"
BROKER_SECONDS_MAX: Final = 5.0  # a broker that does not respond by then counts as dead
TOPICS_BATCH: Final = 500

Replicas = dict[str, set[str]]  # by name of the list: `partition:broker`


def marked_rate(rate: float) -> str:
    return str(int(max(rate, RATE_MIN)) // 1000 * 1000 + RATE_MARK)


def is_platform_rate(entry: Entry | None) -> bool:
    return _is_set(entry) and entry is not None and int(entry.value or 0) % 1000 == RATE_MARK


async def set_rates(client: Client, brokers: Iterable[int], rate: float) -> set[int]:
    """Bounds what these brokers send and receive; returns those that did not respond."""
    return await _change_rates(client, brokers, marked_rate(rate))


async def remove_rates(client: Client, brokers: Iterable[int]) -> set[int]:
    """Deletes every rate that no operator has set; returns the brokers that did not respond.

    A broker may not have seen a rate set a moment ago, so rates that look unset are deleted, too.
    """
    return await _change_rates(client, brokers, None)


async def set_throttled(
    client: Client, throttled: Mapping[str, Replicas], owned: Mapping[str, Collection[int]]
) -> None:
    """Sets the lists of these topics. `owned`: the partitions of each topic that the platform moves.

    A topic that is deleted meanwhile is left out.
    """
    names = sorted(throttled)
    for start in range(0, len(names), TOPICS_BATCH):
        batch = [configs.topic(name) for name in names[start : start + TOPICS_BATCH]]
        described = _without_missing(await configs.describe(client, batch, names=(LEADERS, FOLLOWERS)))
        changes = {
            resource: _list_changes(entries, throttled[resource.name], owned.get(resource.name, ()))
            for resource, entries in described.items()
        }
        changes = {resource: each for resource, each in changes.items() if each}
        if changes:
            results_or_raise(_without_missing_errors(await configs.alter(client, changes)))


def _list_changes(entries: Mapping[str, Entry], desired: Replicas, owned: Collection[int]) -> list[Change]:
    changes = []
    for name in (LEADERS, FOLLOWERS):
        entry = entries.get(name)
        value = entry.value or "" if entry is not None and entry.source is Source.TOPIC else ""
        present = {part for part in value.split(",") if part}
        if EVERY_REPLICA in present:
            continue
        numbers = {str(number) for number in owned}
        others = {part for part in present if part.partition(":")[0] not in numbers}
        listed = others | desired.get(name, set())
        if listed:
            changes.append(Change(name, ",".join(sorted(listed))))
        else:
            changes.append(Change(name, None, Operation.DELETE))
    return changes


async def _change_rates(client: Client, brokers: Iterable[int], value: str | None) -> set[int]:
    nodes = sorted(set(brokers))
    calls = (_change_rate(client, node, value) for node in nodes)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    silent: set[int] = set()
    for node, outcome in zip(nodes, outcomes, strict=True):
        if isinstance(outcome, PenstockError) and outcome.retriable:
            silent.add(node)
        elif isinstance(outcome, BaseException):
            raise outcome
    return silent


async def _change_rate(client: Client, node: int, value: str | None) -> None:
    resource = configs.broker(node)
    timeout = BROKER_SECONDS_MAX
    described = await configs.describe(client, [resource], names=RATES, timeout=timeout)
    if names := _platform_rates(results_or_raise(described)[resource]):
        changes = configs.changes(dict.fromkeys(names, value))
        results_or_raise(await configs.alter(client, {resource: changes}, timeout=timeout))


def _platform_rates(entries: Mapping[str, Entry]) -> list[str]:
    """The names of the rates that no operator has set."""
    return [name for name in RATES if not _is_set(entries.get(name)) or is_platform_rate(entries.get(name))]


def _is_set(entry: Entry | None) -> bool:
    return entry is not None and entry.source is Source.BROKER_DYNAMIC and bool(entry.value)


def _without_missing(
    described: Mapping[Resource, dict[str, Entry] | PenstockError],
) -> dict[Resource, dict[str, Entry]]:
    return results_or_raise({r: each for r, each in described.items() if not _is_missing(each)})


def _without_missing_errors(
    altered: Mapping[Resource, PenstockError | None],
) -> dict[Resource, PenstockError | None]:
    return {resource: each for resource, each in altered.items() if not _is_missing(each)}


def _is_missing(outcome: object) -> bool:
    return isinstance(outcome, PenstockError) and outcome.facts.get("error_code") in MISSING


def throttled_replicas(moves: Sequence[tuple[int, Iterable[int], Iterable[int]]]) -> Replicas:
    """The lists of one topic, from each partition's number, senders and receivers."""
    return {
        LEADERS: {f"{number}:{broker}" for number, senders, _ in moves for broker in senders},
        FOLLOWERS: {f"{number}:{broker}" for number, _, receivers in moves for broker in receivers},
    }
