"""Rebuilds the stores of an OLEP application from its whole log, on Spark.

It runs the same `Fold` as executors, with state in Spark's state store (`transformWithState`) and large
batches: for rebuilding after a change of tables and for backfills, not for low latency. Each partition of
the log is one key of the state, so one thread decides its events in order.

The result is one store per partition, as executors open it: the state at the end position, and in the
outbox the events emitted from `sent` on, which the executor sends first. Receivers drop duplicates.

A killed rebuild resumes from its checkpoint and keeps its original end position; later events are left to
the executor. A store appears only when it is complete. The work directory is removed last, and its task
file before anything else in it, so that partly removed work is never resumed.
"""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.atomic_files import write_atomically
from penstock.model import fault_points
from penstock.model.errors.olep import HistoryMissing, StoreMismatch
from penstock.olep.fold import INTERNAL_TABLES, Batch, Outgoing
from penstock.olep.store import fingerprint
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline.lake.ledger import offsets_from_json, offsets_to_json
from penstock.pipeline.lock import exclusive_run
from penstock.pipeline.olep_fold import OUTGOING_DDL, FoldProcessor, decode_row
from penstock.pipeline.spark.failure import translate_errors
from penstock.pipeline.spark.kafka import offsets_option, security_options
from penstock.pipeline.spark.query import run_to_end
from penstock.pipeline.spark.session import ship_package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.olep.rows import Changes
    from penstock.olep.store import Store, Stores
    from penstock.olep.table import Table
    from penstock.pipeline.lake.ledger import TopicOffsets
    from penstock.pipeline.olep_fold import FoldTask
    from penstock.pipeline.settings import Connection

OUTGOING: Final = pa.schema(
    {"partition": pa.int32(), "log": pa.string(), "key": pa.binary(), "value": pa.binary()}
)
STATE: Final = "state"  # the folded rows, as files
STORE_ROWS_MAX: Final = 50_000  # per transaction of a store
TASK: Final = "task.json"  # identifies the work; without it there is none to resume
BATCH_FOLDED: Final = fault_points.declare(
    "pipeline.rebuild.folded", "a batch of events is folded, the checkpoint does not have it yet"
)
STORE_WRITTEN: Final = fault_points.declare(
    "pipeline.rebuild.stored", "the log is folded, the store of one more partition is written"
)
TASK_DISCARDED: Final = fault_points.declare(
    "pipeline.rebuild.task-discarded", "every store is complete, the task file is removed"
)


@dataclass(frozen=True, slots=True)
class RebuildResult:
    positions: dict[int, int]
    rows: int  # rows of state
    outgoing: int  # events for the executor to send


def rebuild(
    session: SparkSession,
    connection: Connection,
    topic: TopicOffsets,
    task: FoldTask,
    directory: Path,
    target: Stores | Path,
) -> RebuildResult:
    """Folds on Spark, then writes a store for each partition that has none.

    With a path as `target`, writes SQLite files; their directory appears when all of them are complete.
    Raises HistoryMissing, JobBusy, SparkFailed, DiskFull, and StoreMismatch for a store that this rebuild
    did not write."""
    what = f"the rebuild of {task.application.name}"
    # The lock is beside the directory, because that is removed.
    with translate_errors(what), exclusive_run(directory.with_name(f"{directory.name}.lock"), what):
        if not isinstance(target, Path):
            result = _rebuild(session, connection, topic, task, directory, target)
            _discard_task(directory)
        else:
            partial = target.with_name(f"{target.name}.part")
            if partial.exists():
                shutil.rmtree(partial)
            result = _rebuild(session, connection, topic, task, directory, SqliteStores(partial))
            _discard_task(directory)
            partial.replace(target)
        shutil.rmtree(directory)
    return result


def _rebuild(
    session: SparkSession,
    connection: Connection,
    topic: TopicOffsets,
    task: FoldTask,
    directory: Path,
    stores: Stores,
) -> RebuildResult:
    for partition, start in topic.start.items():
        if start > 0:
            raise HistoryMissing(topic=topic.name, partition=partition, start=start, position=0)
    task = _start_or_resume(task, directory)
    ship_package(session, task.application.decide.__module__)
    if any(task.until.values()):
        _fold(session, connection, topic, task, directory)
    return _write_stores(session, task, directory, stores)


def _discard_task(directory: Path) -> None:
    """Removes the task file first, so that a kill leaves no partly removed work to resume."""
    (directory / TASK).unlink(missing_ok=True)
    fault_points.reach(TASK_DISCARDED)


def _start_or_resume(task: FoldTask, directory: Path) -> FoldTask:
    """The task as it was started, if this is the same one; otherwise removes other work and starts over.

    The end must not move: events beyond it were left out of batches that will not be folded again. `sent`
    must not move either, although it advances while executors run; receivers drop what is sent twice."""
    path = directory / TASK
    identity = task_identity(task)
    if path.exists():
        started = json.loads(path.read_text())
        if started.get("identity") == identity:
            until, sent = (offsets_from_json(started[name]) for name in ("until", "sent"))
            return replace(task, until=until, sent=sent)
    path.unlink(missing_ok=True)  # as in `_discard_task`
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    started = {"identity": identity, "until": offsets_to_json(task.until), "sent": offsets_to_json(task.sent)}
    write_atomically(path, json.dumps(started))
    return task


