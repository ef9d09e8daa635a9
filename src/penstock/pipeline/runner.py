"""Runs jobs: starts streaming queries, writes their batches, reports status and lag.

A scheduled run processes what the topic holds and ends (`availableNow`); a live run continues until
stopped. Both use the same checkpoint. `ledger.resolve_start` decides where a run starts, from the
checkpoint, the table's commits and the topic, before the query is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import PenstockError
from penstock.pipeline.lake.batch import BatchWriter
from penstock.pipeline.lake.derived import refresh_derived
from penstock.pipeline.lake.ledger import Commit, lag, resolve_start
from penstock.pipeline.lake.tables import Tables
from penstock.pipeline.lock import exclusive_run
from penstock.pipeline.spark.checkpoint import (
    checkpoint_directory,
    planned_offsets,
    query_of,
    read_checkpoint,
)
from penstock.pipeline.spark.failure import SPARK_ERRORS, translate_error, translate_errors
from penstock.pipeline.spark.kafka import (
    commit_progress,
    describe_topic,
    offsets_option,
    records_between,
    source_options,
)
from penstock.pipeline.spark.query import stopping
from penstock.pipeline.status import JobStatus, State, job_files, write_status
from penstock.pipeline.table_view import LakeView
from penstock.process_identity import this_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake.ledger import Offsets, TopicOffsets
    from penstock.pipeline.settings import Connection, PipelineSettings
    from penstock.pipeline.status import JobFiles

POLL_SECONDS: Final = 0.3
COMMIT_PROGRESS_SECONDS: Final = 5.0
LIVE_TRIGGER_SECONDS: Final = 10
LIVE_REFRESH_SECONDS: Final = 60.0  # how stale a live job's derived tables may get
ERROR_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    job: str
    batches: int
    records: int  # read
    rejected: int
    repeated: int  # batches that the table already had
    refreshed: int  # derived tables
    lag: int  # offsets
    offsets: Offsets
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)


class Runner:
    def __init__(self, session: SparkSession, settings: PipelineSettings, connection: Connection) -> None:
        self.session = session
        self.settings = settings
        self.connection = connection
        self.tables = Tables(session, settings.lake.warehouse)

    def view(self, job: Job) -> LakeView:
        """The job's table, readable as of a log position."""
        return LakeView(self.tables, job)

    def run(
        self,
        job: Job,
        *,
        live: bool = False,
        accept_loss: bool = False,
        observe: Callable[[JobStatus], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Runs a job to its end, or until `stopped` if live. Raises errors of the 80xx range."""
        files = job_files(self.settings.state, job.name)
        with translate_errors(job.name), exclusive_run(files.lock, job.name):
            run = _Run(self, job, files, observe)
            try:
                with translate_errors(job.name):
                    return run.execute(live, accept_loss, stopped)
            except BaseException as error:
                text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
                with contextlib.suppress(OSError):  # a full disk cannot hold the status either
                    run.save_status(state=State.FAILED, error=text[:ERROR_CHARACTERS_MAX])
                raise

    def alive(self) -> bool:
        """Whether the Spark context is running."""
        try:
            context: Any = self.session.sparkContext._jsc
            return context is not None and not context.sc().isStopped()
        except SPARK_ERRORS:
            return False


class _Run:
    """One run of one job."""

    def __init__(
        self, runner: Runner, job: Job, files: JobFiles, observe: Callable[[JobStatus], None]
    ) -> None:
        self.runner = runner
        self.job = job
        self.files = files
        location = runner.settings.checkpoint_of(job.name)
        self.checkpoint = checkpoint_directory(runner.session, location)
        process = this_process()
        self.status = JobStatus(job.name, State.RUNNING, process.pid, process.started, _now_ms())
        self.rejected = 0  # counted by the batch thread; the rest of the status belongs to the main thread
        self.observe = observe
        self.writer = BatchWriter(job, runner.tables)
        self.failure: BaseException | None = None
        self.repeated = 0
        self.passes: dict[int, int] = {}  # batch → how often its records were read, until counted
        self.counted = -1  # the newest batch whose records are counted
        self.position: Offsets = {}
        self.progress_committed_at = 0.0
        self.refreshed = 0  # derived tables
        self.derived_refreshed_at = time.monotonic()

    def execute(self, live: bool, accept_loss: bool, stopped: Callable[[], bool]) -> Outcome:
        job, tables = self.job, self.runner.tables
        self.save_status()
        self.topic = topic = self._describe_topic()
        self.writer.prepare()
        checkpoint = read_checkpoint(job.name, self.checkpoint, topic.name)
        table, directory = job.sink.table, str(self.checkpoint)
        last = tables.newest_commit(table, job=job.name)
        own = None if checkpoint is None else tables.newest_commit(table, query=checkpoint.query)
        start = resolve_start(
            job.name, topic, checkpoint, last, own=own, table=table, directory=directory,
            accept_loss=accept_loss,
        )  # fmt: skip
        self.writer.lost = start.lost
        self.position = last.end if last is not None else {}
        if start.offsets is not None and last is not None:
            self._restore_rejected(last)
        if start.discard:
            self.checkpoint.remove()
        self._stream(topic, start.offsets, live=live, accept_loss=accept_loss, stopped=stopped)
        self._refresh_derived()
        self.topic = self._describe_topic()
        self._commit_progress()
        self.report_status(state=State.IDLE, lag=lag(self.topic, self.position))
        status = self.status
        return Outcome(
            job.name, status.batches, status.records, status.rejected, self.repeated, self.refreshed,
            status.lag or 0, self.position, dict(start.lost),
        )  # fmt: skip

    def _stream(
        self,
        topic: TopicOffsets,
        begin: Offsets | None,
        *,
        live: bool,
        accept_loss: bool,
        stopped: Callable[[], bool],
    ) -> None:
        source = self.job.source
        options = source_options(self.runner.connection, source, accept_loss=accept_loss)
        options["startingOffsets"] = "earliest" if begin is None else offsets_option(source.topic, begin)
        records = self.runner.session.readStream.format("kafka").options(**options).load()
        trigger: dict[str, Any] = (
            {"processingTime": f"{LIVE_TRIGGER_SECONDS} seconds"} if live else {"availableNow": True}
        )

        def write_batch(frame: DataFrame, batch: int) -> None:
            try:
                self._write_batch(frame, batch, topic)
            except BaseException as error:
                self.failure = error
                raise

        query: Any = (
            records.writeStream.foreachBatch(write_batch)
            .option("checkpointLocation", str(self.checkpoint))
            .queryName(self.job.name)
            .trigger(**trigger)
            .start()
        )
        try:
            with stopping(query):
                while not query.awaitTermination(POLL_SECONDS):
                    self._update_progress(query)
                    if stopped():
                        break
                    if live and time.monotonic() - self.derived_refreshed_at > LIVE_REFRESH_SECONDS:
                        self._refresh_derived()
            self._update_progress(query)
        except Exception as error:
            if self.failure is not None:
                raise self.failure from None
            raise translate_error(error, self.job.name) from error

    def _write_batch(self, frame: DataFrame, batch: int, topic: TopicOffsets) -> None:
        begin, end = (planned_offsets(self.checkpoint, each, topic.name) for each in (batch - 1, batch))
        begin = {partition: begin.get(partition, 0) for partition in end}
        query = query_of(self.checkpoint)
        commit = Commit(self.job.name, query, batch, topic.name, topic.id, begin, end)
        result = self.writer.write(frame, commit)
        self.repeated += result.repeated
        self.passes[batch] = result.passes
        self.rejected += result.rejected
        self.position = end

    def _restore_rejected(self, last: Commit) -> None:
        """Writes the last batch's rejected records again: without a checkpoint Spark will not repeat it,
        and a crash may have come before they were committed."""
        first = self.topic.start
        begin = {p: max(at, last.start.get(p, at)) for p, at in first.items()}
        until = {p: max(at, last.end.get(p, at)) for p, at in first.items()}
        runner = self.runner
        records = records_between(runner.session, runner.connection, self.job.source, begin, until)
        self.rejected += self.writer.restore_rejected(records, replace(last, start=begin, end=until))

    def _update_progress(self, query: Any) -> None:
        """Counts what was read, and reports it. Spark only keeps the progress of the last 100 batches."""
        records, batches = self.status.records, self.status.batches
        for progress in query.recentProgress:
            batch = progress["batchId"]
            if progress["numInputRows"] and batch > self.counted:
                # Spark counts records every time they are read.
                records += progress["numInputRows"] // self.passes.pop(batch, 1)
                batches, self.counted = batches + 1, batch
        changed = batches != self.status.batches
        if time.monotonic() - self.progress_committed_at > COMMIT_PROGRESS_SECONDS and self.position:
            with contextlib.suppress(PenstockError):  # an unreachable cluster is the query's concern
                self.topic = self._describe_topic()
            self._commit_progress()
            changed = changed or lag(self.topic, self.position) != self.status.lag
        if changed:
            self.report_status(records=records, batches=batches, lag=lag(self.topic, self.position))

    def _describe_topic(self) -> TopicOffsets:
        return asyncio.run(describe_topic(self.runner.connection, self.job.source.topic, job=self.job.name))

    def _refresh_derived(self) -> None:
        if self.job.derived:
            self.refreshed += refresh_derived(self.job, self.runner.tables)
        self.derived_refreshed_at = time.monotonic()

    def _commit_progress(self) -> None:
        """Informational, so a refusal (a login without the right) is ignored."""
        self.progress_committed_at = time.monotonic()
        if self.position:
            with contextlib.suppress(PenstockError):
                connection = self.runner.connection
                asyncio.run(commit_progress(connection, self.job.name, self.topic.name, self.position))

    def save_status(self, **changes: Any) -> None:
        """Writes the status file for `penstock pipeline status`."""
        offsets = {str(partition): offset for partition, offset in sorted(self.position.items())}
        updated = {"updated_ms": _now_ms(), "rejected": self.rejected, "offsets": offsets, **changes}
        self.status = replace(self.status, **updated)
        write_status(self.files, self.status)

    def report_status(self, **changes: Any) -> None:
        """Writes the status file and notifies the observer."""
        self.save_status(**changes)
        self.observe(self.status)


def _now_ms() -> int:
    return int(time.time() * 1000)
