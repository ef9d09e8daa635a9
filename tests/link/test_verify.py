"""What a comparison of both sides of a link shows, and what the audit makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from penstock.kafka.admin.partitions import TopicPartition
from penstock.link.verify import Comparison, Ranges, _Content, _first_batch, _first_value
from penstock.model.durability import UNKNOWN
from penstock.wire.digest import BatchDigest
from penstock.wire.records import Record, batches, write
from tests.audit.history import History, findings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.wire.records import Batch

TOPIC_ID = UUID(int=1)


@dataclass
class Side:
    data: bytes

    async def batches(self, start: int, end: int) -> AsyncIterator[Batch]:
        for batch in batches(self.data):
            if start <= batch.last_offset and batch.base_offset < end:
                yield batch


def log(*values: str, first: int = 0) -> bytes:
    return b"".join(write([Record(first + n, 0, None, value.encode())]) for n, value in enumerate(values))


async def first_batch(one: bytes, other: bytes) -> int:
    return await _first_batch(cast("Any", Side(one)), cast("Any", Side(other)), 0, 100)


async def test_the_first_batch_that_differs_is_named_by_its_offset() -> None:
    assert await first_batch(log("a", "b", "c"), log("a", "x", "c")) == 1
    assert await first_batch(log("a", "b", "c"), log("a") + log("c", first=2)) == 1
    assert await first_batch(log("a", "b"), log("a", "b", "c")) == 2
    assert await first_batch(log("a", "b", "c"), log("a", "b")) == 2
    assert await first_batch(log("a", "b"), log("a", "b")) == UNKNOWN


def test_tombstones_of_compacted_topics_make_no_difference() -> None:
    def content(**latest: tuple[int, int]) -> _Content:
        return _Content(BatchDigest(), {key.encode(): each for key, each in latest.items()})

    ours, theirs = content(a=(1, 7), b=(5, 0)), content(a=(1, 7))

    assert _first_value(ours, theirs) == UNKNOWN
    assert _first_value(content(a=(1, 7), c=(9, 3)), theirs) == 9


def raised(mirror: tuple[int, int], source: tuple[int, int], differing: int = UNKNOWN) -> list[Any]:
    place = TopicPartition("orders", 0)
    compared = Comparison(place, TOPIC_ID, 0, 9, "a", "a", Ranges(mirror, source), differing)
    subject, facts = compared.evidence("east")
    assert subject == "named/partition/AAAAAAAAAAAAAAAAAAAAAQ/0"
    return findings_of(History().add(facts))


def test_a_mirror_within_its_source_is_sound() -> None:
    assert raised((0, 90), (0, 100)) == []
    assert raised((20, 100), (30, 120)) == []


def test_a_mirror_that_differs_or_reaches_beyond_its_source_has_diverged() -> None:
    assert raised((0, 90), (0, 100), differing=7) == [("link-diverged", 7, 7)]
    assert raised((0, 110), (0, 100)) == [("link-diverged", 100, 109)]
    assert raised((40, 90), (30, 100)) == [("link-diverged", 30, 39)]