def task_identity(task: FoldTask) -> dict[str, str]:
    """Everything that the fold depends on besides the log. For code: the module of `decide`."""
    application = task.application
    decide = application.decide
    kinds = [sorted(application.handles.items()), sorted(application.ignores), sorted(application.logs)]
    return {
        "log": task.log,
        "topic": task.topic_id,
        "group": task.group or "",
        "codec": type(task.codec).__qualname__,
        "tables": fingerprint(application.tables),
        "kinds": json.dumps([*kinds, application.window, sorted(application.on_reject.items())]),
        "decide": f"{decide.__module__}.{getattr(decide, '__qualname__', type(decide).__qualname__)}",
        "source": _source_digest(decide.__module__),
    }


def _source_digest(module: str) -> str:
    """Empty if the module has no source (interactive, or compiled)."""
    try:
        return sha256(inspect.getsource(sys.modules[module]).encode()).hexdigest()
    except (OSError, TypeError, KeyError):
        return ""


def _fold(
    session: SparkSession, connection: Connection, topic: TopicOffsets, task: FoldTask, directory: Path
) -> None:
    options = security_options(connection) | {
        "subscribe": topic.name,
        "startingOffsets": offsets_option(topic.name, dict.fromkeys(topic.start, 0)),
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": str(task.batch_events_max),
    }
    records = session.readStream.format("kafka").options(**options).load()
    in_range = F.lit(False)
    for partition, end in task.until.items():
        in_range = in_range | ((F.col("partition") == partition) & (F.col("offset") < end))
    events = records.filter(in_range).select("partition", "offset", "key", "value")
    emitted = events.groupBy("partition").transformWithState(
        FoldProcessor(task), OUTGOING_DDL, outputMode="Append", timeMode="None"
    )

    failure: list[PySparkException] = []

    def save_outgoing(frame: DataFrame, batch: int) -> None:
        try:
            frame.write.mode("overwrite").parquet(str(directory / "outgoing" / f"batch={batch}"))
        except PySparkException as error:
            failure.append(error)
            raise
        fault_points.reach(BATCH_FOLDED)

    query = (
        emitted.writeStream.foreachBatch(save_outgoing)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
    )
    run_to_end(query.start, failure)  # each batch starts a new Python worker, which may start too late


def _write_stores(session: SparkSession, task: FoldTask, directory: Path, stores: Stores) -> RebuildResult:
    # For an empty log Spark commits no batch, and state without a committed batch cannot be read.
    if any(task.until.values()):
        _save_state(session, task, directory)
    rows = sent = 0
    for partition, end in task.until.items():
        outgoing = _outgoing(directory, partition)
        store = stores.open(task.application, task.topic_id, partition)
        try:
            rows += _fill_store(store, task, directory, partition, Batch(0, end, {}, {}, outgoing))
        finally:
            store.close()
        sent += len(outgoing)
        fault_points.reach(STORE_WRITTEN)
    return RebuildResult(dict(task.until), rows, sent)


def _tables(task: FoldTask) -> tuple[Table[Any], ...]:
    return (*task.application.tables, *INTERNAL_TABLES)


def _save_state(session: SparkSession, task: FoldTask, directory: Path) -> None:
    """Writes the rows as files by table and partition, on executors: they need not fit into the driver."""
    for table in _tables(task):
        state = session.read.format("statestore").option("stateVarName", table.name)
        entries = state.load(str(directory / "checkpoint")).filter("user_map_value IS NOT NULL")
        rows = entries.selectExpr("key.partition", "user_map_value.`row`")
        rows.write.mode("overwrite").partitionBy("partition").parquet(str(directory / STATE / table.name))


def _rows(directory: Path, table: Table[Any], partition: int) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a table in a partition, some at a time."""
    path = directory / STATE / table.name / f"partition={partition}"
    if path.exists():
        for block in dataset(path, format="parquet").to_batches(columns=["row"], batch_size=STORE_ROWS_MAX):
            yield [decode_row(row) for row in block.column("row").to_pylist()]


def _fill_store(store: Store, task: FoldTask, directory: Path, partition: int, last: Batch) -> int:
    """Fills a store and returns how many rows it has; `last` has its end position and what must be sent.

    Its position stays zero until the last commit, so a store at the end position is complete; a killed
    rebuild writes the rows of any other again."""
    position = store.position()
    if position and position != last.position:
        expected = f"a rebuild to position {last.position}"
        raise StoreMismatch(store=store.name, actual=f"position {position}", expected=expected)
    count, sent = 0, task.sent.get(partition, 0)
    if not position:
        store.claim()
    for table in _tables(task):
        for rows in _rows(directory, table, partition):
            count += len(rows)
            if not position:
                changes: Changes = {table.name: {table.key_of(row): row for row in rows}}
                store.commit(Batch(0, 0, changes, {}), sent=0)
    if not position:
        store.commit(last, sent=sent)
    return count


def _outgoing(directory: Path, partition: int) -> list[Outgoing]:
    """The emitted events of a partition, in the order in which they were decided: one task, so one file of
    each batch, has them."""
    batches = sorted(
        (directory / "outgoing").glob("batch=*"), key=lambda path: int(path.name.partition("=")[2])
    )
    of_partition = pc.field("partition") == partition
    return [
        Outgoing(row["log"], row["key"], row["value"])
        for batch in batches
        for row in dataset(batch, OUTGOING, format="parquet").to_table(filter=of_partition).to_pylist()
    ]
