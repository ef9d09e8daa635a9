"""What the view stores share: identity, the checks of a generation and of positions, errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from penstock.model.errors.views import (
    SnapshotUnavailable,
    ViewChanged,
    ViewFailed,
    ViewFenced,
    ViewMissing,
    ViewMoved,
    ViewReplaced,
    ViewRetired,
)
from penstock.olep.position import Position
from penstock.olep.view import KEEP_SECONDS, Horizon, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.olep.view import ViewBatch, ViewStores
    from penstock.olep.view.projection import Projection


class StoredView:
    """One generation of a view. `errors` are the exceptions of its database, raised as ViewFailed."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    layout: ClassVar[int] = 1  # raise it if rows are stored in another way: the view must be rebuilt

    def __init__(
        self,
        name: str,
        projection: Projection,
        topic_id: str,
        partitions: int,
        generation: int,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self.name = name
        self.generation = generation
        self.projection = projection
        self._topic_id = topic_id
        self._partitions = partitions
        self._epoch = 0
        self._horizon = Horizon(keep_seconds)

    def _built_by(self) -> str:
        return f"{fingerprint(self.projection)}{f' layout {self.layout}' if self.layout > 1 else ''}"

    def _check_compatible(self, topic_id: str, built_by: str) -> None:
        """Compares what the stored generation was built from. Raises ViewChanged, ViewReplaced."""
        expected = self._built_by()
        if built_by != expected:
            raise ViewChanged(view=self.name, actual=built_by, expected=expected)
        if topic_id != self._topic_id:
            raise ViewReplaced(view=self.name, topic_id=topic_id, topic="the log", actual=self._topic_id)

    def _shown(
        self, as_of: Position | None, positions: Mapping[int, int], horizons: Mapping[int, int]
    ) -> dict[int, int]:
        """The offsets that a reader shows. Raises SnapshotUnavailable unless the view has reached `as_of` and
        still retains its rows."""
        if as_of is None:
            return dict(positions)
        requested = as_of.of_topic(self.name, self._topic_id)
        shown = {partition: requested.get(partition, 0) for partition in positions}
        for partition, offset in shown.items():
            position, horizon = positions[partition], horizons.get(partition, 0)
            if not horizon <= offset <= position:
                retained = f"{horizon} to {position} of partition {partition}, requested {offset}"
                raise SnapshotUnavailable(view=self.name, retained=retained)
        return shown

    def _at(self, offsets: Mapping[int, int]) -> Position:
        return Position({self._topic_id: dict(offsets)})

    def _check_writer(self, epoch: int, positions: Mapping[int, int], batches: Iterable[ViewBatch]) -> None:
        """Compares what is stored with what a commit continues from.

        An older epoch means that the store was restored to a state before the claim. If another writer has
        claimed the same epoch since, equal positions still mean equal rows. Raises ViewFenced, ViewRetired,
        ViewMoved."""
        if epoch < -self._epoch:
            raise ViewRetired(view=self.name)
        if epoch > self._epoch:
            raise ViewFenced(view=self.name, epoch=self._epoch, actual=f"epoch {epoch}")
        if epoch != self._epoch:
            raise ViewMoved(view=self.name, actual=f"epoch {epoch}", start=f"epoch {self._epoch}")
        for batch in batches:
            if (actual := positions.get(batch.partition)) != batch.start:
                where = f"offset {actual} of partition {batch.partition}"
                raise ViewMoved(view=self.name, actual=where, start=batch.start)

    @contextmanager
    def _as_view_failed(self) -> Iterator[None]:
        with as_view_failed(self.name, *self.errors):
            yield


@contextmanager
def as_view_failed(view: str, *errors: type[Exception]) -> Iterator[None]:
    """Raises these errors as ViewFailed."""
    try:
        yield
    except errors as error:
        raise ViewFailed(view=view, reason=error) from error


def check_exists(stores: ViewStores, view: str, generation: int) -> None:
    if generation not in stores.generations(view):
        raise ViewMissing(view=view, generation=generation)
