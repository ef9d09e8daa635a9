"""Runs jobs: the one place that starts queries, hands them batches to write, and says how it goes.

Scheduled runs take what is there and end (`availableNow`); live ones go on until stopped. Both have
the same checkpoint. Where a run begins is decided by `ledger.where_to_start`, from the checkpoint,
the table's own commits and the topic, before Spark is asked for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.layout import write_atomically
from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import JobBusy, SparkFailed
from penstock.pipeline.batch import BatchWriter
from penstock.pipeline.checkpoint import planned_offsets, read_checkpoint
from penstock.pipeline.derive import derive
from penstock.pipeline.kafka import look_at, offsets_option, publish_position, source_options
from penstock.pipeline.lake import Tables, first_line
from penstock.pipeline.ledger import Commit, behind, read, where_to_start, written
from penstock.pipeline.status import JobStatus, State, job_files, write_status
from penstock.pipeline.view import LakeView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Job
    from penstock.pipeline.ledger import Offsets, TopicFacts
    from penstock.pipeline.settings import Connection, PipelineSettings
    from penstock.pipeline.status import JobFiles

POLL_SECONDS: Final = 0.3
PUBLISH_SECONDS: Final = 5.0
LIVE_TRIGGER_SECONDS: Final = 10


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
        with only_run(files, job.name):
            said = JobStatus(job.name, State.RUNNING, os.getpid(), _now_ms(), _now_ms())
            write_status(files, said)
            try:
                outcome = _Run(self, job, files, said, observe).carry_out(live, accept_loss, stopped)
            except BaseException as error:
                text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
                write_status(files, replace(said, state=State.FAILED, updated_ms=_now_ms(), error=text[:500]))
                raise
            return outcome


class _Run:
    """One run of one job."""

    def __init__(
        self, runner: Runner, job: Job, files: JobFiles, said: JobStatus, observe: Callable[[JobStatus], None]
    ) -> None:
        self.runner = runner
        self.job = job
        self.files = files
        self.said = said
        self.observe = observe
        self.writer = BatchWriter(job, runner.tables)
        self.failure: BaseException | None = None
        self.repeated = 0
        self.passes: dict[int, int] = {}
        self.done: Offsets = {}
        self.published_at = 0.0

    def carry_out(self, live: bool, accept_loss: bool, stopped: Callable[[], bool]) -> Outcome:
        job, tables = self.job, self.runner.tables
        topic = asyncio.run(look_at(self.runner.connection, job.source.topic, job=job.name))
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
        if start.discard:
            shutil.rmtree(self.files.checkpoint)
        if start.offsets is not None:
            write_atomically(self.files.begin, written(start.offsets))
        self._stream(topic, start.offsets, live=live, accept_loss=accept_loss, stopped=stopped)
        renewed = derive(job, tables) if job.derived else 0
        topic = asyncio.run(look_at(self.runner.connection, job.source.topic, job=job.name))
        self._publish(topic)
        self._say(state=State.IDLE, behind=behind(topic, self.done))
        said = self.said
        return Outcome(
            job.name, said.batches, said.rows, said.rejected, self.repeated, renewed,
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
            while not query.awaitTermination(POLL_SECONDS):
                self._show(query, topic)
                if stopped():
                    break
        except Exception as error:
            if self.failure is not None:
                raise self.failure from None
            raise SparkFailed(what=self.job.name, reason=first_line(error), log=str(error)[-2000:]) from error
        finally:
            if query.isActive:
                query.stop()
        self._show(query, topic)

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
        self.said = replace(self.said, rejected=self.said.rejected + outcome.rejected)
        self.done = end

    def _show(self, query: Any, topic: TopicFacts) -> None:
        recent = {each["batchId"]: each for each in query.recentProgress if each["numInputRows"]}
        # Spark counts records each time that they are read.
        rows = sum(each["numInputRows"] // self.passes.get(batch, 1) for batch, each in recent.items())
        if rows != self.said.rows or len(recent) != self.said.batches:
            self._say(rows=rows, batches=len(recent), behind=behind(topic, self.done))
        if time.monotonic() - self.published_at > PUBLISH_SECONDS and self.done:
            self._publish(topic)

    def _publish(self, topic: TopicFacts) -> None:
        """For readers alone: a cluster that refuses it (a login without the right) stops nothing."""
        self.published_at = time.monotonic()
        if self.done:
            with contextlib.suppress(PenstockError):
                asyncio.run(publish_position(self.runner.connection, self.job.name, topic.name, self.done))

    def _say(self, **changes: Any) -> None:
        offsets = {str(partition): offset for partition, offset in sorted(self.done.items())}
        self.said = replace(self.said, updated_ms=_now_ms(), offsets=offsets, **changes)
        write_status(self.files, self.said)
        self.observe(self.said)


@contextmanager
def only_run(files: JobFiles, job: str) -> Iterator[None]:
    files.root.mkdir(parents=True, exist_ok=True)
    with files.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobBusy(job=job, directory=files.root) from None
        yield


def _now_ms() -> int:
    return int(time.time() * 1000)
