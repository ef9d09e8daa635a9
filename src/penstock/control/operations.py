"""The steps of every operation, as a table; and the registry changes when a step ends or fails.

A step is an idempotent effect outside the registry, or `SETTLE`, which changes the registry and is
committed together with the progress of the step before it. `steps_done` is the operation's position: the
active control plane performs the next step and then commits its completion. A process may die anywhere;
its successor repeats at most one step.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.control.registry import Change, Drop, Put, Registry
from penstock.model import fault_points
from penstock.model.backoff import Backoff
from penstock.model.entities import (
    ApiKey,
    ClusterState,
    Intervention,
    LogicalCluster,
    Operation,
    OperationState,
    PhysicalCluster,
    ServiceAccount,
    Tenancy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.entities import Entity
    from penstock.model.errors import PenstockError

ATTEMPTS_MAX: Final = 50  # of one step, before the operation fails
BACKOFF: Final = Backoff(0.1, 5.0)
ENDED_RETENTION_MS: Final = 24 * 3600 * 1000  # how long an idempotency key stays valid
ENDED_MAX: Final = 5_000


class Step(StrEnum):
    BROKERS = "brokers"  # a dedicated physical cluster is provisioned
    ACCESS = "access"  # the tenant's users, ACLs and client quotas in Kafka are as declared
    SETTLE = "settle"  # the registry has the new state
    STATE = "state"  # the tenant's state is published to gateways
    GROUPS = "groups"  # the tenant's groups are deleted
    TOPICS = "topics"  # the tenant's topics are deleted
    RELEASE = "release"  # a dedicated physical cluster is released
    GRACE = "grace"  # both keys of a rotation are valid
    COPY = "copy"  # partitions move to the new cell
    SETTINGS = "settings"  # dynamic properties of brokers are as the fleet file has them
    ROLL = "roll"  # every node of the roll was restarted
    FEATURES = "features"  # the cluster's feature levels are raised
    PLAN = "plan"  # the plan's new state is stored, and the active control plane acts on it
    START = "start"  # new brokers run, and are in the cluster
    FILL = "fill"  # new brokers carry their share
    CORDON = "cordon"  # Kafka itself places nothing on brokers that leave
    UNCORDON = "uncordon"  # brokers that were to leave stay
    EMPTY = "empty"  # brokers that leave hold nothing
    STOP = "stop"  # they have stopped
    UNREGISTER = "unregister"  # Kafka does not know them any more
    FORGET = "forget"  # nor do the fleet file, the gateways and the registry
    LEAVE = "leave"  # controllers that leave are no voters any more
    JOIN = "join"  # new controllers are voters


SHRINK_STEPS: Final = (
    Step.STATE, Step.CORDON, Step.EMPTY, Step.STOP, Step.UNREGISTER, Step.FORGET, Step.STATE,
)  # fmt: skip
LEAVING: Final = (Step.LEAVE, Step.STOP, Step.FORGET)  # of controllers
JOINING: Final = (Step.START, Step.JOIN)
CONTROLLERS_ADD: Final = "fleet.controllers-add"
CONTROLLERS_REMOVE: Final = "fleet.controllers-remove"
CONTROLLERS_REPLACE: Final = "fleet.controllers-replace"
CONTROLLER_CHANGES: Final = frozenset((CONTROLLERS_ADD, CONTROLLERS_REMOVE, CONTROLLERS_REPLACE))
STEPS: Final[Mapping[str, tuple[Step, ...]]] = {
    "cluster.create": (Step.BROKERS, Step.ACCESS, Step.SETTLE, Step.STATE),
    "cluster.update": (Step.ACCESS, Step.STATE),
    "cluster.delete": (Step.STATE, Step.ACCESS, Step.GROUPS, Step.TOPICS, Step.RELEASE, Step.SETTLE),
    "cluster.move": (Step.STATE, Step.COPY, Step.SETTLE, Step.STATE),
    "account.create": (Step.ACCESS, Step.SETTLE, Step.STATE),
    "account.update": (Step.ACCESS,),
    "account.delete": (Step.STATE, Step.ACCESS),
    "key.create": (Step.STATE,),
    "key.rotate": (Step.STATE, Step.GRACE, Step.SETTLE, Step.STATE),
    "key.revoke": (Step.STATE,),
    "token.create": (),
    "token.delete": (),
    "broker.set": (Step.STATE,),
    "broker.clear": (Step.STATE,),
    "health.act": (),
    "health.note": (),
    "health.release": (),
    "health.set": (),
    "health.hold": (),
    "health.unhold": (),
    "incident.change": (),
    "finding.change": (),
    "healing.set": (),
    CONTROLLERS_ADD: JOINING,
    CONTROLLERS_REMOVE: LEAVING,
    CONTROLLERS_REPLACE: LEAVING + JOINING,
    "fleet.fill": (Step.FILL, Step.STATE),
    "fleet.grow": (Step.START, Step.STATE, Step.FILL, Step.STATE),
    "fleet.keep": (Step.UNCORDON, Step.STATE),
    "fleet.shrink": SHRINK_STEPS,
    "fleet.finalize": (Step.FEATURES,),
    "fleet.roll": (Step.SETTINGS, Step.ROLL),
    "fleet.roll-abort": (),
    "fleet.roll-back": (),
    "fleet.roll-pause": (),
    "fleet.roll-resume": (),
    "intervention.open": (),
    "intervention.close": (),
    "physical.condition": (),
    "physical.load-profile": (),
    "physical.balance": (),
    "physical.sizing": (),
    "physical.register": (),
    "link.failover": (),
    "link.pause": (),
    "link.promote": (),
    "link.resume": (),
    "plan.cancel": (Step.PLAN,),
    "plan.pace": (Step.PLAN,),
    "plan.run": (Step.PLAN,),
    "registry.import": (),
}

# Where a process may die: the step's effect is there, and its progress is not committed.
EFFECT_UNCOMMITTED: Final[Mapping[tuple[str, int], fault_points.FaultPoint]] = {
    (action, number): fault_points.declare(
        f"control.{action}.{number + 1}-{step}",
        f"step {number + 1} of {action} ({step}) is done, and its progress is not committed",
    )
    for action, steps in STEPS.items()
    for number, step in enumerate(steps)
    if step is not Step.SETTLE
}


def controller_change(registry: Registry, physical: str) -> Operation | None:
    """The change of a physical cluster's controllers that has not ended."""
    running = (o for o in registry.running() if o.action in CONTROLLER_CHANGES and o.subject == physical)
    return next(running, None)


