"""Everything that the pipeline does, each small enough to be done, killed and done again in a test.

A deed says what it needs, how it is carried out and what it leaves. `python -m tests.pipeline.deeds`
carries one out in a process of its own, where fault points may be armed and the process killed.
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
from penstock.model import faults
from penstock.model.ids import LogicalClusterId
from penstock.olep.codec import JsonCodec
from penstock.olep.store import digest
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline.backfill import backfill
from penstock.pipeline.columns import Column
from penstock.pipeline.folding import Task
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.jobs.audit import AUDIT
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.jobs.slo import SLO
from penstock.pipeline.kafka import look_at
from penstock.pipeline.maintenance import maintain
from penstock.pipeline.rebuild import kafka_form, rebuild_files
from penstock.pipeline.settings import Connection, Engine
from tests.ground.command import ROOT, clean_environment
from tests.pipeline.conftest import ENGINE, Ground
from tests.pipeline.known import Checkers, Gateways
from tests.pipeline.test_audit import event
from tests.pipeline.test_rebuild import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COLUMNS = (Column("id", "bigint"), Column("note", "string"))
RECORDS = 300
KEYS = 40
TENANTS = (LogicalClusterId("lkc-00000a"), LogicalClusterId("lkc-00000b"))
LATER = datetime(2100, 1, 1, tzinfo=UTC)  # by which every commit is old enough to be expired


@dataclass(frozen=True)
class Deed:
    fill: Callable[[Ground, str], None]  # the topic, before anything runs
    carry_out: Callable[[Ground, str], None]
    left: Callable[[Ground, str], object]
    prepare: Callable[[Ground, str], None] = lambda *_: None  # once, in the same place, before carrying out


def of_job(job: Job, fill: Callable[[Ground, str], None], *more: str) -> Deed:
    """A job of the runner: its table, its rejected records and whatever is derived."""
    tables = (job.sink.table, job.sink.rejected, *(each.table for each in job.derived), *more)

    def carry_out(ground: Ground, topic: str) -> None:
        ground.run(replace(job, source=replace(job.source, topic=topic)))

    def left(ground: Ground, topic: str) -> object:
        return {table: ground.rows(table) for table in tables}

    return Deed(fill, carry_out, left)


def fill_orders(ground: Ground, topic: str) -> None:
    values = [json.dumps({"id": n, "note": f"n{n}"}).encode() for n in range(RECORDS)]
    values[7] = values[200] = b"broken"
    keys = [f"k{n % KEYS}".encode() for n in range(RECORDS)]
    ground.send(topic, [None if n % 37 == 5 else value for n, value in enumerate(values)], keys=keys)


def fill_usage(ground: Ground, topic: str) -> None:
    reports = Gateways(random.Random(4), TENANTS).reports(gateways=2, hours=30, every_ms=1_200_000)
    ground.send(topic, [*(report.to_bytes() for report in reports), b"nonsense"])


def fill_health(ground: Ground, topic: str) -> None:
    probes = Checkers(random.Random(5)).probes(clusters=2, brokers=2, weeks=2, minutes=4, each=10)
    ground.send(topic, [probe.to_bytes() for probe in probes])


def fill_audit(ground: Ground, topic: str) -> None:
    events = [event(n, subject=n % 10, log_start=n // 10) for n in range(RECORDS)]
    events[205] = event(205, subject=5, log_start=3)
    ground.send(topic, [each.to_bytes() for each in events], keys=[each.key for each in events])


def fill_accounts(ground: Ground, topic: str) -> None:
    codec, events = JsonCodec(), requests(random.Random(7), RECORDS)
    ground.send(topic, [codec.encode(each) for _, each in events], keys=[key for key, _ in events])


def fold(ground: Ground, topic: str) -> None:
    facts = asyncio.run(look_at(ground.connection, topic, job="bank"))
    task = Task(BANK, "accounts", kafka_form(facts.id), JsonCodec(), facts.end, {}, batch_events_max=120)
    work, state = ground.directory / "work", ground.directory / "stores"
    rebuild_files(ground.session, ground.connection, facts, task, work, state)


def folded(ground: Ground, topic: str) -> object:
    facts = asyncio.run(look_at(ground.connection, topic, job="bank"))
    stores = SqliteStores(ground.directory / "stores")
    found = []
    for partition in sorted(facts.end):
        store = stores.open(BANK, kafka_form(facts.id), partition)
        unsent = [tuple(out) for each in store.unsent() for out in each.outgoing]
        found.append((store.position(), digest(store, BANK), unsent))
        store.close()
    return found


def break_off(ground: Ground, topic: str) -> None:
    """Orders are there, but for some rows and for what was rejected."""
    _APPENDED.carry_out(ground, topic)
    ground.session.sql(f"DELETE FROM lake.{APPEND.sink.table} WHERE id % 3 = 0")
    ground.session.sql(f"DELETE FROM lake.{APPEND.sink.rejected} WHERE kafka_partition = 0")


def read_again(ground: Ground, topic: str) -> None:
    job = replace(APPEND, source=replace(APPEND.source, topic=topic))
    facts = asyncio.run(look_at(ground.connection, topic, job=job.name))
    backfill(ground.runner().tables, job, ground.connection, facts, None, None)


def keep(ground: Ground, topic: str) -> None:
    maintain(ground.runner().tables, UPSERT.sink.table, now=LATER)


def kept(ground: Ground, topic: str) -> object:
    newest = ground.runner().tables.newest(UPSERT.sink.table, job=UPSERT.name)
    assert newest is not None
    return newest.batch, newest.end, ground.rows(UPSERT.sink.table)


APPEND = Job("orders", "", Source("", columns=COLUMNS, batch_offsets_max=120), Sink("shop.orders"))
UPSERT = Job(
    "accounts",
    "",
    Source("", columns=COLUMNS, key=True, batch_offsets_max=120),
    Sink("shop.accounts", Mode.UPSERT, ("kafka_key",)),
)


def in_batches(job: Job, offsets: int) -> Job:
    return replace(job, source=replace(job.source, batch_offsets_max=offsets))


_APPENDED = of_job(APPEND, fill_orders)
_UPSERTED = of_job(UPSERT, fill_orders)
DEEDS = {
    "append": _APPENDED,
    "upsert": _UPSERTED,
    "metering": of_job(in_batches(METERING, 150), fill_usage),
    "slo": of_job(in_batches(SLO, 120), fill_health),
    "audit": of_job(in_batches(AUDIT, 120), fill_audit),
    "rebuild": Deed(fill_accounts, fold, folded),
    "backfill": Deed(fill_orders, read_again, _APPENDED.left, break_off),
    "maintain": Deed(fill_orders, keep, kept, _UPSERTED.carry_out),
}


def done_beside(deed: str, ground: Ground, topic: str) -> Ground:
    """A lake in which the deed is done as it should be. In `ground` all is ready for doing it."""
    clean = Ground(ground.directory / "clean", ground.connection, ground.client, ground.engine)
    DEEDS[deed].fill(ground, topic)
    for each in (clean, ground):
        DEEDS[deed].prepare(each, topic)
    DEEDS[deed].carry_out(clean, topic)
    return clean


def command(deed: str, ground: Ground, topic: str, engine: Engine | None = None) -> list[str]:
    """What carries a deed out in a process of its own."""
    connection = {**asdict(ground.connection), "authority": None}
    told = {
        "deed": deed,
        "topic": topic,
        "directory": str(ground.directory),
        "connection": connection,
        "engine": asdict(engine or ENGINE),
    }
    return [sys.executable, "-m", "tests.pipeline.deeds", json.dumps(told)]


def environment(**more: str) -> dict[str, str]:
    """What such a process needs to find what it carries out."""
    return clean_environment(more) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def main(words: Sequence[str]) -> None:
    told: dict[str, Any] = json.loads(words[0])
    faults.check_armed()
    mechanism = Mechanism(told["connection"].pop("mechanism"))
    ground = Ground(
        Path(told["directory"]),
        Connection(**told["connection"], mechanism=mechanism),
        {},
        Engine(**told["engine"]),
    )
    DEEDS[told["deed"]].carry_out(ground, told["topic"])


if __name__ == "__main__":
    main(sys.argv[1:])
