"""A lake table as a view: equal to the replayed log at its position."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from penstock.model.errors.olep import TokenForeign
from penstock.model.errors.views import SnapshotUnavailable, ViewMissing
from penstock.olep.event import request
from penstock.olep.log import Appender, create_log, end_position, open_log
from penstock.olep.position import Position
from penstock.olep.table import Put, Table
from penstock.olep.view.projection import Projection
from penstock.olep.view.runner import ViewRunner, catch_up
from penstock.olep.view.stores.memory import MemoryViews
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.lake.columns import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.olep.application import State
    from penstock.olep.event import Event
    from penstock.olep.log import Log
    from penstock.olep.table import Effect
    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark


class Added(NamedTuple):
    offset: int
    id: str
    type: str
    n: int


ADDED = Table("added", Added, append_only=True)


def _add_row(state: State, event: Event) -> Iterator[Effect]:
    yield Put(ADDED, Added(event.offset, event.id, event.type, event.payload["n"]))


EVERYTHING = Projection("everything", _add_row, (ADDED,), {"added": 1})


def events_to_table(topic: str) -> Job:
    payload = Column("payload", "struct<n: bigint>")
    columns = (Column("id", "string"), Column("type", "string"), payload)
    return Job("events", "events to a table", Source(topic, columns=columns), Sink("olep.events"))


def add(log: Log, first: int, last: int) -> None:
    appender = Appender(log)
    for n in range(first, last):
        appender.append(f"key-{n % 7}", request(f"r-{n}", "added", {"n": n}, time=n))


def test_a_table_equals_the_replayed_log_at_its_position_and_at_earlier_ones(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = unique("events")
    create_log(dict(harness.client), topic, 3)
    log, job = open_log(dict(harness.client), topic), events_to_table(topic)
    view = harness.runner().view(job)
    with pytest.raises(ViewMissing):
        view.position()
    add(log, 0, 40)
    harness.run(job)
    then = view.position()
    add(log, 40, 70)
    harness.run(job)
    memory = MemoryViews()
    catch_up(ViewRunner(EVERYTHING, log, memory), threading.Event(), until=view.position())
    replayed = memory.open(EVERYTHING, log.topic_id, 3, generation=1)

    assert (view.position(), Position.parse(view.position().token())) == (
        end_position(log),
        end_position(log),
    )
    assert view.position().covers(then)
    for position in (None, then):
        with view.reading(position) as lake, replayed.reading(position) as expected:
            rows = lake.frame.select("kafka_partition", "kafka_offset", "id", "type", "payload.n").collect()
            assert sorted((row[0], tuple(row[1:])) for row in rows) == sorted(
                (partition, tuple(row)) for partition, row in expected.rows(ADDED)
            )
            assert lake.position == expected.position
    add(log, 70, 71)
    with pytest.raises(SnapshotUnavailable), view.reading(end_position(log)):
        pass
    with pytest.raises(TokenForeign), view.reading(Position({"AAAAAAAAAAAAAAAAAAAAAA": {0: 1}})):
        pass
    upserted = replace(job, sink=Sink("olep.events", Mode.UPSERT, ("id",)))
    with pytest.raises(SnapshotUnavailable), harness.runner().view(upserted).reading(then):
        pass
