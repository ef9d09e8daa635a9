"""Compares what several places have of one stretch of log, batch by batch. Pure.

A stretch is divided into parts: one where every place has the same batches, and one for each problem, so that
a problem is reported with its offsets and no others. In a compacted topic replicas are cleaned at different
times, so there records are compared, and only those that both places have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.durability import Scrubbed
from penstock.wire.digest import BatchDigest, BatchSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UNREADABLE: Final = "unreadable"  # instead of a digest: the place has something there that is no batch
NOTHING: Final = ""  # instead of a digest: the place has no batch there
DAMAGED_MAX: Final = 16  # ranges in one event; more are joined
CRC_MASK: Final = 0xFFFFFFFF
CLEAN: Final = ("clean",)


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
    batches: tuple[Scanned, ...] = ()
    unreadable: bool = False
    checks_holes: bool = True  # the place must have every offset


@dataclass(frozen=True, slots=True)
class Part:
    """Offsets where the same places agree. `agreed`: what most of them have."""

    first: int
    last: int
    clean: bool
    rows: tuple[Scrubbed, ...] = ()  # those that agree with most others first
    agreed: Sequence[Scanned] = ()
    # Of a problem: which places agree, are damaged or have nothing; and what each of them has.
    kind: tuple[object, ...] = ()
    copies: tuple[Copy, ...] = ()

    def followed_by(self, after: Part) -> Part | None:
        """Both as one, if they are the same problem side by side."""
        same = self.kind == after.kind and self.last + 1 == after.first
        if self.clean or after.clean or not same:
            return None
        copies = tuple(
            replace(a, batches=(*a.batches, *b.batches)) for a, b in zip(self.copies, after.copies)
        )
        return _problem(copies, self.first, after.last, self.kind)


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
    unreadable = [copy for copy in copies if copy.unreadable]
    if by_record:
        readable = [replace(copy, checks_holes=False) for copy in readable]
    if not readable:
        return [_problem(tuple(unreadable), first, last, tuple(copy.place for copy in unreadable))]
    if not unreadable and _is_whole(readable, first, last, by_record=by_record):
        return [_clean([copy.place for copy in readable], first, last, readable[0].batches)]
    merged: list[list[_Group]] = []
    kinds: list[tuple[object, ...]] = []
    for group in _groups(readable, first, last):
        kind = _kind(group, by_record=by_record)
        if kinds and kinds[-1] == kind:
            merged[-1].append(group)
        else:
            merged.append([group])
            kinds.append(kind)
    parts = []
    for groups, kind in zip(merged, kinds):
        contents = [tuple(b for group in groups for b in group.contents[n]) for n in range(len(readable))]
        start, end = groups[0].first, groups[-1].last
        if kind == CLEAN and not unreadable:
            shared = [b for group in groups for b in next(each for each in group.contents if each)]
            parts.append(_clean([copy.place for copy in readable], start, end, shared))
        else:
            own = [replace(copy, batches=each) for copy, each in zip(readable, contents)]
            places = tuple((copy.place, copy.unreadable) for copy in (*own, *unreadable))
            parts.append(_problem((*own, *unreadable), start, end, (*places, *kind)))
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


def _kind(group: _Group, *, by_record: bool) -> tuple[object, ...]:
    """Groups of one kind become one part."""
    contents = {each for each in group.contents if each or not by_record}
    sound = all(batch.intact for each in contents for batch in each)
    return CLEAN if len(contents) == 1 and sound and () not in contents else group.pattern


def _groups(copies: Sequence[Copy], first: int, last: int) -> Iterator[_Group]:
    """Batches that overlap, of any copy, and the holes that all copies have."""
    with_holes = any(copy.checks_holes for copy in copies)
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


def _clean(places: Iterable[str], first: int, last: int, batches: Sequence[Scanned]) -> Part:
    digest = digest_of(batches)
    return Part(first, last, True, tuple(Scrubbed(each, first, last, digest) for each in places), batches)


def _problem(copies: tuple[Copy, ...], first: int, last: int, kind: tuple[object, ...]) -> Part:
    votes = Counter(copy.batches for copy in copies if copy.batches)

    def rank(copy: Copy) -> tuple[bool, bool, int, str]:
        damaged = any(not batch.intact for batch in copy.batches)
        return copy.unreadable, damaged, -votes[copy.batches], copy.place

    ordered = sorted(copies, key=rank)
    rows = tuple(_row(copy, first, last) for copy in ordered)
    return Part(first, last, False, rows, ordered[0].batches, kind, copies)


def _row(copy: Copy, first: int, last: int) -> Scrubbed:
    if copy.unreadable:
        return Scrubbed(copy.place, first, last, UNREADABLE, damaged=((first, last),))
    digest = digest_of(copy.batches) if copy.batches else NOTHING
    holes = ((first, last),) if copy.checks_holes and not copy.batches else ()
    return Scrubbed(copy.place, first, last, digest, holes, damaged=_damaged_ranges(copy.batches))


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
