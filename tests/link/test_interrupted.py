"""A process of a link that is killed, suspended or cancelled between two steps: nothing is lost."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.kafka.admin import group_offsets, groups, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import commands, mirror_topics, promotion, source
from penstock.link.group_sync import MirrorRange
from penstock.link.metadata_service import MetadataService
from penstock.link.runner import FRESH, OWNED_SECONDS_MAX, LinkRunner
from penstock.link.states import State, Step, steps_left
from penstock.link.store import LinkStore
from penstock.model.errors.link import (
    GroupsNotCopied,
    LinkNotDrained,
    LinkStateConflict,
    LinkStateLost,
    LinkUnknown,
    SourceUnusable,
)
from penstock.model.errors.wire import KafkaDenied, KafkaMissing, ProducerFenced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.link.mirror import Mirror

NO_CLIENT = cast("Client", None)
PLACE = TopicPartition("orders", 0)
IN_SYNC = SimpleNamespace(failed="", is_ready=True, led=SimpleNamespace(high_watermark=10))


def mirror_with(partitions: Mapping[TopicPartition, Any]) -> Mirror:
    async def burn() -> None:
        return None

    ids = SimpleNamespace(below=(), burn=burn)
    return cast("Mirror", SimpleNamespace(client=None, producer_ids=ids, partitions=partitions))


def runner_with(**status: Any) -> tuple[LinkRunner, list[dict[str, Any]]]:
    """A runner, and what it commits to the store."""
    runner = LinkRunner("east", NO_CLIENT, NO_CLIENT, NO_CLIENT, cast("Any", None))
    runner.status = FRESH | status
    committed: list[dict[str, Any]] = []

    async def put(_key: str, document: dict[str, Any]) -> None:
        committed.append(document)

    runner._store = cast("LinkStore", SimpleNamespace(put=put))
    return runner, committed


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A source with the two partitions of `orders`, whose logs end at 10; and how often it was closed."""
    calls: list[list[str]] = []

    async def describe(_: Client, names: Sequence[str]) -> dict[str, Any]:
        parts = (SimpleNamespace(index=0), SimpleNamespace(index=1))
        return {name: SimpleNamespace(name=name, partitions=parts) for name in names}

    async def log_ends(_: object, places: list[TopicPartition]) -> dict[TopicPartition, int | None]:
        return dict.fromkeys(places, 10)

    async def fence_source(_: Client, names: list[str]) -> None:
        calls.append(names)

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(source, "log_ends", log_ends)
    monkeypatch.setattr(promotion, "fence_source", fence_source)
    monkeypatch.setattr(promotion, "LOOK_SECONDS", 0.0)
    return calls


