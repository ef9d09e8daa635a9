"""Rebuilds a view from the start of the log into a new generation, while the old one serves reads.

The new generation catches up with the old one. If the projection is the same, both are compared as of one
position. A projection of another version has other rows on purpose, so nothing is compared.

Then readers and the writer are switched, in all processes. The old generation is retired: it takes no more
writes, so the new one can reach its final position, and no reader goes back. Then the new one serves. The
writer finds the old one retired and moves. A rebuild that was killed continues where it stopped.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model import fault_points
from penstock.model.errors import PenstockError
from penstock.model.errors.views import (
    SnapshotUnavailable,
    ViewChanged,
    ViewFailed,
    ViewReplaced,
    ViewsDiffer,
)
from penstock.olep.log import end_position
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

COMPARE_ATTEMPTS: Final = 5  # the old generation may advance and prune its history meanwhile

BUILT = fault_points.declare("view.rebuild.built", "a new generation has caught up, the old one serves reads")
COMPARED = fault_points.declare("view.rebuild.compared", "both generations agree, the old one serves reads")
RETIRED = fault_points.declare(
    "view.rebuild.retired", "the old generation takes no more writes and still serves reads"
)
SWAPPED = fault_points.declare(
    "view.rebuild.swapped", "readers and writers use the new generation, the caller does not know"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    view: str
    old: int | None  # the generation that served before
    new: int
    position: Position
    compared: str | None  # the digest of both at one position; None if they were not compared


def rebuild(
    projection: Projection,
    log: Log,
    stores: ViewStores,
    stopping: Flag,
    *,
    tuning: Tuning | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Rebuilt | None:
    """Builds, compares, switches readers and writer. None if `stopping` was set. Raises ViewsDiffer."""
    old = stores.serving(projection.name)
    new = _target_generation(projection, log, stores, old)

    def catch_up(until: Position) -> None:
        runner = ViewRunner(projection, log, stores, generation=new, tuning=tuning, on_progress=on_progress)
        runner.run(stopping, until=until)

    catch_up(end_position(log))
    fault_points.reach(BUILT)
    compared = None
    if old is not None and not stopping.is_set():
        compared = _compare(projection, log, stores, old, new, catch_up)
        fault_points.reach(COMPARED)
    if old is not None and not stopping.is_set():
        final = stores.retire(projection.name, old)
        fault_points.reach(RETIRED)
        while log.topic_id in final.offsets:  # else the topic was recreated
            catch_up(final)
            # If that took long, the writer may have claimed the old generation again, and readers seen more.
            final, before = stores.retire(projection.name, old), final
            if final == before or stopping.is_set():
                break
    if stopping.is_set():
        return None
    stores.serve(projection.name, new)
    fault_points.reach(SWAPPED)
    built = stores.open(projection, log.topic_id, log.partitions, generation=new)
    try:
        return Rebuilt(projection.name, old, new, built.position(), compared)
    finally:
        built.close()


def _target_generation(projection: Projection, log: Log, stores: ViewStores, old: int | None) -> int:
    """The generation of an unfinished rebuild, or the next number."""
    known = stores.generations(projection.name)
    if known and (old is None or known[-1] > old):
        unfinished = _open_compatible(projection, log, stores, known[-1])
        if unfinished is not None:
            unfinished.close()
            return known[-1]
    return max(known, default=0) + 1


def _open_compatible(
    projection: Projection, log: Log, stores: ViewStores, generation: int
) -> ViewStore | None:
    """The generation, if this projection built it from this log."""
    try:
        return stores.open(projection, log.topic_id, log.partitions, generation=generation)
    except (ViewChanged, ViewReplaced):
        return None


def _compare(
    projection: Projection,
    log: Log,
    stores: ViewStores,
    old_generation: int,
    new: int,
    catch_up: Callable[[Position], None],
) -> str | None:
    """The digest of both generations; None if they were not built by the same projection."""
    old = _open_compatible(projection, log, stores, old_generation)
    if old is None:
        return None
    with closing(old):
        return _compare_stores(projection, log, stores, old, new, catch_up)


def _compare_stores(
    projection: Projection,
    log: Log,
    stores: ViewStores,
    old: ViewStore,
    new: int,
    catch_up: Callable[[Position], None],
) -> str:
    for attempt in range(COMPARE_ATTEMPTS):
        position = old.position()
        catch_up(position)
        built = stores.open(projection, log.topic_id, log.partitions, generation=new)
        try:
            with old.reading(position) as before, built.reading(position) as after:
                digests = digest(before, projection), digest(after, projection)
        except SnapshotUnavailable:
            if attempt == COMPARE_ATTEMPTS - 1:
                raise
            continue
        finally:
            built.close()
        if digests[0] != digests[1]:
            name, at = projection.name, position.token()
            difference = f"digests {digests[0][:12]} and {digests[1][:12]}"
            raise ViewsDiffer(view=name, old=old.generation, new=new, position=at, difference=difference)
        return digests[0]
    raise AssertionError("unreachable")


def drop_unused(projection: Projection, stores: ViewStores) -> list[int]:
    """Drops the generations before the serving one. Returns their numbers.

    A reader looks every `SWITCH_SECONDS` which generation serves, so call it some time after a swap."""
    serving = stores.serving(projection.name)
    dropped = [] if serving is None else [g for g in stores.generations(projection.name) if g < serving]
    for generation in dropped:
        try:
            stores.retire(projection.name, generation)  # a file that was unlinked could still be written
            stores.drop(projection.name, generation)
        except PenstockError as error:
            raise ViewFailed(view=projection.name, reason=error.message) from error
    return dropped
