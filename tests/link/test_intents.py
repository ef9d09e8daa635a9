"""A link records what it is about to delete or weaken before it does: the audit would report a loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from penstock.audit.topic_ids import id_text
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.configs import Entry, Source
from penstock.kafka.broker_errors import broker_error
from penstock.kafka.metadata_image import PartitionId
from penstock.link import mirror_topics, source
from penstock.link.metadata_service import MetadataService
from penstock.link.mirror import Mirror
from penstock.link.runner import DELETED_ROUNDS, LinkRunner
from penstock.model.durability import Deleted, Intent
from penstock.wire.error_codes import Code
from tests.link.test_truncation import NO_CLIENT, PLACE, led_at, lineage, mirror_of

if TYPE_CHECKING:
    import pytest

    from penstock.audit.intents import Planned

ID = UUID(int=9)  # of the topic of `led_at`
SUBJECT = f"named/partition/{id_text(ID)}/0"


class Intents:
    """Records intents, and what else happens, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails = False

    async def record(self, planned: list[Planned]) -> None:
        if self.fails:
            raise broker_error("Produce", 7, None, "partition _penstock.durability-0")
        self.calls += planned


async def test_a_mirror_follows_the_log_start_only_after_its_intent_is_committed() -> None:
    mirror, one = mirror_of(led_at(100), lineage((0, 3, 4)))
    recorded = Intents()
    mirror.intents = cast("Any", recorded)
    fetched = source.Fetched(b"", 100, 40)

    recorded.fails = True
    await mirror._mirror(one, fetched, 100)
    assert one.led.start == 0, "nothing is deleted without an intent"
    recorded.fails = False
    await mirror._mirror(one, fetched, 100)
    await mirror._mirror(one, fetched, 100)

    assert one.led.start == 40
    assert recorded.calls == [(SUBJECT, Deleted(40, "link east"))]


async def test_a_new_mirror_starts_where_its_source_does_after_its_intent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Intents()
    key = PartitionId(ID, 0)
    state = SimpleNamespace(leader=1, leader_epoch=0, isr=(1,))

    async def end_on(*_: object, **__: object) -> int:
        return 0

    async def regain(*_: object) -> None:
        return None

    async def log_range(*_: object) -> tuple[int, int]:
        return 40, 100

    shadow: Any = SimpleNamespace(
        id=900_000_000, image=SimpleNamespace(topics={"orders": ID}, partitions={key: state}),
        forget=lambda _: None, led=lambda _: None, regain=regain, end_on=end_on, lead=recorded.calls.append,
    )  # fmt: skip
    monkeypatch.setattr(source, "log_range", log_range)
    nothing: Any = None
    mirror = Mirror("east", shadow, NO_CLIENT, NO_CLIENT, {}, nothing, nothing, cast("Any", recorded))
    mirror.topic_ids["orders"] = "source"

    await mirror._attach(PLACE)

    intent, led = recorded.calls
    assert intent == (SUBJECT, Deleted(40, "link east"))
    assert (led.start, led.end) == (40, 40)


async def test_configs_are_copied_only_after_their_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    async def describe(client: object, resources: list[configs.Resource]) -> dict[Any, Any]:
        value = "5" if client == "source" else "9"
        entry = Entry("retention.ms", value, Source.TOPIC, read_only=False, sensitive=False)
        return {one: {"retention.ms": entry} for one in resources}

    async def alter(_: object, altered: dict[configs.Resource, object]) -> dict[Any, None]:
        calls.append("altered")
        return dict.fromkeys(altered)

    async def intend(names: object) -> None:
        calls.append(names)

    monkeypatch.setattr(configs, "describe", describe)
    monkeypatch.setattr(configs, "alter", alter)

    async def confirm() -> None:
        pass

    source_, brokers, nothing = cast("Any", "source"), cast("Any", "brokers"), cast("Any", None)

    await MetadataService(source_, brokers, {}, nothing, intend, confirm)._sync_configs(["orders"])

    assert calls == [["orders"], "altered"]


async def test_a_mirror_is_deleted_with_its_source_only_after_its_intent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Any = None
    runner = LinkRunner("east", nothing, nothing, nothing, nothing)
    recorded = Intents()
    runner._intents = cast("Any", recorded)
    runner._definition = {"follow_deletes": True}
    runner.status = {"topics": {"orders": "source"}}
    mirror: Any = SimpleNamespace(
        fail_topic=lambda *_: None, forget_topic=lambda _: None,
        shadow=SimpleNamespace(image=SimpleNamespace(topics={"orders": ID})),
    )  # fmt: skip

    async def describe(_: object, names: list[str]) -> dict[str, Any]:
        return {name: broker_error("Metadata", Code.UNKNOWN_TOPIC_OR_PARTITION, None, name) for name in names}

    async def delete(_: object, *, ids: list[UUID]) -> dict[UUID, None]:
        recorded.calls += ids
        return dict.fromkeys(ids)

    async def done(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(topics, "delete", delete)
    monkeypatch.setattr(mirror_topics, "open_", done)
    monkeypatch.setattr(runner, "_save", done)
    for _ in range(DELETED_ROUNDS):
        await runner._follow_deletion(mirror, "orders")

    assert recorded.calls == [("named/orders", Intent("topic-delete", "link east")), ID]
