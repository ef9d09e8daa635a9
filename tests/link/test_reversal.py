"""What two sides of a link share after a failover, which tail is saved, and what is truncated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.admin import configs, group_offsets, groups, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionId
from penstock.link import commands, source, tails
from penstock.link import reversal as reversal_module
from penstock.link.lineage import Lineage, LineageEntry, lineage_of
from penstock.link.reversal import Reversal, clamp_groups
from penstock.link.runner import LinkRunner
from penstock.link.states import State
from penstock.link.tails import Tail, find_tail, save, tail_between, tail_of
from penstock.model.errors.link import MirrorTopicInvalid, SourceUnusable, TailNotSettled, TailStoreMissing
from penstock.model.errors.wire import KafkaMissing
from penstock.shadow.epoch_history import EpochHistory, EpochStart
from penstock.shadow.responses import Truncation
from penstock.tier.store import Store, StoreSettings
from penstock.wire.records import Record, batches, write
from tests.link.test_interrupted import runner_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.kafka.client import Client

PLACE = TopicPartition("orders", 0)
MISSING = {"api": "Metadata", "subject": "", "detail": "", "error": "", "error_code": 3}
ACTIVE, OLD = cast("Client", "active"), cast("Client", "old")


def history(log: list[int]) -> EpochHistory:
    """Of the leader epoch of each offset."""
    return EpochHistory(tuple(EpochStart(e, n) for n, e in enumerate(log) if not n or log[n - 1] != e))


@st.composite
def epochs(draw: st.DrawFn, first: int = 0) -> list[int]:
    steps = draw(st.lists(st.integers(0, 2), max_size=10))
    return [first + sum(steps[: n + 1]) for n in range(len(steps))]


@given(st.data(), epochs(), st.integers(0, 10), st.integers(0, 10))
async def test_a_tail_begins_where_the_two_logs_stop_being_the_same(
    data: st.DataObject, old: list[int], old_kept: int, active_kept: int
) -> None:
    """Both sides may lose a suffix of what was mirrored, by an unclean election, and write other records."""
    terms = [data.draw(st.integers(0, 1)) for _ in old]  # a mirror's epochs rise at other offsets
    active = [sum(terms[: n + 1]) for n in range(len(old))]
    rows = [(n, old[n], active[n]) for n in range(len(old))]
    entries = [row for n, row in enumerate(rows) if not n or rows[n - 1][1:] != row[1:]]
    mirrored = Lineage(tuple(LineageEntry(*row) for row in entries))
    old_log = old[:old_kept] + data.draw(epochs(max(old, default=0) + 1))
    active_log = active[:active_kept] + data.draw(epochs(max(active, default=0) + 1))
    shared = min(len(old), old_kept, active_kept)

    async def epoch_end(client: Client, _place: TopicPartition, epoch: int) -> EpochStart:
        log = active_log if client is ACTIVE else old_log
        known = history(log)
        end = known.end_of(epoch, len(log))
        return end if end.epoch >= 0 else EpochStart(-1, -1)

    async def log_range(client: Client, _place: TopicPartition) -> tuple[int, int]:
        return 0, len(active_log if client is ACTIVE else old_log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "epoch_end", epoch_end)
        patch.setattr(source, "log_range", log_range)
        tail = await find_tail(ACTIVE, OLD, PLACE, mirrored.inverted(), len(old_log))
    assert (tail.start, tail.end, tail.kept) == (shared, len(old_log), shared)
    assert tail.emptied is (shared == 0)


@pytest.mark.parametrize(
    ("shared", "here", "there", "tail"),
    [
        (100, (0, 120), (0, 130), Tail(100, 120, 100, emptied=False)),
        (100, (0, 100), (0, 130), Tail(100, 100, 100, emptied=False)),
        # The active side has deleted all that is shared: the mirror begins where it does.
        (100, (0, 120), (115, 130), Tail(100, 120, 115, emptied=True)),
        (None, (40, 60), (0, 10), Tail(40, 60, 0, emptied=True)),
        # The old source has deleted what is shared, and part of its tail.
        (100, (110, 120), (0, 130), Tail(110, 120, 100, emptied=False)),
    ],
    ids=["both went on", "no tail", "shared part deleted", "nothing shared", "deleted on the old source"],
)
def test_a_tail_is_what_only_the_old_source_has(
    shared: int | None, here: tuple[int, int], there: tuple[int, int], tail: Tail
) -> None:
    assert tail_between(shared, here, there) == tail
    assert tail_of(tail.as_json()) == tail


def test_a_lineage_of_the_link_back_has_both_sides_exchanged() -> None:
    mirrored = Lineage((LineageEntry(0, 3, 0), LineageEntry(50, 5, 2)))
    back = mirrored.inverted()
    assert back.entries == (LineageEntry(0, 0, 3), LineageEntry(50, 2, 5))
    truncated = back.truncated(40)
    assert truncated.entries == (LineageEntry(0, 0, 3),)
    assert (truncated.truncation, truncated.truncating_to) == (Truncation(5, 40), 40)
    emptied = back.emptied(70)
    assert (emptied.entries, emptied.truncation, emptied.truncating_to) == ((), Truncation(-1, 70), 70)


def store_in(directory: Path) -> Store:
    return Store(StoreSettings("file", directory=directory))


def objects_in(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


class OldSource:
    """Three batches from offset 10 on; a fetch gives one, led by broker 7."""

    async def leaders(self, _names: object, *, strict: bool) -> dict[tuple[str, int], int]:
        assert not strict
        return {("orders", 0): 7}


@pytest.fixture
def old_source(monkeypatch: pytest.MonkeyPatch) -> Client:
    stored = [write([Record(n, 1, None, b"v%d" % n)], leader_epoch=3) for n in (10, 11, 12)]

    async def fetch(
        _client: Client, node: int, positions: Mapping[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, source.Fetched]:
        assert node == 7
        position = positions[PLACE]
        data = stored[position - 10] if position < 13 else b""
        return {PLACE: source.Fetched(data, 13, 0)}

    monkeypatch.setattr(source, "fetch", fetch)
    return cast("Client", OldSource())


async def test_a_tail_is_saved_in_objects_that_a_repetition_does_not_change(
    old_source: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "OBJECT_BYTES_MAX", 100)
    tail = Tail(10, 13, 10, emptied=False)
    for _ in range(2):
        saved = await save(store_in(tmp_path), old_source, "east/id", PLACE, tail)
        assert (saved.batches, saved.saved) == (3, True)
        files = objects_in(tmp_path)
        assert [one.relative_to(tmp_path).as_posix() for one in files] == [
            "east/id/orders/0/10-13/00000000000000000010.log",
            "east/id/orders/0/10-13/00000000000000000012.log",
        ]
    assert [b.base_offset for one in files for b in batches(one.read_bytes())] == [10, 11, 12]


async def test_a_tail_that_cannot_be_read_to_its_end_is_not_saved(old_source: Client, tmp_path: Path) -> None:
    with pytest.raises(SourceUnusable, match="from offset 13 on"):
        await save(store_in(tmp_path), old_source, "east/id", PLACE, Tail(10, 14, 10, emptied=False))


async def test_without_a_place_for_tails_nothing_is_truncated() -> None:
    async def record(_: object) -> None:
        raise AssertionError("recorded")

    reversal = Reversal("east", ACTIVE, OLD, None, {}, record)
    with pytest.raises(TailStoreMissing):
        await reversal._save_tail(PLACE, Lineage(), 10)


async def test_an_old_source_with_an_open_transaction_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(*_: object) -> dict[str, Any]:
        return {"orders": SimpleNamespace(name="orders", partitions=(SimpleNamespace(index=0),))}

    ends: list[int | None] = [None, 12, 13, 13]

    async def log_ends(*_: object) -> dict[TopicPartition, int | None]:
        return {PLACE: ends.pop(0) if ends else None}

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(source, "log_ends", log_ends)
    monkeypatch.setattr(tails, "LOOK_SECONDS", 0.0)
    assert await tails.settled_ends(OLD, ["orders"]) == {PLACE: 13}
    monkeypatch.setattr(tails, "SETTLED_SECONDS_MAX", 0.0)
    with pytest.raises(TailNotSettled, match="1 partitions"):
        await tails.settled_ends(OLD, ["orders"])


async def test_a_group_that_has_read_the_tail_continues_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    commits: dict[str, Any] = {}
    listed = {
        "beyond": SimpleNamespace(type=GroupType.CLASSIC, state="Empty"),
        "below": SimpleNamespace(type=GroupType.CLASSIC, state="Empty"),
        "reading": SimpleNamespace(type=GroupType.CONSUMER, state="Stable"),
    }
    offsets = {"beyond": 120, "below": 90, "reading": 120}

    async def list_all(_: Client) -> dict[str, Any]:
        return listed

    async def committed(_: Client, group: str) -> dict[TopicPartition, CommittedOffset]:
        return {PLACE: CommittedOffset(offsets[group], 4, "note")}

    async def commit(_: Client, group: str, due: Mapping[TopicPartition, CommittedOffset]) -> dict[Any, None]:
        commits[group] = dict(due)
        return {}

    monkeypatch.setattr(groups, "list_all", list_all)
    monkeypatch.setattr(group_offsets, "committed", committed)
    monkeypatch.setattr(group_offsets, "commit", commit)
    await clamp_groups(OLD, {PLACE: 100})
    assert commits == {"beyond": {PLACE: CommittedOffset(100, -1, "note")}}


def described(topic_id: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(id=UUID(int=topic_id), partitions=tuple(range(count)))


@pytest.mark.parametrize(
    ("old", "new", "tiered", "reason"),
    [
        (described(6, 2), described(9, 2), "false", "created again"),
        (KafkaMissing(**MISSING), described(9, 2), "false", "deleted on the old source"),
        (described(5, 2), KafkaMissing(**MISSING), "false", "deleted on the active side"),
        (described(5, 3), described(9, 2), "false", "3 partitions"),
        (described(5, 2), described(9, 2), "true", "tiered"),
    ],
    ids=["created again", "deleted there", "deleted here", "more partitions", "tiered"],
)
async def test_a_topic_that_is_not_the_mirrored_one_is_not_truncated(
    old: Any, new: Any, tiered: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe(client: Client, _names: object) -> dict[str, Any]:
        return {"orders": old if client is OLD else new}

    async def describe_configs(*_: object, names: object) -> dict[Any, Any]:
        assert names == [commands.TIERED]
        return {configs.topic("orders"): {commands.TIERED: SimpleNamespace(value=tiered)}}

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(configs, "describe", describe_configs)
    with pytest.raises(MirrorTopicInvalid, match=reason):
        await commands._check_reversible(ACTIVE, OLD, {"orders": str(UUID(int=5))})


class Shadow:
    """Leads `orders-0` after `regain`; a super user writes before the first time."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_stepping_down = False

    async def regain(self, *_: object) -> None:
        self.calls.append("regain")

    async def release(self, *_: object) -> None:
        self.calls.append("release")


