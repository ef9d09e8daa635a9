"""OLEP at scale: a log of any length folded into state on Spark, and handed over at an exact position.

The same `Fold` that executors run, with its state in Spark's state store (`transformWithState`) in
large batches: for rebuilding after a change of tables and for backfills, not for low latency. Each
partition of the log is one key of the state, so that its events are decided in order by one thread.

The result is a store for each partition as an executor opens it: the state at the position, and in
the outbox what the events from `sent` on emit, which the executor sends first. Receivers know what
they have seen.

A killed rebuild goes on from its checkpoint, to the position it set out for: what came to the log
since is the executor's. A store appears when it is whole. The work is removed last, and no longer
counts as work before the first of its files goes.
"""

from __future__ import annotations

import base64
import inspect
import json
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.fleet.layout import write_atomically
from penstock.model import faults
from penstock.model.errors.olep import HistoryMissing, StoreMismatch
from penstock.olep.fold import LAYER_TABLES, Batch, Outgoing
from penstock.olep.store import fingerprint
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline.failure import naming
from penstock.pipeline.folding import OUTGOING_DDL, FoldProcessor, decoded
from penstock.pipeline.kafka import offsets_option, security_options
from penstock.pipeline.ledger import read, written
from penstock.pipeline.lock import only_run
from penstock.pipeline.query import carry_through
from penstock.pipeline.session import share_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.olep.rows import Changes
    from penstock.olep.store import Store, Stores
    from penstock.pipeline.folding import Task
    from penstock.pipeline.ledger import TopicFacts
    from penstock.pipeline.settings import Connection

