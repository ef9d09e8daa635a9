"""Check what a source sent before it is mirrored. Nothing is ever skipped: a problem stops the partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError
from penstock.model.errors.link import SourceUnusable
from penstock.shadow.partition import RawBatch
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class SourceBatch:
    batch: RawBatch
    epoch: int  # the source's leader epoch
    producer_id: int  # −1: none


def checked(data: bytes | memoryview, position: int, last_epoch: int) -> list[SourceBatch]:
    """The batches from `position` on: intact, in order, of rising leader epochs."""
    result: list[SourceBatch] = []
    try:
        for batch in batches(data):
            if not result and batch.last_offset < position:
                continue  # a fetch may begin with the batch before
            if not batch.is_intact:
                raise SourceUnusable(reason=f"the CRC of the batch at offset {batch.base_offset} is wrong")
            if result and batch.base_offset < position:
                raise SourceUnusable(reason=f"the batch at offset {batch.base_offset} overlaps another")
            if batch.leader_epoch < last_epoch:
                reason = (
                    f"leader epoch {batch.leader_epoch} at offset {batch.base_offset} follows {last_epoch}"
                )
                raise SourceUnusable(reason=reason)
            raw = RawBatch(batch.base_offset, batch.last_offset, batch.raw)
            result.append(SourceBatch(raw, batch.leader_epoch, batch.producer.id))
            position, last_epoch = batch.last_offset + 1, batch.leader_epoch
    except PenstockError as error:
        if isinstance(error, SourceUnusable):
            raise
        raise SourceUnusable(reason=error.message) from error
    return result


def starts_above(position: int, start: int) -> SourceUnusable:
    """The source has deleted what is not mirrored yet."""
    return SourceUnusable(reason=f"its log starts at {start}, above the mirror's end {position}")


def runs_of_epochs(fetched: Sequence[SourceBatch]) -> list[tuple[int, list[RawBatch]]]:
    """Consecutive batches of the same source epoch."""
    runs: list[tuple[int, list[RawBatch]]] = []
    for one in fetched:
        if not runs or runs[-1][0] != one.epoch:
            runs.append((one.epoch, []))
        runs[-1][1].append(one.batch)
    return runs
