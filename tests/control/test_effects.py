"""Effects of steps that have to wait: for a key's grace period, and for a cluster that is not reached yet."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.control import decisions
from penstock.control.effects import GRACE_SECONDS_MAX, Effects
from penstock.control.operations import STEPS, Step
from penstock.control.physical.cluster_access import Clusters
from penstock.control.registry import Drop, Put
from penstock.control.size import resizing
from penstock.control.step_outcome import Pending, no_changes
from penstock.model.api_keys import hashed
from penstock.model.entities import ApiKey, ClusterState, Operation, PhysicalCluster
from penstock.model.errors.control import EntityMissing
from tests.control.in_memory_control import PHYSICAL, InMemoryControl, physical

if TYPE_CHECKING:
    from penstock.control.physical.cluster_access import ProvidedCluster
    from penstock.control.step_outcome import Outcome

OLD, NEW = "A" * 16, "B" * 16


async def unused(_: ProvidedCluster | str) -> None:
    raise AssertionError("not called")


async def perform(memory: InMemoryControl, operation: Operation, step: Step) -> Outcome | Pending:
    """One attempt at a step, in a control plane that knows no cluster."""
    effects = Effects(Clusters(()), {}, lambda: memory.registry, None, unused)
    at = replace(operation, steps_done=STEPS[operation.action].index(step))
    return await effects.perform(at, unused)


def rotation(memory: InMemoryControl, grace_ms: int) -> Operation:
    """Begins now, with real time."""
    memory.now_ms = int(time.time() * 1000)
    shop, sha = memory.cluster(), hashed("s" * 64)
    memory.accept(decisions.create_key(memory.registry, memory.context(), shop.id, None, OLD, sha, ""))
    return memory.accept(
        decisions.rotate_key(memory.registry, memory.context(), OLD, NEW, sha, grace_ms)
    ).operation


async def test_a_rotation_ends_soon_after_its_old_key_is_revoked() -> None:
    memory = InMemoryControl.with_cells()
    operation = rotation(memory, 3_600_000)

    before = await perform(memory, operation, Step.GRACE)
    memory.registry.accept([Drop(memory.registry.need(ApiKey, OLD))])
    after = await perform(memory, operation, Step.GRACE)

    assert isinstance(before, Pending)
    assert before.seconds <= GRACE_SECONDS_MAX
    assert after is no_changes


@pytest.mark.parametrize("step", [Step.ACCESS, Step.GROUPS, Step.TOPICS])
async def test_a_step_waits_for_a_cluster_that_the_new_leader_has_not_reached_yet(step: Step) -> None:
    memory = InMemoryControl.with_cells()
    shop = memory.cluster()
    deletion = memory.accept(decisions.delete_cluster(memory.registry, memory.context(), shop.id, None))

    waiting = await perform(memory, deletion.operation, step)

    assert isinstance(waiting, Pending)
    assert PHYSICAL in waiting.detail


async def test_a_shrinking_waits_for_its_cluster_too() -> None:
    memory = InMemoryControl.with_cells(2)
    operation = memory.accept(resizing.shrink(memory.registry, memory.context(), PHYSICAL, [4])).operation

    assert isinstance(await perform(memory, operation, Step.CORDON), Pending)


async def test_a_cluster_that_was_never_provisioned_is_not_waited_for() -> None:
    memory = InMemoryControl.with_cells()
    shop = memory.cluster()
    deletion = memory.accept(decisions.delete_cluster(memory.registry, memory.context(), shop.id, None))
    version = memory.registry.need(PhysicalCluster, PHYSICAL).version + 1
    never = replace(physical(state=ClusterState.PROVISIONING), version=version)
    memory.registry.accept([Put(never)])

    with pytest.raises(EntityMissing):
        await perform(memory, deletion.operation, Step.GROUPS)


async def test_moves_of_a_cluster_learn_what_holds_them_and_what_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clusters, "client", lambda *_: None)
    effects = Effects(
        Clusters(()), {}, InMemoryControl.with_cells().registry.copy, None, unused,
        hold=lambda cluster: f"a roll of {cluster}", slow=lambda cluster: f"{cluster} is slow",
    )  # fmt: skip

    executor = effects.executor(PHYSICAL)

    assert (executor._hold(), executor._slow()) == (f"a roll of {PHYSICAL}", f"{PHYSICAL} is slow")
