"""What each operation does, step by step, as a table; and what a step that ended changes.

A step is an effect outside of the registry that can be done twice, or `SETTLE`, which changes the
registry itself and is committed together with the progress of the step before it. An operation
stands at `steps_done`; whoever is active does the next step and then commits that it is done. So a
process may die anywhere, and the next one repeats at most one step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.control.registry import Change, Drop, Put, Registry
from penstock.model import faults
from penstock.model.entities import (
    ApiKey,
    ClusterState,
    LogicalCluster,
    Operation,
    OperationState,
    PhysicalCluster,
    ServiceAccount,
    Tenancy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.errors import PenstockError

ATTEMPTS_MAX: Final = 50  # of one step, before the operation is given up
BACKOFF_SECONDS_FIRST: Final = 0.1
BACKOFF_SECONDS_MAX: Final = 5.0
ENDED_KEPT_MS: Final = 24 * 3600 * 1000  # how long an idempotency key is remembered
ENDED_KEPT_MAX: Final = 5_000


class Step(StrEnum):
    BROKERS = "brokers"  # a dedicated physical cluster is made
    RIGHTS = "rights"  # Kafka's users, ACLs and quotas of the tenant are as declared
    SETTLE = "settle"  # the registry says that it is ready
    STATE = "state"  # gateways are told
    GROUPS = "groups"  # the tenant's groups are deleted
    TOPICS = "topics"  # the tenant's topics are deleted
    RELEASE = "release"  # a dedicated physical cluster is ended
    GRACE = "grace"  # both keys of a rotation are valid
    COPY = "copy"  # partitions move to the new cell


STEPS: Final[Mapping[str, tuple[Step, ...]]] = {
    "cluster.create": (Step.BROKERS, Step.RIGHTS, Step.SETTLE, Step.STATE),
    "cluster.update": (Step.RIGHTS, Step.STATE),
    "cluster.delete": (Step.STATE, Step.RIGHTS, Step.GROUPS, Step.TOPICS, Step.RELEASE, Step.SETTLE),
    "cluster.move": (Step.STATE, Step.COPY, Step.SETTLE, Step.STATE),
    "account.create": (Step.RIGHTS, Step.SETTLE, Step.STATE),
    "account.update": (Step.RIGHTS,),
    "account.delete": (Step.STATE, Step.RIGHTS),
    "key.create": (Step.STATE,),
    "key.rotate": (Step.STATE, Step.GRACE, Step.SETTLE, Step.STATE),
    "key.revoke": (Step.STATE,),
    "token.create": (),
    "token.delete": (),
    "physical.condition": (),
    "physical.register": (),
    "registry.import": (),
}

# Where a process may die: the step's effect is there, and nobody has written that down.
DONE_UNWRITTEN: Final[Mapping[tuple[str, int], faults.FaultPoint]] = {
    (action, number): faults.declare(
        f"control.{action}.{number + 1}-{step}",
        f"step {number + 1} of {action} ({step}) is done, and its progress is not committed",
    )
    for action, steps in STEPS.items()
    for number, step in enumerate(steps)
    if step is not Step.SETTLE
}


@dataclass(frozen=True, slots=True)
class Advance:
    """An operation after a step, and what else changes with it in the same transaction."""

    operation: Operation
    changes: tuple[Change, ...]


def next_step(operation: Operation) -> Step | None:
    steps = STEPS[operation.action]
    return steps[operation.steps_done] if operation.steps_done < len(steps) else None


def advanced(registry: Registry, operation: Operation, now_ms: int) -> Advance:
    """The step under way is done."""
    assert next_step(operation) not in (None, Step.SETTLE)
    after = operation.changed(now_ms, steps_done=operation.steps_done + 1, detail="", attempts=0)
    changes: tuple[Change, ...] = ()
    if next_step(after) is Step.SETTLE:
        changes = settled(registry, operation, now_ms)
        after = replace(after, steps_done=after.steps_done + 1)
    following = next_step(after)
    if following is None:
        after = replace(after, state=OperationState.DONE, ended_ms=now_ms, step="")
    else:
        after = replace(after, step=str(following))
    return Advance(after, (Put(after), *changes))


def failed(registry: Registry, operation: Operation, error: PenstockError, now_ms: int) -> Advance:
    """A step did not work; it is tried again, up to a bound."""
    del registry
    attempts = operation.attempts + 1
    after = operation.changed(now_ms, attempts=attempts, error_code=error.code, error=error.message)
    if attempts >= ATTEMPTS_MAX or (not error.retriable and attempts > ATTEMPTS_MAX // 5):
        after = replace(after, state=OperationState.FAILED, ended_ms=now_ms)
    return Advance(after, (Put(after),))


def backoff_seconds(attempts: int) -> float:
    return float(min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2 ** min(attempts, 10)))


def settled(registry: Registry, operation: Operation, now_ms: int) -> tuple[Change, ...]:
    """What the registry says once the effects before are there."""
    match operation.action:
        case "cluster.create" | "cluster.move":
            cluster = registry.need(LogicalCluster, operation.subject)
            changes: list[Change] = [Put(cluster.changed(now_ms, state=ClusterState.READY, moving_from=""))]
            changes += [
                Put(a.changed(now_ms, ready=True)) for a in registry.accounts(cluster.id) if not a.ready
            ]
            return tuple(changes)
        case "account.create":
            return (Put(registry.need(ServiceAccount, operation.subject).changed(now_ms, ready=True)),)
        case "key.rotate":
            old = registry.get(ApiKey, str(operation.given["replaces"]))
            return () if old is None else (Drop(old),)
        case "cluster.delete":
            return _gone(registry, operation.subject)
        case _:
            raise AssertionError(operation.action)


def _gone(registry: Registry, subject: str) -> tuple[Change, ...]:
    cluster = registry.need(LogicalCluster, subject)
    inside = [*registry.keys(cluster.id), *registry.accounts(cluster.id)]
    changes: list[Change] = [Drop(entity) for entity in inside]
    changes.append(Drop(cluster))
    physical = registry.get(PhysicalCluster, cluster.cluster)
    if cluster.tenancy is Tenancy.DEDICATED and physical is not None:
        changes.append(Drop(physical))
    return tuple(changes)


def forgotten(registry: Registry, now_ms: int) -> tuple[Change, ...]:
    """Operations that ended long ago, or that are too many."""
    ended = [operation for operation in registry.all(Operation) if operation.ended]
    old = [o for o in ended if (o.ended_ms or 0) < now_ms - ENDED_KEPT_MS]
    if len(ended) - len(old) > ENDED_KEPT_MAX:
        old = sorted(ended, key=lambda o: o.ended_ms or 0)[: len(ended) - ENDED_KEPT_MAX]
    return tuple(Drop(operation) for operation in old)
