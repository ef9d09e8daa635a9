"""Mirrored partitions while leaders move, on both sides, and while the lineage is not what it should be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionId, PartitionState
from penstock.link import mirror as mirror_module
from penstock.link import source
from penstock.link.group_sync import MirrorRange
from penstock.link.held_starts import Retention, check_rise, retention_of, unexplained_rise
from penstock.link.lineage import Lineage
from penstock.link.mirror import Mirror
from penstock.link.mirror_partition import MirrorPartition, unrecorded_at
from penstock.model.errors.link import MirrorTopicTaken, SourceDiverged, SourceUnusable
from penstock.model.errors.shadow import PartitionNotLed
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.epoch_history import EpochStart
from penstock.shadow.leadership import Leadership
from penstock.shadow.partition import LedPartition, RawBatch
from penstock.shadow.responses import Diverge, FollowerFetch, fetch_response
from penstock.wire.records import Record, batches, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client

SHADOW = SHADOW_IDS[0]
PLACE = TopicPartition("orders", 0)
KEY = PartitionId(UUID(int=9), 0)
STATE = PartitionState((SHADOW, 1, 2), (SHADOW, 1, 2), SHADOW, 4, 0)
NO_CLIENT = cast("Client", None)


def batch(offset: int, epoch: int, count: int = 1) -> bytes:
    return write([Record(offset + n, 1, None, b"v") for n in range(count)], leader_epoch=epoch)


async def no_older(_offset: int, _bytes_max: int) -> Sequence[RawBatch]:
    return ()


def partition(end: int, lineage: Lineage, *, known: Sequence[int] = (1, 2)) -> MirrorPartition:
    """Led in epoch 4; the ends of these followers are known."""
    led = LedPartition(KEY, "orders", 0, end, no_older, epochs=lineage.destination_history(end))
    led.leadership = Leadership(STATE, 0)
    for replica in known:
        led.leadership.fetched(replica, end, end, 0.0)
    return MirrorPartition(PLACE, led, lineage)


class Intents:
    """Records nothing."""

    async def record(self, *_: object) -> None:
        return None


class Written(list[Lineage]):
    """Lineages that a mirror has written."""

    async def __call__(self, _place: TopicPartition, lineage: Lineage) -> None:
        self.append(lineage)


def mirror_of(one: MirrorPartition | None = None, **values: Any) -> tuple[Mirror, Written]:
    image = SimpleNamespace(topics={"orders": KEY.topic_id}, partitions={KEY: STATE})
    shadow = SimpleNamespace(id=SHADOW, announce=lambda: None, image=image)
    ids, written = SimpleNamespace(saw=lambda _: None), Written()
    given: dict[str, Any] = {"shadow": shadow, "client": None, "brokers": None, "intents": Intents()} | values
    mirror = Mirror(link="east", lineages={}, write_lineage=written, producer_ids=cast("Any", ids), **given)
    mirror.topic_ids["orders"] = str(UUID(int=5))
    if one is not None:
        mirror.partitions[PLACE] = one
    return mirror, written


def test_groups_follow_only_where_the_high_watermark_is_known() -> None:
    """Without one, all of a group's offsets would be clamped to the start of the log."""
    one = partition(10, Lineage().extended(0, 3, 4))
    mirror, _ = mirror_of(one)
    assert mirror.ranges == {PLACE: MirrorRange(0, 10)}
    one.led.leadership = Leadership(STATE, 0)
    assert mirror.ranges == {}, "in a new term, before the followers' ends are known"
    one.led.leadership = None
    assert mirror.ranges == {}, "a real broker leads"


async def test_a_partition_without_a_leader_on_the_source_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader_ids = [-1, -1, 7]

    async def leaders(_names: list[str], *, strict: bool) -> dict[tuple[str, int], int]:
        assert not strict
        return {("orders", 0): leader_ids.pop(0)}

    mirror, _ = mirror_of(client=SimpleNamespace(leaders=leaders))
    await mirror._find_leaders([PLACE])
    await mirror._find_leaders([PLACE])
    assert leader_ids == [-1, 7], "not at once"
    monkeypatch.setattr(mirror_module, "REST_SECONDS", 0.0)
    while mirror._leaders[PLACE] < 0:
        await mirror._find_leaders([PLACE])
    await mirror._find_leaders([PLACE])
    assert (leader_ids, mirror._leaders) == ([], {PLACE: 7})


