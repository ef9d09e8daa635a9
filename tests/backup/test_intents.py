"""A restore records what looks like a loss before it does it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from penstock.audit.topic_ids import id_text
from penstock.backup import restored_topic
from penstock.backup.replay import Replay
from penstock.backup.restore_steps import Step
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionId
from penstock.link import mirror_topics
from penstock.model.durability import Deleted, Intent
from tests.backup.test_failures import restorer
from tests.tier.segments import TOPIC_ID

if TYPE_CHECKING:
    import pytest

    from penstock.audit.intents import Planned

ID = UUID(int=9)


class Intents:
    """Records intents, and what else happens, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def record(self, planned: list[Planned]) -> None:
        self.calls += planned


async def test_a_restored_log_starts_where_its_backup_does_after_its_intent() -> None:
    recorded = Intents()
    key = PartitionId(ID, 0)
    state = SimpleNamespace(leader=900_000_000, isr=(1,), leader_epoch=3)

    async def end_on(*_: object, **__: object) -> int:
        return 0

    shadow: Any = SimpleNamespace(
        id=900_000_000, forget=lambda _: None, end_on=end_on, lead=recorded.calls.append,
        image=SimpleNamespace(
            topics={"orders": ID}, partitions={key: state}, partitions_of=lambda _: {0: state}
        ),
    )  # fmt: skip
    archive: Any = SimpleNamespace(batches=lambda *_: None)
    nothing: Any = None
    replay = Replay("r1", shadow, archive, nothing, nothing, lambda _: {}, nothing, cast("Any", recorded))

    await replay.lead(TopicPartition("orders", 0), cast("Any", SimpleNamespace(start=40, end=90)))

    intent, led = recorded.calls
    assert intent == (f"named/partition/{id_text(ID)}/0", Deleted(40, "restore r1"))
    assert (led.start, led.end) == (40, 40)


async def test_a_topic_is_created_again_and_configured_only_after_its_intents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Intents()
    one = restorer()
    one._intents = cast("Any", recorded)
    one.restore = "r1"
    one.document = {
        "step": Step.REGISTERED, "target": "orders", "topic": "archived", "topic_id": TOPIC_ID,
        "configs": {"retention.ms": "5"}, "until_ms": None, "report": {},
    }  # fmt: skip

    async def done(*_: object) -> None:
        return None

    async def create(*_: object) -> UUID:
        recorded.calls.append("created")
        return ID

    async def set_configs(*_: object) -> None:
        recorded.calls.append("configured")

    monkeypatch.setattr(mirror_topics, "close", done)
    monkeypatch.setattr(restored_topic, "create_led_topic", create)
    monkeypatch.setattr(restored_topic, "set_configs", set_configs)
    brokers = {broker: SimpleNamespace(rack="", fenced=False) for broker in (1, 2, 3)}
    shadow: Any = SimpleNamespace(id=900_000_000, image=SimpleNamespace(brokers=brokers))
    await one._join(shadow, [0])
    await one._configure({})

    assert recorded.calls == [
        ("named/orders", Intent("topic-restore", "restore r1")), "created",
        ("named/orders", Intent("config", "restore r1")), "configured",
    ]  # fmt: skip