async def test_what_was_written_after_the_tail_was_saved_is_saved_before_it_is_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shadow = Shadow()
    recorded: list[int] = []
    written: list[Lineage] = []
    ends = [15, 15]
    key = PartitionId(UUID(int=5), 0)
    saved = Tail(10, 13, 10, emptied=False, batches=3, saved=True)

    async def replica_range(*_: object) -> tuple[int, int]:
        return 0, ends.pop(0)

    async def settled_ends(*_: object) -> dict[TopicPartition, int]:
        return {PLACE: 15}

    async def save_tail(self: Reversal, place: TopicPartition, _: Lineage, end: int) -> None:
        self.tails = {**self.tails, str(place): Tail(10, end, 10, emptied=False, saved=True).as_json()}
        recorded.append(end)

    async def write_lineage(_: TopicPartition, lineage: Lineage) -> None:
        written.append(lineage)

    monkeypatch.setattr(reversal_module, "replica_range", replica_range)
    monkeypatch.setattr(tails, "settled_ends", settled_ends)
    monkeypatch.setattr(Reversal, "_save_tail", save_tail)
    reversal = Reversal("east", ACTIVE, OLD, None, {str(PLACE): saved.as_json()}, cast("Any", None))
    mirror = cast("Any", SimpleNamespace(lineages={}, shadow=shadow, write_lineage=write_lineage))
    back = Lineage((LineageEntry(0, 2, 5),))
    for _ in range(2):  # a repetition changes nothing
        await reversal._prepare(mirror, PLACE, key, back)
    assert shadow.calls == ["regain", "release", "regain"]
    assert (recorded, written) == ([15], [back.truncated(10)])
    assert lineage_of(mirror.lineages["orders/0"]).truncating_to == 10


async def test_a_link_back_mirrors_only_after_its_tails_are_saved_and_all_replicas_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, committed = runner_with(state=State.CREATING)
    runner._definition = {"reverses": {"topics": ["orders"]}}
    truncated = [False, True]

    async def nothing(*_: object) -> None:
        return None

    async def describe(*_: object) -> dict[str, Any]:
        return {"orders": described(9, 1)}

    async def truncate(*_: object) -> bool:
        return truncated.pop(0)

    monkeypatch.setattr(LinkRunner, "_check_source", nothing)
    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(Reversal, "save_tails", nothing)
    monkeypatch.setattr(Reversal, "truncate", truncate)
    mirror = cast("Any", SimpleNamespace(topic_ids={}))
    await runner._reverse(mirror)
    assert [one["state"] for one in committed] == [State.REVERSING, State.TRUNCATING]
    await runner._reverse(mirror)
    assert runner.state is State.MIRRORING
    assert runner.status["topics"] == mirror.topic_ids == {"orders": str(UUID(int=9))}
