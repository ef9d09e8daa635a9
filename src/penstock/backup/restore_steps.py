"""The steps of a restore, in order. Each is idempotent, and recorded when it is done."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.model.fault_points import declare

if TYPE_CHECKING:
    from collections.abc import Mapping


class Step(StrEnum):
    REGISTERED = "registered"  # the intent is recorded
    JOINED = "joined"  # the shadow is registered, and the topic exists, closed for writes
    LEADS = "leads"  # the shadow leads every partition
    OBJECTS = "objects"  # every archived batch is on every in-sync replica
    RETURNED = "returned"  # real brokers lead
    ABORTED = "aborted"  # no transaction is open
    DROPPED = "dropped"  # the shadow is in no replica list, and not registered
    PROVED = "proved"  # every replica has the digest of the backup
    CONFIGURED = "configured"  # configs, ACLs and group offsets are restored
    OPENED = "opened"  # clients may write


STEPS: Final = tuple(Step)
# The process may die after a step's effect and before its record.
POINTS: Final = {
    step: declare(f"backup.restore.{step}", f"a restore is {step}, and that is not recorded") for step in Step
}


class InPlaceStep(StrEnum):
    """Of a restore in place: what was reached last. What follows depends on the state of each partition."""

    REGISTERED = "registered"  # the intent is recorded
    JOINED = "joined"  # the shadow is an in-sync replica
    LEADS = "leads"  # the shadow leads a partition
    DROPPED = "dropped"  # a replica was dropped, to be rebuilt
    REBUILT = "rebuilt"  # a replica has the restored records
    RETURNED = "returned"  # a real broker that has them leads
    PROVED = "proved"  # every replica has the digest of the backup, and equals the others


IN_PLACE_POINTS: Final = {
    step: declare(f"backup.restore.{step}", f"a restore is {step}, and that is not recorded")
    for step in InPlaceStep
}


def is_complete(document: Mapping[str, Any]) -> bool:
    """Whether a recorded restore needs nothing more."""
    last = InPlaceStep.PROVED if document.get("in_place") else STEPS[-1]
    return bool(document["step"] == last or document["abandoned"])


def steps_left(done: Step | None) -> tuple[Step, ...]:
    return STEPS if done is None else STEPS[STEPS.index(done) + 1 :]


def needs_shadow(done: Step | None) -> bool:
    return Step.RETURNED in steps_left(done)
