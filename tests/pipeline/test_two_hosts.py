"""Two hosts that run the same job on one table never write a range twice, whatever their locks and state."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from penstock.model import fault_points
from penstock.model.errors.pipeline import PositionMoved, TableContended
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.lake import commit
from penstock.pipeline.lake.columns import Column
from penstock.pipeline.lake.maintenance import maintain
from penstock.pipeline.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark
RECORDS = 80
JOB = Job(
    "orders", "", Source("", columns=(Column("id", "bigint"),), batch_offsets_max=50), Sink("shop.orders")
)


def orders(topic: str) -> Job:
    return replace(JOB, source=replace(JOB.source, topic=topic))


def values(first: int, last: int) -> list[bytes | None]:
    return [b"broken" if n % 40 == 7 else json.dumps({"id": n}).encode() for n in range(first, last)]


def at_arrival(monkeypatch: pytest.MonkeyPatch, point: str, arrival: int, act: Callable[[], object]) -> None:
    """Calls `act` when a fault point is reached for the n-th time, and at no later point."""
    arrivals: list[str] = []

    def reach(reached: str) -> None:
        arrivals.append(reached)
        if reached == point and arrivals.count(point) == arrival:
            monkeypatch.setattr(fault_points, "reach", lambda _: None)
            act()

    monkeypatch.setattr(fault_points, "reach", reach)


def assert_exactly_once(harness: PipelineHarness, count: int) -> None:
    good, bad = ([n for n in range(count) if (n % 40 == 7) == rejected] for rejected in (False, True))
    assert sorted(n for (n,) in harness.rows("shop.orders", "id")) == good
    assert len(harness.rows("shop.orders_rejected")) == len(bad)


@pytest.mark.parametrize(
    ("point", "arrival", "error"),
    [
        pytest.param("pipeline.batch.started", 1, PositionMoved, marks=pytest.mark.soak),
        pytest.param("pipeline.batch.started", 2, PositionMoved, marks=pytest.mark.soak),
        ("pipeline.commit.staged", 1, PositionMoved),
        pytest.param("pipeline.table.committed", 1, PositionMoved, marks=pytest.mark.soak),
        pytest.param("pipeline.rejected.committed", 2, None, marks=pytest.mark.soak),
    ],
)
def test_a_range_that_another_host_has_written_meanwhile_is_not_written_again(
    harness: PipelineHarness,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    arrival: int,
    error: type[Exception] | None,
) -> None:
    topic = harness.make_topic(unique("orders"))
    harness.send(topic, values(0, RECORDS))
    other = replace(harness, directory=harness.directory / "b", sessions=[])
    other.warehouse = harness.settings.lake.warehouse
    at_arrival(monkeypatch, point, arrival, lambda: [other.run(orders(topic))])

    if error is None:
        harness.run(orders(topic))
    else:
        with pytest.raises(error):
            harness.run(orders(topic))

    assert_exactly_once(harness, RECORDS)
    for host, count in ((harness, RECORDS + 10), (other, RECORDS + 20)):
        harness.send(topic, values(count - 10, count))
        assert host.run(orders(topic)).lag == 0
        assert_exactly_once(harness, count)


def test_a_batch_that_is_staged_while_its_table_is_compacted_is_staged_again(
    harness: PipelineHarness, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = harness.make_topic(unique("accounts"))
    columns = (Column("id", "bigint"), Column("balance", "bigint"))
    source = Source(topic, columns=columns, key=True, batch_offsets_max=40)
    job = Job("accounts", "", source, Sink("shop.accounts", Mode.UPSERT, ("kafka_key",)))
    records = [(f"k{n % 30}".encode(), {"id": n % 30, "balance": n}) for n in range(120)]
    harness.send(
        topic, [json.dumps(value).encode() for _, value in records], keys=[key for key, _ in records]
    )
    tables = harness.runner().tables
    compacted = []

    def compact() -> None:
        compacted.append(maintain(tables, "shop.accounts", now=datetime.now(UTC)))

    at_arrival(monkeypatch, "pipeline.commit.staged", 3, compact)

    harness.run(job)

    assert compacted
    assert harness.rows("shop.accounts", "id", "balance") == sorted(
        ((value["id"], value["balance"]) for _, value in records[90:]), key=repr
    )


def test_a_table_that_always_changes_first_is_given_up(
    dry: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = dry.runner().tables
    rows = dry.session.createDataFrame([(1,)], "id bigint")
    tables.ensure("shop.busy", rows.schema)
    append = rows.writeTo("lake.shop.busy").append
    monkeypatch.setattr(commit, "ATTEMPTS_MAX", 2)
    monkeypatch.setattr(fault_points, "reach", lambda _: append())

    with pytest.raises(TableContended):
        commit.commit(tables, dry.session, "shop.busy", {}, append)

    assert dry.rows("shop.busy") == [(1,), (1,)]  # the rows of the other writer


def test_a_checkpoint_on_another_file_system_is_resumed_and_recovered(
    harness: PipelineHarness, unique: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`file://` is resolved by Hadoop, as `hdfs://` and `s3a://` are."""
    topic = harness.make_topic(unique("orders"))
    directory = tmp_path_factory.mktemp("checkpoints")
    settings = replace(harness.settings, checkpoints=f"file://{directory}")
    repeated = []

    for count in (40, 80):
        harness.send(topic, values(count - 40, count))
        runner = Runner(harness.session, settings, harness.connection)
        repeated.append(runner.run(orders(topic)).repeated)

    assert repeated == [0, 0]
    assert (directory / "orders" / "checkpoint" / "commits" / "1").exists()
    assert not (harness.settings.state / "orders" / "checkpoint").exists()
    assert_exactly_once(harness, 80)