TASK: Final = "task.json"  # what the work is for; without it there is none
BATCH_FOLDED: Final = faults.declare(
    "pipeline.rebuild.folded", "a batch of events is folded, the checkpoint does not know yet"
)
STORE_WRITTEN: Final = faults.declare(
    "pipeline.rebuild.stored", "the log is folded, and the store of one partition more is written"
)
WORK_FORGOTTEN: Final = faults.declare(
    "pipeline.rebuild.forgotten", "every store is whole, what they were made from counts no longer"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    positions: dict[int, int]
    rows: int  # of state
    outgoing: int  # events left for the executor to send


def kafka_form(topic_id: str) -> str:
    """A topic's id as Kafka and executors write it, from 32 hexadecimal digits."""
    return base64.urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")


def rebuild(
    session: SparkSession,
    connection: Connection,
    topic: TopicFacts,
    task: Task,
    directory: Path,
    stores: Stores,
) -> Rebuilt:
    """Folds on Spark, then writes a store for each partition, where there is none.

    Raises HistoryMissing, JobBusy, SparkFailed, RoomMissing, and StoreMismatch for a store that was
    written by somebody else.
    """
    with _alone(task, directory):
        done = _made(session, connection, topic, task, directory, stores)
        _forget(directory)
        shutil.rmtree(directory)
    return done


def rebuild_files(
    session: SparkSession, connection: Connection, topic: TopicFacts, task: Task, directory: Path, state: Path
) -> Rebuilt:
    """The same into SQLite files. Their directory appears when all of them are whole."""
    part = state.with_name(f"{state.name}.part")
    with _alone(task, directory):
        if part.exists():
            shutil.rmtree(part)
        done = _made(session, connection, topic, task, directory, SqliteStores(part))
        _forget(directory)
        part.replace(state)
        shutil.rmtree(directory)
    return done


@contextmanager
def _alone(task: Task, directory: Path) -> Iterator[None]:
    """The lock lies beside the directory, which is removed."""
    what = f"the rebuild of {task.application.name}"
    with naming(what), only_run(directory.with_name(f"{directory.name}.lock"), what):
        yield


def _made(
    session: SparkSession,
    connection: Connection,
    topic: TopicFacts,
    task: Task,
    directory: Path,
    stores: Stores,
) -> Rebuilt:
    for partition, start in topic.start.items():
        if start > 0:
            raise HistoryMissing(topic=topic.name, partition=partition, start=start, position=0)
    task = _begun(task, directory)
    share_code(session, task.application.decide.__module__)
    if any(task.until.values()):
        _fold(session, connection, topic, task, directory)
    return _hand_over(session, task, directory, stores)


def _forget(directory: Path) -> None:
    """Before the work is removed: a kill in the middle of that leaves a part of it, of no use to anybody."""
    (directory / TASK).unlink(missing_ok=True)
    faults.reach(WORK_FORGOTTEN)


def _begun(task: Task, directory: Path) -> Task:
    """The task as it was begun; work for another purpose is of no use, and removed.

    The end may not move: events beyond it were left out of batches that will not be folded again.
    Neither may what was sent, which moves on while the group's executors work: what is sent once
    more, its receivers know.
    """
    path = directory / TASK
    wanted = purpose(task)
    if path.exists():
        begun = json.loads(path.read_text())
        if begun.get("purpose") == wanted:
            return replace(task, until=read(begun["until"]), sent=read(begun["sent"]))
    path.unlink(missing_ok=True)  # as in `_forget`
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    begun = {"purpose": wanted, "until": written(task.until), "sent": written(task.sent)}
    write_atomically(path, json.dumps(begun))
    return task


def purpose(task: Task) -> dict[str, str]:
    """All that a fold depends on, but for the log. Of code, the module that `decide` is in."""
    application = task.application
    decide = application.decide
    kinds = [sorted(application.handles.items()), sorted(application.ignores), sorted(application.logs)]
    return {
        "log": task.log,
        "topic": task.topic_id,
        "group": task.group or "",
        "codec": type(task.codec).__qualname__,
        "tables": fingerprint(application.tables),
        "kinds": json.dumps([*kinds, application.window, sorted(application.rules.items())]),
        "decide": f"{decide.__module__}.{getattr(decide, '__qualname__', type(decide).__qualname__)}",
        "source": _source_digest(decide.__module__),
    }


def _source_digest(module: str) -> str:
    """Empty for what has no source: typed into a prompt, or compiled."""
    try:
        return sha256(inspect.getsource(sys.modules[module]).encode()).hexdigest()
    except (OSError, TypeError, KeyError):
        return ""


def _fold(
    session: SparkSession, connection: Connection, topic: TopicFacts, task: Task, directory: Path
) -> None:
    options = security_options(connection) | {
        "subscribe": topic.name,
        "startingOffsets": offsets_option(topic.name, dict.fromkeys(topic.start, 0)),
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": str(task.batch_events_max),
    }
    records = session.readStream.format("kafka").options(**options).load()
    inside = F.lit(False)
    for partition, end in task.until.items():
        inside = inside | ((F.col("partition") == partition) & (F.col("offset") < end))
    wanted = records.filter(inside).select("partition", "offset", "key", "value")
    emitted = wanted.groupBy("partition").transformWithState(
        FoldProcessor(task), OUTGOING_DDL, outputMode="Append", timeMode="None"
    )

    failure: list[PySparkException] = []

    def keep(frame: DataFrame, batch: int) -> None:
        try:
            frame.write.mode("overwrite").parquet(str(directory / "outgoing" / f"batch={batch}"))
        except PySparkException as error:
            failure.append(error)
            raise
        faults.reach(BATCH_FOLDED)

    query = (
        emitted.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
    )
    carry_through(query.start, failure)  # each batch begins with a Python process of its own


def _hand_over(session: SparkSession, task: Task, directory: Path, stores: Stores) -> Rebuilt:
    # Of an empty log Spark commits no batch, and state that no batch committed cannot be read.
    rows = _state(session, task, directory) if any(task.until.values()) else {}
    outgoing = _outgoing(session, directory)
    for partition, end in task.until.items():
        changes: Changes = {
            table.name: {table.key_of(row): row for row in rows.get((partition, table.name), [])}
            for table in (*task.application.tables, *LAYER_TABLES)
        }
        batch = Batch(end, changes, {}, outgoing.get(partition, []))
        store = stores.open(task.application, task.topic_id, partition)
        try:
            _fill(store, batch, task.sent.get(partition, 0))
        finally:
            store.close()
        faults.reach(STORE_WRITTEN)
    return Rebuilt(dict(task.until), sum(map(len, rows.values())), sum(map(len, outgoing.values())))


def _state(
    session: SparkSession, task: Task, directory: Path
) -> dict[tuple[int, str], list[tuple[Any, ...]]]:
    """Rows of each partition and table."""
    rows: dict[tuple[int, str], list[tuple[Any, ...]]] = {}
    for table in (*task.application.tables, *LAYER_TABLES):
        state = session.read.format("statestore").option("stateVarName", table.name)
        for found in state.load(str(directory / "checkpoint")).collect():
            if found.user_map_value is not None:
                of = rows.setdefault((int(found.key[0]), table.name), [])
                of.append(decoded(found.user_map_value[0]))
    return rows


def _fill(store: Store, batch: Batch, sent: int) -> None:
    """A store is written in one commit: one that stands at the end is whole, from before a kill."""
    found = store.position()
    if found and found == batch.position:
        return
    if found:
        expected = f"a rebuild to position {batch.position}"
        raise StoreMismatch(store=store.name, found=f"position {found}", expected=expected)
    store.claim()
    store.commit(batch, sent=sent)


def _outgoing(session: SparkSession, directory: Path) -> dict[int, list[Outgoing]]:
    """What is to be sent, in the order in which it was decided."""
    found: dict[int, list[Outgoing]] = {}
    if not (directory / "outgoing").is_dir():
        return found
    parts = sorted((directory / "outgoing").iterdir(), key=lambda part: int(part.name.partition("=")[2]))
    for part in parts:
        for row in session.read.schema(OUTGOING_DDL).parquet(str(part)).collect():
            found.setdefault(row.partition, []).append(Outgoing(row.log, bytes(row.key), bytes(row.value)))
    return found
