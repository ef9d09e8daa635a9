"""A broker dies at every step of a copy and of a delete, starts again, and nothing is lost or left open."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.harness.fleet import wait_for, wait_gone
from tests.harness.tiering import FAST, create_tiered, produce, read_librdkafka, segments, wait_tiered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

COPY_POINTS = ("tier.copy.begun", "tier.copy.data", "tier.copy.indexes", "tier.copy.manifest")
DELETE_POINT = "tier.delete.tombstoned"
EACH = 300  # records of 10 kB: three segments


def restart(fleet: Fleet, fault: str | None) -> None:
    fleet.node("b1").environment = {"PENSTOCK_FAULT": fault} if fault else None
    fleet.start_node("b1")


def die_at(fleet: Fleet, fault: str, cause: Callable[[], None]) -> None:
    """The broker runs with a fault armed until `cause` makes it die there, then without."""
    fleet.stop_node("b1")
    restart(fleet, fault)
    running = threading.Thread(target=cause)
    running.start()
    wait_gone(fleet.node("b1"))
    restart(fleet, None)
    running.join(120)
    assert not running.is_alive()


def test_a_broker_that_dies_in_a_copy_or_a_delete_continues(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str]
) -> None:
    fleet = make_fleet(combined=True, brokers=1, zones=["a"], config=FAST)
    topic = unique("orders")
    create_tiered(fleet, topic)
    store = fleet.node("b1").layout.home / "tier"

    for number, point in enumerate(COPY_POINTS):
        die_at(fleet, point, partial(produce, fleet, topic, EACH, first=number * EACH))

    count = len(COPY_POINTS) * EACH
    wait_tiered(fleet, topic, count * 3 // 4)
    content = read_librdkafka(fleet, topic)
    assert [offset for offset, _ in content] == list(range(count))
    assert len({crc for _, crc in content}) == count
    _assert_covered(store, count * 3 // 4)

    def purge() -> None:
        admin = AdminClient(fleet.client_config())
        for future in admin.delete_records([TopicPartition(topic, 0, EACH)]).values():
            future.result(120)

    die_at(fleet, DELETE_POINT, purge)
    gone = [m for m in segments(store) if m["end_offset"] < EACH]
    wait_for(
        lambda: all(list(store.rglob(f"*{m['segment_id']}.gone")) for m in gone), what="tombstones of all"
    )
    assert all(list(store.rglob(f"*{m['segment_id']}.log")) for m in gone)  # the data stays
    assert read_librdkafka(fleet, topic, start=EACH) == content[EACH:]


def _assert_covered(store: Path, end: int) -> None:
    position = 0
    for manifest in segments(store):
        assert manifest["base_offset"] <= position, "a gap between segments in the store"
        position = max(position, manifest["end_offset"] + 1)
    assert position >= end
