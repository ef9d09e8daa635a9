"""A source that truncated: up to where both logs agree, what is recorded, and what a mirror does then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionId, PartitionState
from penstock.link import source
from penstock.link.lineage import Lineage, LineageEntry, agreed_end, lineage_of
from penstock.link.mirror import Mirror
from penstock.link.mirror_partition import MirrorPartition, diverged_at
from penstock.model.errors.link import SourceDiverged, SourceUnusable
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.epoch_history import EpochHistory, EpochStart
from penstock.shadow.leadership import Leadership
from penstock.shadow.partition import LedPartition
from penstock.shadow.responses import Truncation
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client
    from penstock.shadow.partition import RawBatch

PLACE = TopicPartition("orders", 0)
NO_CLIENT = cast("Client", None)


async def no_older(_offset: int, _bytes_max: int) -> Sequence[RawBatch]:
    return ()


def lineage(*rows: tuple[int, int, int]) -> Lineage:
    return Lineage(tuple(LineageEntry(*row) for row in rows))


def test_both_logs_agree_up_to_where_the_source_ends_the_epoch() -> None:
    mirrored = lineage((0, 3, 0), (50, 5, 0))
    assert agreed_end(mirrored, 90, 5, EpochStart(5, 70)) == (70, True)
    assert agreed_end(mirrored, 90, 5, EpochStart(5, 200)) == (90, True)


def test_of_an_epoch_that_the_source_does_not_know_no_record_agrees() -> None:
    mirrored = lineage((0, 3, 0), (50, 5, 0))
    assert agreed_end(mirrored, 90, 5, EpochStart(4, 45)) == (45, False)
    assert agreed_end(mirrored, 90, 5, EpochStart(3, 80)) == (50, False)
    assert agreed_end(mirrored, 90, 5, EpochStart(-1, -1)) == (50, False)


@st.composite
def logs(draw: st.DrawFn) -> list[int]:
    """The leader epoch of each offset, rising."""
    steps = draw(st.lists(st.integers(0, 2), max_size=12))
    return [sum(steps[: n + 1]) for n in range(len(steps))]


@given(logs(), st.integers(0, 12), logs(), st.booleans())
async def test_the_agreed_end_is_the_length_of_the_shared_prefix(
    mirrored: list[int], kept: int, after: list[int], grow: bool
) -> None:
    """An unclean election keeps a prefix, and writes other records in later epochs."""
    kept = min(kept, len(mirrored))
    later = max(mirrored, default=0) + 1
    there = mirrored[:kept] + [later + epoch for epoch in after if grow]
    history = EpochHistory(tuple(EpochStart(e, n) for n, e in enumerate(there) if not n or there[n - 1] != e))
    entries = [(n, e, 0) for n, e in enumerate(mirrored) if not n or mirrored[n - 1] != e]

    async def epoch_end(_client: Client, _place: TopicPartition, epoch: int) -> EpochStart:
        if not history.entries:
            return EpochStart(-1, -1)
        return history.end_of(epoch, len(there))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "epoch_end", epoch_end)
        try:
            agreed = await diverged_at(NO_CLIENT, PLACE, lineage(*entries), len(mirrored))
        except SourceUnusable:
            assert kept == 0
            return
    assert agreed == (None if kept == len(mirrored) else kept)


def test_a_truncation_is_stored_with_the_epoch_of_what_must_go() -> None:
    mirrored = lineage((0, 3, 0), (50, 5, 2))
    truncated = mirrored.truncated(70)
    assert truncated.truncation == Truncation(2, 70)
    assert truncated.truncating_to == 70
    assert lineage_of(truncated.as_json()) == truncated
    settled = truncated.settled(Truncation(3, 70))
    assert (settled.truncating_to, settled.truncation) == (None, Truncation(3, 70))
    assert lineage_of(settled.as_json()) == settled
    # A replica that was away during the first truncation may still be truncated by it.
    assert settled.extended(70, 6, 4).truncated(80).truncation == Truncation(4, 70)


def test_entries_of_deleted_records_are_pruned() -> None:
    mirrored = lineage((0, 3, 0), (50, 5, 2), (90, 6, 2))
    assert mirrored.pruned(60).entries == mirrored.entries[1:]
    assert mirrored.pruned(50).entries == mirrored.entries[1:]
    assert mirrored.pruned(0) == mirrored
    assert Lineage().pruned(7) == Lineage()


def mirror_of(led: LedPartition, mirrored: Lineage) -> tuple[Mirror, MirrorPartition]:
    one = MirrorPartition(PLACE, led, mirrored)
    announced: list[None] = []
    shadow = SimpleNamespace(announce=lambda: announced.append(None))

    async def write_lineage(*_: object) -> None:
        return None

    ids = SimpleNamespace(saw=lambda _: None)
    no_intents = cast("Any", None)
    mirror = Mirror(
        "east", cast("Any", shadow), NO_CLIENT, NO_CLIENT, {}, write_lineage, cast("Any", ids), no_intents
    )
    mirror.partitions[PLACE] = one
    return mirror, one


def led_at(end: int) -> LedPartition:
    led = LedPartition(PartitionId(UUID(int=9), 0), "orders", 0, end, no_older)
    led.leadership = Leadership(
        PartitionState((SHADOW_IDS[0], 1), (SHADOW_IDS[0], 1), SHADOW_IDS[0], 4, 0), 0
    )
    led.leadership.fetched(1, end, end, 0.0)
    return led


@pytest.mark.parametrize("there", [EpochStart(3, 8), EpochStart(2, 10)])
async def test_records_of_a_later_epoch_are_not_appended_to_what_the_source_truncated(
    there: EpochStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has grown past the mirror's end again, so offsets alone show nothing."""

    async def epoch_end(*_: object) -> EpochStart:
        return there

    monkeypatch.setattr(source, "epoch_end", epoch_end)
    mirror, one = mirror_of(led_at(10), lineage((0, 3, 4)))
    data = write([Record(10, 1, None, b"other")], leader_epoch=5)
    with pytest.raises(SourceDiverged):
        await mirror._mirror(one, source.Fetched(data, 11, 0), 10)
    assert one.led.end == 10


async def test_a_position_beyond_the_source_is_a_truncation_and_one_below_it_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror, one = mirror_of(led_at(10), lineage((0, 3, 4)))
    lost = source.Fetched(b"", -1, -1, out_of_range=True)

    async def ends_below(*_: object) -> tuple[int, int]:
        return 0, 30  # it has grown again since the fetch

    async def starts_above(*_: object) -> tuple[int, int]:
        return 12, 20

    monkeypatch.setattr(source, "log_range", ends_below)
    with pytest.raises(SourceDiverged):
        await mirror._mirror(one, lost, 10)
    monkeypatch.setattr(source, "log_range", starts_above)
    with pytest.raises(SourceUnusable, match="starts at 12, above"):
        await mirror._mirror(one, lost, 10)


async def test_nothing_is_appended_until_every_in_sync_replica_has_truncated() -> None:
    led = led_at(10)
    led.truncation, led.truncating = Truncation(3, 10), True
    assert led.leadership is not None
    assert not led.finish_truncation(), "broker 1 was not served in this term"
    assert led.known_end(25) == 10
    # A real broker that led in epoch 3, between two terms of the shadow, reports that epoch.
    led.truncation = Truncation(1, 10)
    assert led.view().truncation == Truncation(3, 10)
    led.leadership.fetched(1, 10, 10, 0.0, broker_epoch=77)
    assert led.finish_truncation()
    assert not led.finish_truncation()
    assert led.known_end(25) == 25
    assert led.view().truncation == Truncation(3, 10), "later terms are protected again"