async def test_a_partition_is_fetched_from_one_broker_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader moves while the old one still responds: the same records must not be appended twice."""
    requested: list[int] = []
    responding = asyncio.Event()

    async def fetch(_client: Client, broker: int, positions: Any, **_: Any) -> dict[Any, Any]:
        requested.append(broker)
        await responding.wait()
        return {place: source.Fetched(batch(10, 3, 5), 15, 0) for place in positions}

    monkeypatch.setattr(source, "fetch", fetch)
    one = partition(10, Lineage().extended(0, 3, 4))
    mirror, _ = mirror_of(one)
    mirror._leaders[PLACE] = 1
    await mirror.fetch_once()
    mirror._leaders[PLACE] = 2
    await mirror.fetch_once()
    assert requested == [1]
    responding.set()
    while one.led.end < 15:
        await mirror.fetch_once()
    while len(requested) < 2:
        await mirror.fetch_once()
    assert requested[1] == 2
    await mirror.close()


async def test_a_truncated_partition_does_not_delay_others_of_the_same_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is attached again, which takes as long as an election."""
    other = TopicPartition("orders", 1)

    async def fetch(_client: Client, _broker: int, positions: Any, **_: Any) -> dict[Any, Any]:
        return {
            place: source.Fetched(b"", -1, -1, out_of_range=True)
            if place == PLACE
            else source.Fetched(batch(position, 3), position + 1, 0)
            for place, position in positions.items()
        }

    async def log_range(*_: object) -> tuple[int, int]:
        return 0, 5

    async def attach(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(source, "fetch", fetch)
    monkeypatch.setattr(source, "log_range", log_range)
    monkeypatch.setattr(Mirror, "_attach", attach)
    lineage = Lineage().extended(0, 3, 4)
    mirror, _ = mirror_of(partition(10, lineage))
    mirror.partitions[other] = partition(10, lineage)
    mirror.partitions[other].place = other
    mirror._leaders |= {PLACE: 1, other: 1}
    while mirror.partitions[other].led.end < 12:
        await mirror.fetch_once()
    assert list(mirror._attachments) == [PLACE]
    await mirror.close()


async def test_records_that_arrive_late_leave_the_lineage_of_a_later_term_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition was attached again, with a truncation, while the source was requested for its epochs."""
    late, mirror, written = partition(10, Lineage().extended(0, 3, 4)), None, None
    mirror, written = mirror_of(late)
    now = partition(8, Lineage().extended(0, 3, 4).truncated(8))

    async def epoch_end(*_: object) -> EpochStart:
        mirror.partitions[PLACE] = now
        late.led.leadership = None
        return EpochStart(3, 10)

    monkeypatch.setattr(source, "epoch_end", epoch_end)
    with pytest.raises(PartitionNotLed):
        await mirror._mirror(late, source.Fetched(batch(10, 5), 11, 0), 10)
    assert written == []


async def test_a_slow_replica_gets_no_records_of_another_epoch_than_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source has truncated and grown again, and the mirror has not noticed yet."""
    epochs = [3, 3]

    async def fetch(*_: Any, **__: Any) -> dict[Any, Any]:
        data = batch(0, epochs[0], 5) + batch(5, epochs[1], 5) + batch(10, 9, 5)
        return {PLACE: source.Fetched(data, 15, 0)}

    monkeypatch.setattr(source, "fetch", fetch)
    one = partition(10, Lineage().extended(0, 3, 4))
    mirror, _ = mirror_of(one)
    mirror._leaders[PLACE] = 1
    older = mirror._older(PLACE)
    assert [each.base_offset for each in await older(0, 100)] == [0, 5, 10]
    epochs[1] = 6
    with pytest.raises(SourceDiverged):
        await older(0, 100)


@pytest.mark.parametrize(
    ("lineage", "unrecorded"),
    [
        (Lineage().extended(0, 3, 4).extended(5, 4, 6), None),
        (Lineage().extended(0, 3, 4), 5),
    ],
    ids=["complete", "its last entry was lost"],
)
async def test_a_lineage_that_is_older_than_the_mirror_truncates_nothing(
    lineage: Lineage, unrecorded: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_penstock.links` lost its last records: the mirror has an epoch that the lineage does not have."""
    stored = batch(0, 4, 5) + batch(5, 6, 5)

    async def fetch(_client: Client, _broker: int, positions: Any, **_: Any) -> dict[Any, Any]:
        rest = b"".join(bytes(one.raw) for one in batches(stored) if one.last_offset >= positions[PLACE])
        return {PLACE: source.Fetched(rest, 10, 0)}

    async def epoch_end(_client: Client, _place: TopicPartition, epoch: int) -> EpochStart:
        return EpochStart(epoch, 5)

    async def describe(*_: object) -> dict[str, Any]:
        return {"orders": SimpleNamespace(id=UUID(int=5))}

    monkeypatch.setattr(source, "fetch", fetch)
    monkeypatch.setattr(source, "epoch_end", epoch_end)
    monkeypatch.setattr(topics, "describe", describe)
    assert await unrecorded_at(NO_CLIENT, 1, PLACE, lineage, (0, 10)) == unrecorded
    mirror, written = mirror_of()
    if unrecorded is None:
        assert (await mirror._agreed(PLACE, lineage, 10))[1] == 5
    else:
        with pytest.raises(SourceUnusable, match="from offset 5 on is missing"):
            await mirror._agreed(PLACE, lineage, 10)
        assert written == []


class Shadow:
    """Leads every partition in an epoch that rises with each term, and knows what it serves."""

    def __init__(self, isr: tuple[int, ...] = STATE.isr) -> None:
        self.id = SHADOW
        self.served: dict[PartitionId, LedPartition] = {}
        self.image = SimpleNamespace(
            topics={"orders": KEY.topic_id}, partitions={KEY: replace(STATE, isr=isr)}
        )
        self.session = SimpleNamespace(fenced=False)
        self.is_stepping_down = False
        self.led = self.served.get

    def lead(self, one: LedPartition) -> None:
        self.served[one.id] = one
        one.begin_term(self.image.partitions[KEY])
        for replica in (1, 2):
            assert one.leadership is not None
            one.leadership.fetched(replica, min(one.end, 10), one.end, 0.0, broker_epoch=1)

    def forget(self, key: PartitionId) -> None:
        if (one := self.served.pop(key, None)) is not None:
            one.leadership = None

    @property
    def epoch(self) -> int:
        state: PartitionState = self.image.partitions[KEY]
        return state.leader_epoch

    async def new_epoch(self, *_: object) -> None:
        self.image.partitions[KEY] = replace(self.image.partitions[KEY], leader_epoch=self.epoch + 1)


class Source:
    """Its log of epoch 3 ends at `end`; every call in `failing` fails once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shadow: Shadow, end: int) -> None:
        self.end, self.failing = end, set[str]()
        for module, name in (
            (source, "epoch_end"), (mirror_module, "replica_range"), (mirror_module, "new_epoch_for"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, partial(self.call, name))
        self.calls = {
            "epoch_end": self.epoch_end,
            "replica_range": self.range,
            "new_epoch_for": shadow.new_epoch,
        }

        async def describe(*_: object) -> dict[str, Any]:
            return {"orders": SimpleNamespace(id=UUID(int=5))}

        async def nothing_unrecorded(*_: object) -> None:
            return None

        monkeypatch.setattr(topics, "describe", describe)
        monkeypatch.setattr(mirror_module, "unrecorded_at", nothing_unrecorded)

    async def call(self, name: str, *given: Any) -> Any:
        if name in self.failing:
            self.failing.discard(name)
            raise PartitionNotLed(partition=PLACE, epoch=-1)
        return await self.calls[name](*given)

    async def epoch_end(self, *_: object) -> EpochStart:
        return EpochStart(3, self.end)

    async def range(self, *_: object) -> tuple[int, int]:
        return 0, 10


@pytest.mark.parametrize("failing", ["new_epoch_for", "replica_range", "epoch_end"])
async def test_a_truncation_that_was_interrupted_is_completed_in_a_new_term(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source with an unclean election may fail the next call too. In the term of the records that must go,
    a slow replica's could be mistaken for those that follow."""
    shadow = Shadow()
    there = Source(monkeypatch, shadow, end=7)
    one = partition(10, Lineage().extended(0, 3, 4))
    mirror, written = mirror_of(one, shadow=shadow)
    shadow.lead(one.led)
    there.failing = {failing}

    await mirror._attach_again(PLACE)

    assert written == []
    assert not mirror.partitions[PLACE].is_due
    await mirror.regain()
    attached = mirror.partitions[PLACE]
    assert [lineage.truncating_to for lineage in written] == [7]
    assert (attached.led.end, attached.led.truncating, attached.failed) == (7, True, "")
    assert shadow.led(KEY) is attached.led
    assert shadow.epoch > STATE.leader_epoch
    await mirror.regain()
    assert mirror.partitions[PLACE] is attached, "attached once"


async def test_a_partition_that_cannot_be_compared_is_served_and_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a roll of the destination would empty its in-sync replicas."""
    shadow = Shadow()
    there = Source(monkeypatch, shadow, end=20)
    mirror, _ = mirror_of(shadow=shadow)
    mirror.lineages["orders/0"] = {"topic_id": str(KEY.topic_id), "entries": [[0, 3, 2]]}
    there.failing = {"epoch_end"}

    await mirror._attach_all([PLACE])

    one = mirror.partitions[PLACE]
    assert shadow.led(KEY) is one.led
    assert (one.is_ready, one.is_due, mirror.unattached) == (False, False, {})
    assert mirror.progress()["orders-0"]["failed"]
    await mirror.regain()
    assert mirror.partitions[PLACE] is one
    assert (one.is_ready, mirror.progress()["orders-0"]["failed"]) == (True, "")


async def test_a_partition_that_was_deleted_meanwhile_is_compared_no_more() -> None:
    """An error of another kind would end the link."""
    mirror, _ = mirror_of(shadow=Shadow())
    await mirror._verify(PLACE)
    one = partition(10, Lineage().extended(0, 3, 4))
    one.unverified = "the source does not respond"
    mirror.partitions[PLACE] = one
    mirror.shadow.image.partitions.clear()
    with pytest.raises(PartitionNotLed):
        await mirror._verify(PLACE)


async def test_a_partition_whose_real_replicas_are_all_away_stays_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No real broker can lead in between, and none could be in sync again if the shadow stopped serving."""
    shadow = Shadow(isr=(SHADOW,))
    Source(monkeypatch, shadow, end=7)
    one = partition(10, Lineage().extended(0, 3, 4))
    mirror, _ = mirror_of(one, shadow=shadow)
    shadow.lead(one.led)
    await mirror._attach_again(PLACE)
    assert shadow.led(KEY) is one.led is mirror.partitions[PLACE].led


async def test_what_a_replica_that_was_away_has_beyond_the_others_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shadow = Shadow()
    Source(monkeypatch, shadow, end=20)
    mirror, _ = mirror_of(shadow=shadow)
    mirror.lineages["orders/0"] = {"topic_id": str(KEY.topic_id), "entries": [[0, 3, 2]]}
    await mirror._attach(PLACE)
    led = mirror.partitions[PLACE].led
    led.append([RawBatch(10, 11, batch(10, 3, 2))], STATE.leader_epoch)
    assert fetch_response(led.view(), FollowerFetch(3, STATE.leader_epoch, 13, 2)) == Diverge(
        EpochStart(2, 10)
    )


@pytest.mark.parametrize(
    ("values", "first_kept", "log_bytes", "explained"),
    [
        ({"retention.ms": "60000"}, 50, 0, True),
        ({"retention.ms": "60000"}, None, 0, True),
        ({"retention.ms": "60000"}, 49, 0, False),
        ({"retention.ms": "-1"}, 0, 1 << 40, False),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, 0, 1000, True),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, 0, 999, False),
        ({"retention.ms": "60000", "cleanup.policy": "compact"}, None, 0, False),
        ({"retention.ms": "60000", "cleanup.policy": "compact,delete"}, None, 0, True),
    ],
)
def test_a_log_start_is_explained_by_age_or_by_size(
    values: dict[str, str], first_kept: int | None, log_bytes: int, *, explained: bool
) -> None:
    given = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"} | values
    entries = {name: cast("Any", SimpleNamespace(value=value)) for name, value in given.items()}
    reason = unexplained_rise(retention_of(entries), 50, first_kept, log_bytes)
    assert (reason == "") is explained


def test_clocks_may_differ_by_five_minutes() -> None:
    assert Retention(True, 86_400_000, -1).kept_since_ms(100_000_000) == 13_900_000
    assert Retention(True, 60_000, -1).kept_since_ms(100_000_000) == 99_970_000


async def test_a_held_log_start_stops_the_partition_until_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = ["not explained", "", "not explained"]

    async def check_rise(*_: object) -> str:
        return reasons.pop(0)

    monkeypatch.setattr(mirror_module, "check_rise", check_rise)
    monkeypatch.setattr(mirror_module, "START_CHECK_SECONDS", 0.0)
    one = partition(10, Lineage().extended(0, 3, 4))
    mirror, _ = mirror_of(one, hold_starts=True)
    await mirror._follow_start(one, 4)
    assert (one.led.start, one.failed, one.is_due) == (0, "not explained", False)
    mirror.accept_starts()
    await mirror._follow_start(one, 4)
    assert (one.led.start, one.failed, one.is_due) == (4, "", True)
    await mirror._follow_start(one, 6)
    assert (one.led.start, len(reasons)) == (6, 1), "explained"
    await mirror._follow_start(one, 8)
    assert (one.led.start, one.failed) == (6, "not explained"), "what was accepted is not what follows"
    assert reasons == []


async def test_records_are_young_by_the_time_of_a_real_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[int, int]] = []
    offsets: dict[int, int | None] = {1: None, 2: 7}

    async def end_on(replica: int, *_: object, timestamp: int) -> int | None:
        requested.append((replica, timestamp))
        return offsets[replica]

    async def described(_: Client, resources: Sequence[Any], **__: object) -> dict[Any, Any]:
        values = {"cleanup.policy": "delete", "retention.ms": "600000", "retention.bytes": "-1"}
        return {resources[0]: {name: SimpleNamespace(value=value) for name, value in values.items()}}

    monkeypatch.setattr(configs, "describe", described)
    one = partition(10, Lineage().extended(0, 3, 4))
    shadow: Any = Shadow()
    shadow.end_on = end_on
    assert await check_rise(NO_CLIENT, 1, shadow, one, 7) == ""
    assert "starts at 8" in await check_rise(NO_CLIENT, 1, shadow, one, 8)
    assert {replica for replica, _ in requested} == {1, 2}, "a replica that does not respond is passed over"
    offsets[2] = None
    with pytest.raises(PartitionNotLed):
        await check_rise(NO_CLIENT, 1, shadow, one, 8)


async def test_a_topic_that_took_the_name_of_a_deleted_mirror_is_left_alone() -> None:
    others = {0: PartitionState((1, 2), (1, 2), 1, 0, 0)}
    image = SimpleNamespace(partitions_of=lambda _: others)
    mirror, _ = mirror_of(shadow=SimpleNamespace(id=SHADOW, image=image))
    described = SimpleNamespace(id=UUID(int=5), partitions=(None, None))
    with pytest.raises(MirrorTopicTaken):
        await mirror.add_topic("orders", cast("Any", described))


async def test_a_partition_that_cannot_be_attached_is_shown_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = True

    async def attach(_: Mirror, place: TopicPartition) -> None:
        if failing:
            raise SourceUnusable(reason="created again")

    monkeypatch.setattr(Mirror, "_attach", attach)
    mirror, _ = mirror_of()
    await mirror._attach_all([PLACE])
    row = mirror.progress()["orders-0"]
    assert (row["lag"], "created again" in row["failed"]) == (None, True)
    failing = False
    await mirror._attach_all([PLACE])
    assert mirror.progress() == {}
