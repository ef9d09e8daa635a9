"""One pass over one partition, with places in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from penstock.audit.scrub import partition_scrub
from penstock.audit.scrub.partition_scrub import PartitionScrub, Result
from penstock.audit.scrub.places import Place, Reading, Status, scan
from penstock.audit.scrub.progress import Progress
from penstock.wire.records import HEADER_BYTES, Producer, Record, write
from tests.audit.history import History, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.model.durability import Scrubbed

BATCH = 10  # records
BATCHES = 40
FETCH = 7  # batches in one response


def batch_at(number: int, *, key: bytes | None = None) -> bytes:
    records = [
        Record(n, 1_800_000_000_000, key, f"record {n}".encode())
        for n in range(number * BATCH, (number + 1) * BATCH)
    ]
    return write(records, producer=Producer(7, 0, number * BATCH))


LOG = {number * BATCH: batch_at(number) for number in range(BATCHES)}


@dataclass
class Memory:
    """A place that serves batches by base offset, `fetch` at once."""

    name: str
    batches: dict[int, bytes] = field(default_factory=lambda: dict(LOG))
    first: int = 0
    end: int = BATCHES * BATCH
    checks_holes: bool = True
    by_record: bool = False
    fetch: int = FETCH
    lost_at: int = 1 << 60
    starts_at: int = 0  # the log's own start, which `first` follows when it is read again

    async def read(self, offset: int) -> Reading:
        if offset >= self.lost_at:
            return Reading(Status.LOST)
        if offset < self.starts_at:
            return Reading(Status.GONE)
        bases = [base for base in sorted(self.batches) if base + BATCH > offset][: self.fetch]
        return scan(b"".join(self.batches[base] for base in bases), offset, by_record=self.by_record)


@dataclass
class Recorder:
    """Keeps what is committed; ends like a killed process after some commits."""

    rows: list[Scrubbed] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    read: int = 0
    commits_max: int = 1 << 30

    async def spend(self, size: int) -> None:
        self.read += size

    async def update_starts(self, places: Sequence[Place]) -> None:
        for place in places:
            assert isinstance(place, Memory)
            place.first = max(place.first, place.starts_at)

    async def commit(self, rows: Sequence[Scrubbed], run: int, progress: Progress) -> None:
        assert run == 1000
        if len(self.progress) == self.commits_max:
            raise Killed
        self.rows += rows
        self.progress.append(progress)


class Killed(Exception):
    pass


async def scrub(
    *places: Memory, recorder: Recorder | None = None, start: int = 0, by_record: bool = False
) -> tuple[Result, Recorder]:
    recorder = recorder or Recorder()
    result = Result("orders", 0)
    end = max(place.end for place in places if place.checks_holes)
    await PartitionScrub(recorder, Progress(1000, start), places, end, result, by_record).run()
    return result, recorder


def findings(recorder: Recorder) -> list[tuple[str, int, int, object]]:
    history = History()
    for row in recorder.rows:
        history.add(row, source="scrub", after_ms=1)
    raised = {each.id: each for each in fold(history.events)[1]}
    return sorted((f.rule, f.first, f.last, f.evidence.get("places")) for f in raised.values())


def flipped(number: int, at: int) -> dict[int, bytes]:
    data = bytearray(LOG[number * BATCH])
    data[at] ^= 4
    return {**LOG, number * BATCH: bytes(data)}


async def test_sound_replicas_give_one_event_each_and_a_finished_pass() -> None:
    result, recorder = await scrub(Memory("broker 1"), Memory("broker 2", fetch=3), Memory("broker 3"))

    assert [(row.place, row.first, row.last) for row in recorder.rows] == [
        (f"broker {n}", 0, 399) for n in (1, 2, 3)
    ]
    assert len({row.digest for row in recorder.rows}) == 1
    assert recorder.progress[-1] == Progress(1000, 400, finished=True)
    assert result.size == recorder.read == 3 * sum(map(len, LOG.values()))
    assert not result.problems
    assert findings(recorder) == []


@pytest.mark.parametrize("at", [HEADER_BYTES + 5, 22, 17, 30])  # a record, attributes, CRC, timestamp
async def test_a_flipped_bit_names_the_replica_and_the_offsets(at: int) -> None:
    _, recorder = await scrub(Memory("broker 1"), Memory("broker 2", flipped(21, at)), Memory("broker 3"))

    assert findings(recorder) == [("one-value-per-offset", 210, 219, ["broker 2"])]


async def test_a_flipped_bit_is_damage_even_without_another_replica() -> None:
    _, recorder = await scrub(Memory("broker 1", flipped(21, 100)))

    assert findings(recorder) == [("one-value-per-offset", 210, 219, ["broker 1"])]


@pytest.mark.parametrize("at", [10, 16])  # length and format of the batch
async def test_a_batch_that_cannot_be_parsed_is_damage_of_that_replica_alone(at: int) -> None:
    _, recorder = await scrub(Memory("broker 1"), Memory("broker 2", flipped(21, at)), Memory("broker 3"))

    assert findings(recorder) == [("one-value-per-offset", 210, 219, ["broker 2"])]


@pytest.mark.parametrize("missing", [[0], [21], [20, 21, 22], [6]])
async def test_missing_batches_are_holes_of_that_replica_and_nothing_else(missing: list[int]) -> None:
    holed = {base: data for base, data in LOG.items() if base // BATCH not in missing}
    _, recorder = await scrub(Memory("broker 1"), Memory("broker 2", holed, fetch=5), Memory("broker 3"))

    first, last = missing[0] * BATCH, missing[-1] * BATCH + BATCH - 1
    assert findings(recorder) == [("offset-holes", first, last, None)]


async def test_a_replica_that_ends_early_is_left_out_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have fetched the rest yet. Sweeps compare the ends of replicas."""
    monkeypatch.setattr(partition_scrub, "POLL_SECONDS", 0.0)
    short = {base: data for base, data in LOG.items() if base < 390}
    result, recorder = await scrub(Memory("broker 1"), Memory("broker 2", short), Memory("broker 3"))

    assert findings(recorder) == []
    assert result.left_out == {"broker 2"}


