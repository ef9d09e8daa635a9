"""Rebuilding a view from the start of the log, into a new generation, while the old one serves.

The new generation catches up with the old one; both are compared as of the same position, if the
projection is the same; then readers are sent to the new one. A rebuild that was killed goes on where
it stopped. A projection of another version has other rows by intention, so nothing is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model import faults
from penstock.model.errors import PenstockError
from penstock.model.errors.views import SnapshotGone, ViewChanged, ViewFailed, ViewReplaced, ViewsDiffer
from penstock.olep.log import ends
from penstock.olep.view import digest
from penstock.olep.view.runner import ViewRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event as Flag

    from penstock.olep.log import Log
    from penstock.olep.position import Position
    from penstock.olep.view import ViewStore, ViewStores
    from penstock.olep.view.projection import Projection
    from penstock.olep.view.runner import Progress, Tuning

COMPARE_TRIES: Final = 5  # the old generation moves on meanwhile, and forgets its past

BUILT = faults.declare("view.rebuild.built", "a new generation has caught up, the old one serves")
COMPARED = faults.declare("view.rebuild.compared", "both generations agree, the old one still serves")
SWAPPED = faults.declare("view.rebuild.swapped", "readers are sent to the new generation, nobody was told")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    view: str
    old: int | None  # the generation that served before
    new: int
    position: Position
    compared: str | None  # the digest that both had at one position; none if they could not be compared


def rebuild(
    projection: Projection,
    log: Log,
    stores: ViewStores,
    stopping: Flag,
    *,
    tuning: Tuning | None = None,
    see: Callable[[Progress], None] | None = None,
) -> Rebuilt | None:
    """Builds, compares, swaps. None if it was stopped before. Raises ViewsDiffer."""
    old = stores.serving(projection.name)
    new = _generation(projection, log, stores, old)

    def catch_up(goal: Position) -> None:
        ViewRunner(projection, log, stores, generation=new, tuning=tuning, see=see).run(stopping, until=goal)

    catch_up(ends(log))
    faults.reach(BUILT)
    serving = None if old is None else _same(projection, log, stores, old)
    compared = None
    try:
        if serving is not None and not stopping.is_set():
            compared = _compared(projection, log, stores, serving, new, catch_up)
            faults.reach(COMPARED)
            # Nobody who has read the old one may be sent back.
            catch_up(serving.position())
    finally:
        if serving is not None:
            serving.close()
    if stopping.is_set():
        return None
    stores.serve(projection.name, new)
    faults.reach(SWAPPED)
    built = stores.open(projection, log.topic_id, log.partitions, generation=new)
    try:
        return Rebuilt(projection.name, old, new, built.position(), compared)
    finally:
        built.close()


def _generation(projection: Projection, log: Log, stores: ViewStores, old: int | None) -> int:
    """A rebuild that was begun and not ended, or the next number."""
    known = stores.generations(projection.name)
    if known and (old is None or known[-1] > old):
        found = _same(projection, log, stores, known[-1])
        if found is not None:
            found.close()
            return known[-1]
    return max(known, default=0) + 1


def _same(projection: Projection, log: Log, stores: ViewStores, generation: int) -> ViewStore | None:
    """The generation, if this projection made it from this log."""
    try:
        return stores.open(projection, log.topic_id, log.partitions, generation=generation)
    except (ViewChanged, ViewReplaced):
        return None


def _compared(
    projection: Projection,
    log: Log,
    stores: ViewStores,
    old: ViewStore,
    new: int,
    catch_up: Callable[[Position], None],
) -> str:
    for attempt in range(COMPARE_TRIES):
        cut = old.position()
        catch_up(cut)
        built = stores.open(projection, log.topic_id, log.partitions, generation=new)
        try:
            with old.reading(cut) as before, built.reading(cut) as after:
                found = digest(before, projection), digest(after, projection)
        except SnapshotGone:
            if attempt == COMPARE_TRIES - 1:
                raise
            continue
        finally:
            built.close()
        if found[0] != found[1]:
            raise ViewsDiffer(
                view=projection.name,
                old=old.generation,
                new=new,
                position=cut.token(),
                difference=f"digests {found[0][:12]} and {found[1][:12]}",
            )
        return found[0]
    raise AssertionError("unreachable")


def drop_unused(projection: Projection, stores: ViewStores) -> list[int]:
    """Drops all generations but the one that serves and those after it. Returns their numbers."""
    serving = stores.serving(projection.name)
    dropped = [] if serving is None else [g for g in stores.generations(projection.name) if g < serving]
    for generation in dropped:
        try:
            stores.drop(projection.name, generation)
        except PenstockError as error:
            raise ViewFailed(view=projection.name, reason=error.message) from error
    return dropped
