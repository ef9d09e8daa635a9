"""Everything the pipeline does, each small enough for a test to run, kill and run again.

An operation has the topic content it needs, how it runs and what it leaves behind.
`python -m tests.pipeline.operations` runs one in a separate process, where fault points may be armed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.payments.bank import BANK
from penstock.kafka.security import Mechanism
from penstock.model import fault_points
from penstock.model.ids import LogicalClusterId
from penstock.olep.codec import JsonCodec
from penstock.olep.store import digest
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline.backfill import backfill
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.jobs.durability import DURABILITY
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.jobs.slo import SLO
from penstock.pipeline.lake.columns import Column
from penstock.pipeline.lake.ledger import kafka_topic_id
from penstock.pipeline.lake.maintenance import maintain
from penstock.pipeline.olep_fold import FoldTask
from penstock.pipeline.olep_rebuild import rebuild
from penstock.pipeline.settings import Connection, Engine
from penstock.pipeline.spark.kafka import describe_topic
from tests.harness.command import ROOT, clean_environment
from tests.pipeline.conftest import ENGINE, PipelineHarness
from tests.pipeline.generators import Checkers, Gateways
from tests.pipeline.test_durability import histories
from tests.pipeline.test_olep_rebuild import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Fill = Callable[[PipelineHarness, str, random.Random], None]

COLUMNS = (Column("id", "bigint"), Column("note", "string"))
RECORDS = 300
KEYS = 40
TENANTS = (LogicalClusterId("lkc-00000a"), LogicalClusterId("lkc-00000b"))
LATER = datetime(2100, 1, 1, tzinfo=UTC)  # every snapshot is old enough to expire by then


@dataclass(frozen=True)
class Operation:
    fill: Fill  # fills the topic, before anything runs
    run: Callable[[PipelineHarness, str], None]
    result: Callable[[PipelineHarness, str], object]
    prepare: Callable[[PipelineHarness, str], None] = lambda *_: (
        None
    )  # once, in the same place, before carrying out


def job_operation(job: Job, fill: Fill, *more: str) -> Operation:
    """A job: its result is its table, its rejected records and its derived tables."""
    tables = (job.sink.table, job.sink.rejected, *(each.table for each in job.derived), *more)

    def run(harness: PipelineHarness, topic: str) -> None:
        harness.run(replace(job, source=replace(job.source, topic=topic)))

    def result(harness: PipelineHarness, topic: str) -> object:
        return {table: harness.rows(table) for table in tables}

    return Operation(fill, run, result)


def fill_orders(harness: PipelineHarness, topic: str, chance: random.Random) -> None:
    values = [json.dumps({"id": n, "note": f"n{n}"}).encode() for n in range(RECORDS)]
    values[7] = values[chance.randrange(RECORDS)] = b"broken"
    keys = [f"k{chance.randrange(KEYS)}".encode() for _ in range(RECORDS)]
    harness.send(topic, [None if n % 37 == 5 else value for n, value in enumerate(values)], keys=keys)


def fill_usage(harness: PipelineHarness, topic: str, chance: random.Random) -> None:
    reports = Gateways(chance, TENANTS).reports(gateways=2, hours=30, every_ms=1_200_000)
    values = [*(report.to_bytes() for report in reports), b"nonsense"]
    chance.shuffle(values)
    harness.send(topic, values)


def fill_health(harness: PipelineHarness, topic: str, chance: random.Random) -> None:
    probes = Checkers(chance).probes(clusters=2, brokers=2, weeks=2, minutes=4, each=10)
    harness.send(topic, [probe.to_bytes() for probe in probes])


def fill_durability(harness: PipelineHarness, topic: str, chance: random.Random) -> None:
    events = histories(subjects=10, sweeps=RECORDS // 10, wrong=chance.randrange(10))
    harness.send(topic, [each.to_bytes() for each in events], keys=[each.key for each in events])


def fill_accounts(harness: PipelineHarness, topic: str, chance: random.Random) -> None:
    codec, events = JsonCodec(), requests(chance, RECORDS)
    harness.send(topic, [codec.encode(each) for _, each in events], keys=[key for key, _ in events])


def fold(harness: PipelineHarness, topic: str) -> None:
    facts = asyncio.run(describe_topic(harness.connection, topic, job="bank"))
    task = FoldTask(
        BANK, "accounts", kafka_topic_id(facts.id), JsonCodec(), facts.end, {}, batch_events_max=120
    )
    work, state = harness.directory / "work", harness.directory / "stores"
    rebuild(harness.session, harness.connection, facts, task, work, state)


def fold_result(harness: PipelineHarness, topic: str) -> object:
    facts = asyncio.run(describe_topic(harness.connection, topic, job="bank"))
    stores = SqliteStores(harness.directory / "stores")
    contents = []
    for partition in sorted(facts.end):
        store = stores.open(BANK, kafka_topic_id(facts.id), partition)
        unsent = [tuple(out) for each in store.unsent() for out in each.outgoing]
        contents.append((store.position(), digest(store, BANK), unsent))
        store.close()
    return contents


def damage_orders(harness: PipelineHarness, topic: str) -> None:
    """Reads orders, then removes some rows and some rejected records."""
    _APPENDED.run(harness, topic)
    harness.session.sql(f"DELETE FROM lake.{APPEND.sink.table} WHERE id % 3 = 0")
    harness.session.sql(f"DELETE FROM lake.{APPEND.sink.rejected} WHERE kafka_partition = 0")


def run_backfill(harness: PipelineHarness, topic: str) -> None:
    job = replace(APPEND, source=replace(APPEND.source, topic=topic))
    facts = asyncio.run(describe_topic(harness.connection, topic, job=job.name))
    backfill(harness.runner().tables, job, harness.connection, facts, None, None)


def run_maintenance(harness: PipelineHarness, topic: str) -> None:
    maintain(harness.runner().tables, UPSERT.sink.table, now=LATER)


def maintenance_result(harness: PipelineHarness, topic: str) -> object:
    newest = harness.runner().tables.newest_commit(UPSERT.sink.table, job=UPSERT.name)
    assert newest is not None
    return newest.batch, newest.end, harness.rows(UPSERT.sink.table)


APPEND = Job("orders", "", Source("", columns=COLUMNS, batch_offsets_max=120), Sink("shop.orders"))
UPSERT = Job(
    "accounts",
    "",
    Source("", columns=COLUMNS, key=True, batch_offsets_max=120),
    Sink("shop.accounts", Mode.UPSERT, ("kafka_key",)),
)


def in_batches(job: Job, offsets: int) -> Job:
    return replace(job, source=replace(job.source, batch_offsets_max=offsets))


_APPENDED = job_operation(APPEND, fill_orders)
_UPSERTED = job_operation(UPSERT, fill_orders)
OPERATIONS = {
    "append": _APPENDED,
    "upsert": _UPSERTED,
    "metering": job_operation(in_batches(METERING, 150), fill_usage),
    "slo": job_operation(in_batches(SLO, 120), fill_health),
    "durability": job_operation(in_batches(DURABILITY, 120), fill_durability),
    "rebuild": Operation(fill_accounts, fold, fold_result),
    "backfill": Operation(fill_orders, run_backfill, _APPENDED.result, damage_orders),
    "maintain": Operation(fill_orders, run_maintenance, maintenance_result, _UPSERTED.run),
}


def prepare_beside(operation: str, harness: PipelineHarness, topic: str, seed: int = 4) -> PipelineHarness:
    """Fills the topic; prepares the operation in `harness` and in a separate lake, which it returns."""
    clean = PipelineHarness(harness.directory / "clean", harness.connection, harness.client, harness.engine)
    OPERATIONS[operation].fill(harness, topic, random.Random(seed))
    for each in (clean, harness):
        OPERATIONS[operation].prepare(each, topic)
    return clean


def run_beside(operation: str, harness: PipelineHarness, topic: str) -> PipelineHarness:
    """Runs the operation undisturbed in a separate lake, which it returns; prepares `harness` for it."""
    clean = prepare_beside(operation, harness, topic)
    OPERATIONS[operation].run(clean, topic)
    return clean


def command(operation: str, harness: PipelineHarness, topic: str, engine: Engine | None = None) -> list[str]:
    """The command that runs an operation in a separate process."""
    connection = {**asdict(harness.connection), "authority": None}
    arguments = {
        "operation": operation,
        "topic": topic,
        "directory": str(harness.directory),
        "connection": connection,
        "engine": asdict(engine or ENGINE),
    }
    return [sys.executable, "-m", "tests.pipeline.operations", json.dumps(arguments)]


def environment(**more: str) -> dict[str, str]:
    """The environment of such a process."""
    return clean_environment(more) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def main(words: Sequence[str]) -> None:
    arguments: dict[str, Any] = json.loads(words[0])
    fault_points.check_armed()
    mechanism = Mechanism(arguments["connection"].pop("mechanism"))
    harness = PipelineHarness(
        Path(arguments["directory"]),
        Connection(**arguments["connection"], mechanism=mechanism),
        {},
        Engine(**arguments["engine"]),
    )
    OPERATIONS[arguments["operation"]].run(harness, arguments["topic"])


if __name__ == "__main__":
    main(sys.argv[1:])
