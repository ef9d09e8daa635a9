"""Appending a topic to a table: every record once, with its offsets in each commit."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.job import Job, Sink, Source
from penstock.pipeline.lake.columns import Column
from penstock.pipeline.lake.ledger import Commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark
COLUMNS = (Column("id", "bigint"), Column("at", "timestamp_ms"), Column("note", "string"))


def orders(topic: str, **source: Any) -> Job:
    return Job(
        "orders",
        "orders to a table",
        Source(topic, columns=COLUMNS, **source),
        Sink("shop.orders"),
    )


def order(number: int) -> bytes:
    return json.dumps({"id": number, "at": 1_700_000_000_000 + number, "note": f"n{number}"}).encode()


def test_every_record_is_in_the_table_once_over_several_runs(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    job = orders(harness.make_topic(unique("orders")), batch_offsets_max=60)
    harness.send(job.source.topic, [order(n) for n in range(100)])
    first = harness.run(job)
    harness.send(job.source.topic, [order(n) for n in range(100, 150)])

    second = harness.run(job)

    assert (first.records, second.records, second.lag) == (100, 50, 0)
    assert first.batches == 2
    assert sorted(n for (n,) in harness.rows("shop.orders", "id")) == list(range(150))
    commits = [Commit.of(s) for _, s in harness.runner().tables.snapshots("shop.orders")]
    assert [c.batch for c in commits if c] == [2, 1, 0]
    assert all(
        later.start == earlier.end for later, earlier in itertools.pairwise(commits) if later and earlier
    )
