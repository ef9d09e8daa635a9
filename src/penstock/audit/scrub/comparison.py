"""Compares what several places have of one stretch of log, batch by batch. Pure.

A stretch is divided into parts: one where every place has the same batches, and one for each problem, so that
a problem is reported with its offsets and no others. In a compacted topic replicas are cleaned at different
times, so there records are compared, and only those that both places have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.durability import Scrubbed
from penstock.wire.digest import BatchDigest, BatchSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UNREADABLE: Final = "unreadable"  # instead of a digest: the place has something there that is no batch
NOTHING: Final = ""  # instead of a digest: the place has no batch there
DAMAGED_MAX: Final = 16  # ranges in one event; more are joined
CRC_MASK: Final = 0xFFFFFFFF


class Scanned(NamedTuple):
    """A batch, or a record of a compacted topic. `crc` is that of the content as it was read."""

    base: int
    last: int
    crc: int
    intact: bool = True  # the content has the CRC that the batch states
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    control: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """What one place has of a stretch, in order."""

    place: str
    batches: Sequence[Scanned] = ()
    unreadable: bool = False
    checks_holes: bool = True  # the place must have every offset


@dataclass(slots=True)
class Part:
    """Offsets where the same places agree. `agreed`: what most of them have."""

    first: int
    last: int
    clean: bool
    rows: tuple[Scrubbed, ...] = ()  # those that agree with most others first
    agreed: list[Scanned] = field(default_factory=list)


class _Group(NamedTuple):
    first: int
    last: int
    contents: tuple[tuple[Scanned, ...], ...]  # by copy

    @property
    def pattern(self) -> tuple[tuple[int, bool], ...]:
        """Which copies have the same content, and which are damaged; (0, True): nothing."""
        numbers: dict[tuple[Scanned, ...], int] = {(): 0}
        return tuple(
            (numbers.setdefault(each, len(numbers)), all(batch.intact for batch in each))
            for each in self.contents
        )


def compare(copies: Sequence[Copy], first: int, last: int, *, by_record: bool = False) -> list[Part]:
    """The parts of a stretch, in order. With `by_record`, what a place does not have is no problem."""
    readable = [copy for copy in copies if not copy.unreadable]
    unreadable = [copy.place for copy in copies if copy.unreadable]
    if not readable:
        return [_unreadable(unreadable, first, last)]
    if not unreadable and _is_whole(readable, first, last, by_record=by_record):
        places = [copy.place for copy in readable]
        batches = list(readable[0].batches)
        return [Part(first, last, True, _rows(places, first, last, digest_of(batches)), batches)]
    merged: list[list[_Group]] = []
    with_holes = not by_record and any(copy.checks_holes for copy in readable)
    for group in _groups(readable, first, last, with_holes=with_holes):
        if merged and _kind(merged[-1][-1], by_record) == _kind(group, by_record):
            merged[-1].append(group)
        else:
            merged.append([group])
    parts = [_part(readable, unreadable, groups, by_record=by_record) for groups in merged]
    if by_record and not parts:
        parts = [Part(first, last, not unreadable, _damaged(unreadable, first, last))]
    return parts


def digest_of(batches: Iterable[Scanned]) -> str:
    return BatchDigest(map(span_of, batches)).hexdigest()


def span_of(batch: Scanned) -> BatchSpan:
    """A damaged batch never has the digest of a sound one."""
    return BatchSpan(batch.base, batch.last, batch.crc if batch.intact else batch.crc ^ CRC_MASK)


def _is_whole(copies: Sequence[Copy], first: int, last: int, *, by_record: bool) -> bool:
    """Whether all copies have the same sound batches, without a hole."""
    batches = copies[0].batches
    if any(copy.batches != batches for copy in copies[1:]):
        return False
    expected = first
    for batch in batches:
        if not batch.intact or (batch.base > expected and not by_record):
            return False
        expected = batch.last + 1
    return bool(batches) and (by_record or expected > last)


def _kind(group: _Group, by_record: bool) -> object:
    """Groups of one kind become one part."""
    return _is_clean(group, by_record) or group.pattern


def _is_clean(group: _Group, by_record: bool) -> bool:
    contents = {each for each in group.contents if each or not by_record}
    (*rest, only) = contents
    return not rest and bool(only) and all(batch.intact for batch in only)


def _groups(copies: Sequence[Copy], first: int, last: int, *, with_holes: bool) -> Iterator[_Group]:
    """Batches that overlap, of any copy, and the holes that all copies have."""
    rest = [list(reversed(copy.batches)) for copy in copies]
    expected = first
    while any(rest):
        start = min(each[-1].base for each in rest if each)
        end = start - 1
        contents: list[list[Scanned]] = [[] for _ in rest]
        grows = True
        while grows:
            grows = False
            for number, batches in enumerate(rest):
                while batches and batches[-1].base <= max(end, start):
                    batch = batches.pop()
                    contents[number].append(batch)
                    grows, end = True, max(end, batch.last)
        if start > expected and with_holes:
            yield _Group(expected, start - 1, ((),) * len(rest))
        yield _Group(max(start, first), end, tuple(map(tuple, contents)))
        expected = end + 1
    if expected <= last and with_holes:
        yield _Group(expected, last, ((),) * len(rest))


def _part(copies: Sequence[Copy], unreadable: list[str], groups: list[_Group], *, by_record: bool) -> Part:
    first, last = groups[0].first, groups[-1].last
    contents = [[batch for group in groups for batch in group.contents[n]] for n in range(len(copies))]
    clean = _is_clean(groups[0], by_record)
    if clean and by_record:
        # Each copy may have other records; what they share is the same.
        whole = [next(each for each in group.contents if each) for group in groups]
        contents = [[batch for each in whole for batch in each]] * len(copies)
    votes = Counter(tuple(each) for each in contents if each)
    rows = []
    for copy, batches in zip(copies, contents):
        digest = digest_of(batches) if batches else NOTHING
        holes = () if batches or by_record or not copy.checks_holes else ((first, last),)
        rows.append(Scrubbed(copy.place, first, last, digest, holes, damaged=_damaged_ranges(batches)))
    order = sorted(
        range(len(rows)), key=lambda n: (bool(rows[n].damaged), -votes[tuple(contents[n])], rows[n].place)
    )
    best = next((contents[n] for n in order if contents[n]), [])
    ordered = (*(rows[n] for n in order), *_damaged(unreadable, first, last))
    return Part(first, last, clean and not unreadable, ordered, best)


def _rows(places: Iterable[str], first: int, last: int, digest: str) -> tuple[Scrubbed, ...]:
    return tuple(Scrubbed(place, first, last, digest) for place in places)


def _damaged(places: Iterable[str], first: int, last: int) -> tuple[Scrubbed, ...]:
    return tuple(Scrubbed(each, first, last, UNREADABLE, damaged=((first, last),)) for each in places)


def _unreadable(places: Sequence[str], first: int, last: int) -> Part:
    return Part(first, last, False, _damaged(places, first, last))


def _damaged_ranges(batches: Iterable[Scanned]) -> tuple[tuple[int, ...], ...]:
    ranges: list[tuple[int, int]] = []
    for batch in batches:
        if batch.intact:
            continue
        if ranges and (ranges[-1][1] + 1 == batch.base or len(ranges) == DAMAGED_MAX):
            ranges[-1] = (ranges[-1][0], batch.last)
        else:
            ranges.append((batch.base, batch.last))
    return tuple(ranges)