async def test_two_replicas_that_differ_without_damage_are_both_named() -> None:
    other = {**LOG, 210: batch_at(21, key=b"other")}
    _, recorder = await scrub(Memory("broker 1"), Memory("broker 2", other))

    assert findings(recorder) == [("one-value-per-offset", 210, 219, ["broker 1", "broker 2"])]


async def test_replicas_that_start_later_are_compared_from_there() -> None:
    later = Memory("broker 2", {**LOG, 210: batch_at(21, key=b"other")}, first=200, starts_at=200)
    _, recorder = await scrub(Memory("broker 1"), later, Memory("broker 3"))

    assert findings(recorder) == [("one-value-per-offset", 210, 219, ["broker 2"])]
    assert {row.place for row in recorder.rows if row.first < 200} == {"broker 1", "broker 3"}


async def test_a_log_whose_start_moves_meanwhile_is_no_problem() -> None:
    places = [Memory(f"broker {n}", starts_at=100) for n in (1, 2, 3)]
    result, recorder = await scrub(*places)

    assert findings(recorder) == []
    assert not result.left_out
    assert min(row.first for row in recorder.rows) == 100


async def test_the_start_of_one_log_may_rise_after_it_was_read() -> None:
    @dataclass
    class Late(Memory):
        """Retention deletes the beginning when the place is read for the second time."""

        async def read(self, offset: int) -> Reading:
            if offset >= FETCH * BATCH:
                self.starts_at = 200
            return await super().read(offset)

    quick, slow = Late("broker 1"), Late("broker 2", fetch=30)
    _, recorder = await scrub(quick, slow)

    assert findings(recorder) == []
    assert recorder.progress[-1].next_offset == 400


async def test_offsets_that_no_place_has_are_no_gap_of_a_producer() -> None:
    """Deleted locally since the store was listed."""
    tier = Memory("tier", end=100, checks_holes=False)
    replicas = [Memory(f"broker {n}", first=200, starts_at=200) for n in (1, 2)]
    _, recorder = await scrub(tier, *replicas)

    assert findings(recorder) == []


async def test_a_replica_that_is_lost_is_left_out_and_the_partition_is_due_again() -> None:
    result, recorder = await scrub(Memory("broker 1"), Memory("broker 2", lost_at=140), Memory("broker 3"))

    assert result.left_out == {"broker 2"}
    assert recorder.progress[-1] == Progress(0, 400, finished=True)
    assert findings(recorder) == []


async def test_a_store_with_a_gap_is_no_hole_and_one_with_other_content_is_named() -> None:
    gap = {base: data for base, data in LOG.items() if base != 100}
    tier = Memory("tier", {**gap, 50: batch_at(5, key=b"other")}, end=300, checks_holes=False)
    _, recorder = await scrub(Memory("broker 1"), Memory("broker 2"), tier)

    assert findings(recorder) == [("one-value-per-offset", 50, 59, ["tier"])]


async def test_a_compacted_log_may_be_cleaned_differently() -> None:
    cleaned = {base: data for base, data in LOG.items() if base >= 200 and base != 250}
    first, second = Memory("broker 1", by_record=True), Memory("broker 2", cleaned, by_record=True)
    _, recorder = await scrub(first, second, by_record=True)

    assert findings(recorder) == []
    assert recorder.progress[-1] == Progress(1000, 400, finished=True)


async def test_a_scrub_that_was_killed_continues_without_gap_or_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_scrub, "STORE_SECONDS", 0.0)  # stores its position after every stretch
    places = [Memory("broker 1"), Memory("broker 2", flipped(21, 100)), Memory("broker 3")]
    recorder = Recorder(commits_max=3)
    with pytest.raises(Killed):
        await scrub(*places, recorder=recorder)
    assert 0 < recorder.progress[-1].next_offset < 400

    recorder.commits_max = 1 << 30
    await scrub(*places, recorder=recorder, start=recorder.progress[-1].next_offset)

    assert findings(recorder) == [("one-value-per-offset", 210, 219, ["broker 2"])]
    offsets = [n for row in recorder.rows if row.place == "broker 1" for n in range(row.first, row.last + 1)]
    assert offsets == list(range(400))