def next_step(operation: Operation) -> Step | None:
    steps = STEPS[operation.action]
    return steps[operation.steps_done] if operation.steps_done < len(steps) else None


def advanced(registry: Registry, operation: Operation, now_ms: int) -> tuple[Change, ...]:
    """The current step is done: the operation first, then what `SETTLE` changes."""
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
    return (Put(after), *changes)


def failed(operation: Operation, error: PenstockError, now_ms: int) -> Put:
    """The current step failed; it is retried up to `ATTEMPTS_MAX` times."""
    attempts = operation.attempts + 1
    after = operation.changed(now_ms, attempts=attempts, error_code=error.code, error=error.message)
    if attempts >= ATTEMPTS_MAX or (not error.retriable and attempts > ATTEMPTS_MAX // 5):
        after = replace(after, state=OperationState.FAILED, ended_ms=now_ms)
    return Put(after)


def settled(registry: Registry, operation: Operation, now_ms: int) -> tuple[Change, ...]:
    """The registry changes of `SETTLE`, once the effects before it are there."""
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
            old = registry.get(ApiKey, str(operation.arguments["replaces"]))
            return () if old is None else (Drop(old),)
        case "cluster.delete":
            return _cluster_removal(registry, operation.subject, now_ms)
        case _:
            raise AssertionError(operation.action)


def _cluster_removal(registry: Registry, subject: str, now_ms: int) -> tuple[Change, ...]:
    cluster = registry.need(LogicalCluster, subject)
    removed: list[Entity] = [*registry.keys(cluster.id), *registry.accounts(cluster.id), cluster]
    physical = registry.get(PhysicalCluster, cluster.cluster)
    if cluster.tenancy is Tenancy.DEDICATED and physical is not None:
        if physical.is_shareable:
            return (*map(Drop, removed), Put(physical.changed(now_ms, tenancy=Tenancy.SHARED)))
        intervention = registry.get(Intervention, physical.id)
        removed += [] if intervention is None else [intervention]
        removed += [*registry.broker_states(physical.id).values(), physical]
    return tuple(map(Drop, removed))


def expired_operations(registry: Registry, now_ms: int) -> tuple[Change, ...]:
    """Drops operations that ended long ago, or exceed the bound."""
    ended = [operation for operation in registry.all(Operation) if operation.ended]
    old = [o for o in ended if (o.ended_ms or 0) < now_ms - ENDED_RETENTION_MS]
    if len(ended) - len(old) > ENDED_MAX:
        old = sorted(ended, key=lambda o: o.ended_ms or 0)[: len(ended) - ENDED_MAX]
    return tuple(Drop(operation) for operation in old)
