"""What a poll returned, by partition: in order, once, and nothing below the position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from penstock.olep.log import by_partition

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass(frozen=True)
class Polled:
    """A record as the client returns it."""

    at: int
    number: int = 0

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


def offsets(*polled: int, position: int) -> list[int]:
    messages = [cast("Message", Polled(offset)) for offset in polled]
    records, _ = by_partition("orders", messages, lambda _: position)
    return [record.offset for record in records.get(0, [])]


@pytest.mark.parametrize(
    ("polled", "expected"),
    [
        ((5, 6, 8), [5, 6, 8]),
        ((3, 4, 5, 6), [5, 6]),
        ((3, 4), []),
        ((5, 6, 7, 5, 6, 7, 8), [5, 6, 7, 8]),
        ((8, 9, 5, 6, 7, 8, 9), [5, 6, 7, 8, 9]),
        ((5, 6, 3, 4, 5, 6, 7), [5, 6, 7]),
    ],
    ids=["in order", "from below", "all below", "step back", "seek behind a prefetch", "step back below"],
)
def test_every_offset_comes_once_and_in_order(polled: tuple[int, ...], expected: list[int]) -> None:
    assert offsets(*polled, position=5) == expected


def test_partitions_are_apart() -> None:
    messages = [cast("Message", Polled(offset, number)) for offset, number in ((5, 0), (1, 1), (6, 0))]

    records, _ = by_partition("orders", messages, {0: 5, 1: 0}.__getitem__)

    assert {p: [record.offset for record in each] for p, each in records.items()} == {0: [5, 6], 1: [1]}
