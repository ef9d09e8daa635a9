"""A topic whose history is in the store only reads as if it were on the brokers' disks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from penstock.wire.digest import BatchDigest, spans
from tests.harness.tiering import (
    FAST,
    create_tiered,
    produce,
    read_kafka_python,
    read_librdkafka,
    segments,
    wait_tiered,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

RECORDS = 1200  # of 10 kB: about twelve segments


def test_records_read_back_from_the_store(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str], tmp_path: Path
) -> None:
    fleet = make_fleet(combined=True, brokers=1, zones=["a"], config=FAST)
    topic = unique("orders")
    create_tiered(fleet, topic)
    produce(fleet, topic, RECORDS, transactional=True)
    before = {i: read_librdkafka(fleet, topic, isolation=i) for i in ("read_uncommitted", "read_committed")}

    wait_tiered(fleet, topic, RECORDS * 3 // 4)

    for isolation, expected in before.items():
        assert read_librdkafka(fleet, topic, isolation=isolation) == expected
        assert read_kafka_python(fleet, topic, isolation=isolation) == expected
    assert len(before["read_uncommitted"]) > len(before["read_committed"]) > RECORDS // 3

    # What is stored is the segment itself, and its digest is the one that Python computes.
    store = fleet.node("b1").layout.home / "tier"
    stored = segments(store)
    assert stored[0]["base_offset"] == 0
    for manifest, following in pairwise(stored):
        assert following["base_offset"] == manifest["end_offset"] + 1
    for manifest in stored:
        name = f"{manifest['base_offset']:020d}-{manifest['segment_id']}.log"
        data = next(store.rglob(name)).read_bytes()
        assert BatchDigest(spans(data, verify=True)).hexdigest() == manifest["batch_digest"]