async def test_a_promotion_waits_for_partitions_that_a_successor_has_not_attached_yet(
    closed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process died after the source was closed. Its successor begins without any partition."""
    partitions: dict[TopicPartition, Any] = {}
    draining = asyncio.create_task(promotion.drain(mirror_with(partitions), ["orders"]))
    for index in (0, 1):
        await asyncio.sleep(0.01)
        assert not draining.done(), f"drained with {index} of 2 partitions"
        partitions[TopicPartition("orders", index)] = IN_SYNC
    await draining
    assert len(closed) >= promotion.DRAINED_LOOKS, "the source is closed at the last look too"
    monkeypatch.setattr(promotion, "DRAIN_SECONDS_MAX", 0.0)
    del partitions[PLACE]
    with pytest.raises(LinkNotDrained, match="1 partitions"):
        await promotion.drain(mirror_with(partitions), ["orders"])


@pytest.mark.parametrize(
    "one",
    [
        SimpleNamespace(failed="damaged", is_ready=True, led=SimpleNamespace(high_watermark=10)),
        SimpleNamespace(failed="", is_ready=False, led=SimpleNamespace(high_watermark=10)),
        SimpleNamespace(failed="", is_ready=True, led=SimpleNamespace(high_watermark=9)),
    ],
    ids=["failed", "led by a real broker", "behind"],
)
@pytest.mark.usefixtures("closed")
async def test_a_partition_that_may_lack_records_is_not_drained(
    one: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "DRAIN_SECONDS_MAX", 0.0)
    with pytest.raises(LinkNotDrained, match="1 partitions"):
        await promotion.drain(mirror_with({PLACE: one, TopicPartition("orders", 1): IN_SYNC}), ["orders"])


async def test_a_cancelled_promotion_forgets_the_closed_source_before_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed in between, the successor would drain and promote while clients write to the source."""
    runner, committed = runner_with(state=State.PROMOTING, step=Step.FENCED, topics={"orders": "id"})
    when_open: list[Any] = []

    async def open_(*_: object) -> None:
        when_open.append(committed[-1] if committed else runner.status)

    async def promoting() -> None:
        raise LinkNotDrained(count=1, seconds=1.0)

    monkeypatch.setattr(mirror_topics, "open_", open_)
    task = asyncio.create_task(promoting())
    await asyncio.wait([task])
    assert not await runner._promoted(task)
    left = steps_left(State(when_open[0]["state"]), when_open[0]["step"])
    assert left[0] is Step.FENCED, "a successor closes the source again"
    assert (runner.state, runner.status["step"]) == (State.MIRRORING, None)


async def test_a_topic_is_not_added_once_a_promotion_has_begun() -> None:
    """It would not be closed on the source, and what is written there would be lost."""
    runner, committed = runner_with(state=State.MIRRORING)
    async with runner._writing:  # the promotion is being committed
        adding = asyncio.create_task(runner._record_topic("late", "id"))
        await asyncio.sleep(0)
        runner.status["state"] = State.PROMOTING
    with pytest.raises(LinkStateConflict):
        await adding
    assert committed == []


async def test_a_write_is_finished_although_its_caller_is_cancelled() -> None:
    """Half a transaction would make a broker take the next record for a repetition, and drop it."""
    log: list[str] = []
    go_on = asyncio.Event()

    async def commit(records: Sequence[Any]) -> None:
        log.append(f"begin {records[0].key.decode()}")
        await go_on.wait()
        log.append(f"end {records[0].key.decode()}")

    store = LinkStore(NO_CLIENT)
    store._producer = cast("Any", SimpleNamespace(commit=commit))
    first = asyncio.create_task(store.put("status/east", {"state": "mirroring"}))
    await asyncio.sleep(0)
    second = asyncio.create_task(store.put("lineage/east/orders/0", {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert log == ["begin status/east", "end status/east", "begin lineage/east/orders/0",
                   "end lineage/east/orders/0"]  # fmt: skip
    assert store.named("status") == {"east": {"state": "mirroring"}}


async def test_nothing_is_written_after_a_write_whose_outcome_is_unknown() -> None:
    attempts: list[object] = []

    async def commit(records: object) -> None:
        attempts.append(records)
        raise ProducerFenced(transactional_id="_penstock.link.east", api="EndTxn")

    store = LinkStore(NO_CLIENT)
    store._producer = cast("Any", SimpleNamespace(commit=commit))
    for _ in range(2):
        with pytest.raises(LinkStateLost):
            await store.put("status/east", {})
    assert len(attempts) == 1


@pytest.fixture
def billing(monkeypatch: pytest.MonkeyPatch) -> list[dict[TopicPartition, int]]:
    """A group that has read 40 records of the source; and what is committed for it on the destination."""
    commits: list[dict[TopicPartition, int]] = []

    async def list_all(client: Client) -> dict[str, Any]:
        return (
            {"billing": SimpleNamespace(type=GroupType.CLASSIC, state="Empty")}
            if client is not NO_CLIENT
            else {}
        )

    async def committed(*_: object) -> dict[TopicPartition, CommittedOffset]:
        return {PLACE: CommittedOffset(40)}

    async def commit(
        _: Client, _group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, None]:
        commits.append({place: one.offset for place, one in offsets.items()})
        return {}

    monkeypatch.setattr(groups, "list_all", list_all)
    monkeypatch.setattr(group_offsets, "committed", committed)
    monkeypatch.setattr(group_offsets, "commit", commit)
    return commits


def service(confirm: Any) -> MetadataService:
    async def save(_: object) -> None:
        return None

    return MetadataService(cast("Client", "source"), NO_CLIENT, {}, save, save, confirm)


async def test_a_process_that_was_suspended_commits_no_group_offsets(
    billing: list[dict[TopicPartition, int]],
) -> None:
    """Its successor may have promoted the link: the group has read on, and would read records again."""
    runner, committed = runner_with(state=State.MIRRORING)
    fenced = True

    async def put(_key: str, document: dict[str, Any]) -> None:
        if fenced:
            raise LinkStateLost(link="east", reason="fenced")
        committed.append(document)

    runner._store = cast("LinkStore", SimpleNamespace(put=put))
    metadata = service(runner._confirm_ownership)
    runner._owned_at = time.monotonic() - OWNED_SECONDS_MAX - 1
    with pytest.raises(LinkStateLost):
        await metadata.sync_groups({PLACE: MirrorRange(0, 100)})
    assert billing == []
    fenced = False
    assert await metadata.sync_groups({PLACE: MirrorRange(0, 100)}) == {}
    assert (billing, len(committed)) == ([{PLACE: 40}], 1)
    await metadata.sync_groups({PLACE: MirrorRange(0, 100)})
    assert len(committed) == 1, "what was confirmed lately is not confirmed again"


async def test_a_promotion_is_not_continued_while_a_group_could_not_be_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [{"group billing": "COORDINATOR_LOAD_IN_PROGRESS"}, {}]

    async def sync() -> dict[str, str]:
        return failures.pop(0) if failures else {"group billing": "denied"}

    monkeypatch.setattr(promotion, "LOOK_SECONDS", 0.0)
    await promotion.sync_groups(sync)
    assert failures == []
    monkeypatch.setattr(promotion, "GROUPS_SECONDS_MAX", 0.0)
    with pytest.raises(GroupsNotCopied, match="billing: denied"):
        await promotion.sync_groups(sync)


@pytest.mark.parametrize(
    ("state_here", "name", "read", "refused"),
    [
        ("Stable", "billing", "orders", True),
        ("Empty", "billing", "orders", False),
        ("Stable", "billing", "other", False),
        ("Stable", "_penstock.control", "orders", False),
    ],
    ids=["members on both sides", "none here", "another topic", "of the platform"],
)
async def test_a_group_with_members_on_both_sides_prevents_a_promotion(
    monkeypatch: pytest.MonkeyPatch, state_here: str, name: str, read: str, *, refused: bool
) -> None:
    """Its offsets are not copied, so it would read again or skip. The source stays open."""

    async def list_all(client: Client) -> dict[str, Any]:
        state = state_here if client is NO_CLIENT else "Stable"
        return {name: SimpleNamespace(type=GroupType.CONSUMER, state=state)}

    async def committed(*_: object) -> dict[TopicPartition, CommittedOffset]:
        return {TopicPartition(read, 0): CommittedOffset(40)}

    fenced: list[object] = []

    async def fence_source(*given: object) -> None:
        fenced.append(given)

    async def drain(*_: object) -> None:
        raise LinkNotDrained(count=1, seconds=0)

    monkeypatch.setattr(groups, "list_all", list_all)
    monkeypatch.setattr(group_offsets, "committed", committed)
    monkeypatch.setattr(promotion, "fence_source", fence_source)
    monkeypatch.setattr(promotion, "drain", drain)
    runner, _ = runner_with(state=State.PROMOTING, topics={"orders": "id"})
    runner._source = cast("Client", "source")
    with pytest.raises(GroupsNotCopied if refused else LinkNotDrained):
        await runner._promote(cast("Mirror", None))
    assert bool(fenced) is not refused


async def test_a_process_whose_link_was_deleted_ends() -> None:
    runner, _ = runner_with(state=State.CREATING)
    store = LinkStore(NO_CLIENT)

    async def refresh() -> None:
        return None

    store.refresh = refresh  # type: ignore[method-assign]  # no broker
    store.documents |= {"definition/east": {}, "request/east": {"id": 5, "action": "pause"}}
    runner._store = store
    assert (await runner._next_request() or {})["action"] == "pause"
    del store.documents["definition/east"]
    with pytest.raises(LinkUnknown, match="none"):
        await runner._next_request()


async def test_a_new_link_does_not_continue_a_deleted_one_of_its_name() -> None:
    """Its process wrote the state once more after the link was deleted."""
    store = LinkStore(NO_CLIENT)
    written: list[tuple[str, Any]] = []

    async def put(key: str, document: Any) -> None:
        written.append((key, document))

    store.put = put  # type: ignore[method-assign]  # no broker
    store.documents |= {"status/east": {"state": "mirroring"}, "status/easter": {}, "lineage/east/a/0": {}}
    await commands._forget(store, "east")
    assert dict(written) == {"status/east": None, "lineage/east/a/0": None}


async def test_another_cluster_at_the_address_of_the_source_deletes_no_mirror() -> None:
    runner, committed = runner_with(state=State.MIRRORING)
    cluster_ids = ["first"]

    async def cluster(*, refresh: bool) -> Any:
        assert refresh
        return SimpleNamespace(id=cluster_ids[0])

    runner._source = cast("Client", SimpleNamespace(cluster=cluster))
    await runner._check_source()
    await runner._check_source()
    assert [one["source_cluster"] for one in committed] == ["first"]
    cluster_ids[0] = "second"
    with pytest.raises(SourceUnusable, match="second, and this link mirrors first"):
        await runner._check_source()


async def test_a_topic_that_the_link_may_not_see_any_more_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in no list, like one that was deleted; asked by name, the source responds otherwise."""
    runner, _ = runner_with(state=State.MIRRORING, topics={"orders": "id"})
    runner._definition = {"follow_deletes": True}
    failed: list[str] = []
    codes: list[Any] = [KafkaDenied]

    async def describe(_: Client, names: Sequence[str]) -> dict[str, Any]:
        error = {"api": "Metadata", "subject": "", "detail": "", "error": "", "error_code": 1}
        return {name: codes[0](**error) for name in names}

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(mirror_topics, "open_", describe)
    fakes = SimpleNamespace(
        fail_topic=lambda name, _: failed.append(name), forget_topic=lambda _: None,
        shadow=SimpleNamespace(image=SimpleNamespace(topics={})),
    )  # fmt: skip
    for _ in range(2):
        await runner._follow_deletion(cast("Mirror", fakes), "orders")
    with pytest.raises(KafkaDenied):
        await runner._follow_deletion(cast("Mirror", fakes), "orders")
    assert failed == []
    codes[0] = KafkaMissing
    await runner._follow_deletion(cast("Mirror", fakes), "orders")
    assert (failed, runner.status["topics"]) == (["orders"], {})
