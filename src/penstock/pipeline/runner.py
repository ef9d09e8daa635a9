"""Runs jobs: the one place that starts queries, hands them batches to write, and says how it goes.

Scheduled runs take what is there and end (`availableNow`); live ones go on until stopped. Both have
the same checkpoint. Where a run begins is decided by `ledger.where_to_start`, from the checkpoint,
the table's own commits and the topic, before Spark is asked for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.layout import write_atomically
from penstock.model.errors import PenstockError
from penstock.pipeline.batch import BatchWriter
from penstock.pipeline.checkpoint import planned_offsets, read_checkpoint
from penstock.pipeline.derive import derive
from penstock.pipeline.failure import SPARK_ERRORS, named, naming
from penstock.pipeline.kafka import (
    look_at,
    offsets_option,
    publish_position,
    records_between,
    source_options,
)
from penstock.pipeline.lake import Tables
from penstock.pipeline.ledger import Commit, behind, read, where_to_start, written
from penstock.pipeline.lock import only_run
from penstock.pipeline.query import ending
from penstock.pipeline.status import JobStatus, State, job_files, write_status
from penstock.pipeline.view import LakeView

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Job
    from penstock.pipeline.ledger import Offsets, TopicFacts
    from penstock.pipeline.settings import Connection, PipelineSettings
    from penstock.pipeline.status import JobFiles

POLL_SECONDS: Final = 0.3
PUBLISH_SECONDS: Final = 5.0
LIVE_TRIGGER_SECONDS: Final = 10
LIVE_DERIVE_SECONDS: Final = 60.0  # how old derived tables of a live job become
ERROR_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    job: str
    batches: int
    rows: int  # records read
    rejected: int
    repeated: int  # batches that the table had already
    renewed: int  # derived tables
    behind: int
    offsets: Offsets
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)


class Runner:
    def __init__(self, session: SparkSession, settings: PipelineSettings, connection: Connection) -> None:
        self.session = session
        self.settings = settings
        self.connection = connection
        self.tables = Tables(session, settings.lake.warehouse)

    def view(self, job: Job) -> LakeView:
        """The job's table, to be read at positions."""
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
        """One run to its end; a live one until `stopped`. Raises what the catalogue has under 80xx."""
        files = job_files(self.settings.state, job.name)
        with naming(job.name), only_run(files.lock, job.name):
            run = _Run(self, job, files, observe)
            try:
                with naming(job.name):
                    return run.carry_out(live, accept_loss, stopped)
            except BaseException as error:
                text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
                with contextlib.suppress(OSError):  # a full disk has no room for saying so
                    run.keep(state=State.FAILED, error=text[:ERROR_CHARACTERS_MAX])
                raise

    def alive(self) -> bool:
        """Whether there is a Spark to run anything on."""
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
        self.said = JobStatus(job.name, State.RUNNING, os.getpid(), _now_ms())
        self.rejected = 0  # added to by the thread of the batches; the rest of what is said, by the other one
        self.observe = observe
        self.writer = BatchWriter(job, runner.tables)
        self.failure: BaseException | None = None
        self.repeated = 0
        self.passes: dict[int, int] = {}  # batch → how often its records were read; until it is counted
        self.counted = -1  # the newest batch whose records are in the figures
        self.done: Offsets = {}
        self.published_at = 0.0
        self.renewed = 0  # derived tables
        self.derived_at = time.monotonic()

    def carry_out(self, live: bool, accept_loss: bool, stopped: Callable[[], bool]) -> Outcome:
        job, tables = self.job, self.runner.tables
        self.keep()
        self.topic = topic = self._look()
        self.writer.prepare()
        checkpoint = read_checkpoint(job.name, self.files.checkpoint, topic.name)
        last = tables.newest(job.sink.table, job=job.name)
        start = where_to_start(
            job.name,
            topic,
            checkpoint,
            last,
            table=job.sink.table,
            directory=str(self.files.checkpoint),
            accept_loss=accept_loss,
        )
        self.done = last.end if last is not None else {}
        if start.offsets is not None and last is not None:
            self._list_rejected(last)
        if start.discard:
            shutil.rmtree(self.files.checkpoint)
        if start.offsets is not None:
            write_atomically(self.files.begin, written(start.offsets))
        self._stream(topic, start.offsets, live=live, accept_loss=accept_loss, stopped=stopped)
        self._derive()
        self.topic = self._look()
        self._publish()
        self.say(state=State.IDLE, behind=behind(self.topic, self.done))
        said = self.said
        return Outcome(
            job.name, said.batches, said.rows, said.rejected, self.repeated, self.renewed,
            said.behind or 0, self.done,
            dict(start.lost),
        )  # fmt: skip

    def _stream(
        self,
        topic: TopicFacts,
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

        def each(frame: DataFrame, batch: int) -> None:
            try:
                self._batch(frame, batch, topic)
            except BaseException as error:
                self.failure = error
                raise

        query: Any = (
            records.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(self.files.checkpoint))
            .queryName(self.job.name)
            .trigger(**trigger)
            .start()
        )
        try:
            with ending(query):
                while not query.awaitTermination(POLL_SECONDS):
                    self._show(query)
                    if stopped():
                        break
                    if live and time.monotonic() - self.derived_at > LIVE_DERIVE_SECONDS:
                        self._derive()
            self._show(query)
        except Exception as error:
            if self.failure is not None:
                raise self.failure from None
            raise named(error, self.job.name) from error

    def _batch(self, frame: DataFrame, batch: int, topic: TopicFacts) -> None:
        directory = self.files.checkpoint
        query = str(json.loads((directory / "metadata").read_text())["id"])
        begin = read(self.files.begin.read_text())
        begin |= planned_offsets(directory, batch - 1, topic.name)
        end = planned_offsets(directory, batch, topic.name)
        begin = {partition: begin.get(partition, 0) for partition in end}
        commit = Commit(self.job.name, query, batch, topic.name, topic.id, begin, end)
        outcome = self.writer.write(frame, commit)
        self.repeated += outcome.repeated
        self.passes[batch] = outcome.passes
        self.rejected += outcome.rejected
        self.done = end

    def _list_rejected(self, last: Commit) -> None:
        """A crash may have come before the list. Without its checkpoint the batch does not come again."""
        first = self.topic.start
        begin = {p: max(at, last.start.get(p, at)) for p, at in first.items()}
        until = {p: max(at, last.end.get(p, at)) for p, at in first.items()}
        runner = self.runner
        records = records_between(runner.session, runner.connection, self.job.source, begin, until)
        self.rejected += self.writer.write(records, replace(last, start=begin, end=until)).rejected

    def _show(self, query: Any) -> None:
        """Adds up what was read. Spark remembers the last hundred batches alone."""
        rows, batches = self.said.rows, self.said.batches
        for each in query.recentProgress:
            batch = each["batchId"]
            if each["numInputRows"] and batch > self.counted:
                # Spark counts records each time that they are read.
                rows += each["numInputRows"] // self.passes.pop(batch, 1)
                batches, self.counted = batches + 1, batch
        moved = batches != self.said.batches
        if time.monotonic() - self.published_at > PUBLISH_SECONDS and self.done:
            with contextlib.suppress(PenstockError):  # a cluster that is away stops no batch by itself
                self.topic = self._look()
            self._publish()
            moved = moved or behind(self.topic, self.done) != self.said.behind
        if moved:
            self.say(rows=rows, batches=batches, behind=behind(self.topic, self.done))

    def _look(self) -> TopicFacts:
        return asyncio.run(look_at(self.runner.connection, self.job.source.topic, job=self.job.name))

    def _derive(self) -> None:
        """After a run; in one that goes on, every now and then beside its batches."""
        if self.job.derived:
            self.renewed += derive(self.job, self.runner.tables)
        self.derived_at = time.monotonic()

    def _publish(self) -> None:
        """For readers alone: a cluster that refuses it (a login without the right) stops nothing."""
        self.published_at = time.monotonic()
        if self.done:
            with contextlib.suppress(PenstockError):
                connection = self.runner.connection
                asyncio.run(publish_position(connection, self.job.name, self.topic.name, self.done))

    def keep(self, **changes: Any) -> None:
        """Writes how it goes, for `penstock pipeline status`."""
        offsets = {str(partition): offset for partition, offset in sorted(self.done.items())}
        said = replace(self.said, updated_ms=_now_ms(), rejected=self.rejected, offsets=offsets, **changes)
        self.said = said
        write_status(self.files, said)

    def say(self, **changes: Any) -> None:
        """And tells whoever watches."""
        self.keep(**changes)
        self.observe(self.said)


def _now_ms() -> int:
    return int(time.time() * 1000)
