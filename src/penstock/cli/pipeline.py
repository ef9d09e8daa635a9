"""`penstock pipeline`: jobs on Spark, from topics to tables."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.metrics import Metrics, metrics_at
from penstock.cli.output import Format, console, plain, progress, show, table_of, tell
from penstock.cli.settings import Options
from penstock.fleet.jars import cache_directory
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.pipeline import TableMissing
from penstock.model.errors.settings import ExtraMissing, SettingInvalid

if TYPE_CHECKING:
    from penstock.pipeline.job import Job
    from penstock.pipeline.runner import Outcome, Runner
    from penstock.pipeline.settings import PipelineSettings
    from penstock.pipeline.status import JobStatus

app = App(name="pipeline", help="Jobs on Spark: topics to tables, metering, fleet SLO, audit.")

JobName = Annotated[str, Parameter(help="A job, by its name.")]
SettingsFile = Annotated[
    Path | None, Parameter(name=("--settings", "-s"), help="Settings of the pipeline.", show_default="none")
]
Master = Annotated[str | None, Parameter(help="Spark's master.", show_default="local[*]")]


@app.command
def fetch(
    *,
    force: Annotated[bool, Parameter(help="Fetch again what is here already.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Resolve the connectors for Spark with Maven, and check them.

    Example:  penstock pipeline fetch
    """
    from penstock.pipeline.connectors import SPARK_VERSION, connector_jars

    with progress(f"fetching connectors for Spark {SPARK_VERSION} with Maven, once"):
        jars = connector_jars(cache_directory(), force=force)
    data = {"spark": SPARK_VERSION, "jars": [str(jar) for jar in jars]}
    if options.form is not Format.TABLE:
        show(data, options.form, "")
    return Exit.FINE


@app.command(name="list")
def list_(*, settings: SettingsFile = None, options: Options = Options()) -> int:
    """List the jobs: where they read, what they write, how often.

    Example:  penstock pipeline list
    """
    _need_spark()
    from penstock.pipeline.access import settings_for
    from penstock.pipeline.jobs import all_jobs

    rows = [
        {
            "job": job.name,
            "topic": job.source.topic,
            "table": job.sink.table,
            "mode": job.sink.mode.value,
            "every_seconds": job.every_seconds,
            "derived": [each.table for each in job.derived],
            "summary": job.summary,
        }
        for job in all_jobs(settings_for(options.layout, settings)).values()
    ]
    columns = {"JOB": "job", "TOPIC": "topic", "TABLE": "table", "MODE": "mode", "EVERY S": "every_seconds"}
    show(rows, options.form, table_of(rows, columns | {"WHAT": "summary"}))
    return Exit.FINE


@app.command
def run(
    job: JobName,
    *,
    settings: SettingsFile = None,
    master: Master = None,
    live: Annotated[bool, Parameter(help="Go on until stopped.", negative="")] = False,
    accept_loss: Annotated[
        bool, Parameter(help="Go on without records that retention took.", negative="")
    ] = False,
    metrics: Metrics = None,
    options: Options = Options(),
) -> int:
    """Run one job: what its topic holds now, or on and on with --live.

    Example:  penstock pipeline run metering
    """
    _need_spark()
    from penstock.pipeline.access import settings_for
    from penstock.pipeline.jobs import find_job
    from penstock.pipeline.metrics import JobsCollector

    wanted = settings_for(options.layout, settings)
    found = find_job(wanted, job)
    with metrics_at(metrics, JobsCollector(wanted.state)):
        _, runner = _runner(settings, master, options)
        with _watching(job) as observe, _until_signal() as stopped:
            outcome = runner.run(found, live=live, accept_loss=accept_loss, observe=observe, stopped=stopped)
    _show_outcome(outcome, options)
    return Exit.FINE


@app.command
def schedule(
    *,
    settings: SettingsFile = None,
    master: Master = None,
    once: Annotated[bool, Parameter(help="Run what is due, then end.", negative="")] = False,
    metrics: Metrics = None,
    options: Options = Options(),
) -> int:
    """Run every job that has a rhythm, when it is due, until stopped.

    Example:  penstock pipeline schedule --settings pipeline.yaml
    """
    _need_spark()
    from penstock.pipeline.access import settings_for
    from penstock.pipeline.jobs import all_jobs
    from penstock.pipeline.metrics import JobsCollector
    from penstock.pipeline.schedule import keep_time

    wanted = settings_for(options.layout, settings)
    with ExitStack() as stack:
        stack.enter_context(metrics_at(metrics, JobsCollector(wanted.state)))
        _, runner = _runner(settings, master, options)
        stopped = stack.enter_context(_until_signal())

        def carry_out(job: Job) -> None:
            _show_outcome(runner.run(job, stopped=stopped), options)

        def failed(job: Job, error: PenstockError) -> None:
            tell(f"[red]{job.name}[/]: {plain(str(error))}")
            if not runner.alive():  # whoever started this starts it again; without Spark every run would fail
                raise error

        jobs = all_jobs(wanted).values()
        well = keep_time(jobs, carry_out, clock=_Clock(), stopped=stopped, failed=failed, once=once)
    return Exit.FAILED if once and not well else Exit.FINE


class _Clock:
    def now(self) -> float:
        return time.time()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@app.command
def status(*, settings: SettingsFile = None, options: Options = Options()) -> int:
    """Show how every job is doing: its last run, and how far it is behind.

    Example:  penstock pipeline status
    """
    _need_spark()
    from penstock.pipeline.access import settings_for
    from penstock.pipeline.jobs import all_jobs
    from penstock.pipeline.status import job_files, read_status

    wanted = settings_for(options.layout, settings)
    rows = [asdict(read_status(job_files(wanted.state, name), name)) for name in all_jobs(wanted)]
    for row in rows:
        stamp = row["updated_ms"]
        row["updated"] = (
            datetime.fromtimestamp(stamp / 1000, UTC).isoformat(timespec="seconds") if stamp else None
        )
    columns = {
        "JOB": "job",
        "STATE": "state",
        "UPDATED": "updated",
        "RECORDS": "rows",
        "REJECTED": "rejected",
    }
    show(rows, options.form, table_of(rows, columns | {"BEHIND": "behind", "ERROR": "error"}))
    return Exit.FINE


@app.command
def backfill(
    job: JobName,
    *,
    start: Annotated[
        str | None, Parameter(name="--from", help="First offsets, partition:offset[,…].", show_default="all")
    ] = None,
    until: Annotated[
        str | None, Parameter(help="Offsets after the last, likewise.", show_default="all")
    ] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Read an exact range of a topic into the job's table again; doing so twice changes nothing.

    Example:  penstock pipeline backfill orders --from 0:1000,1:900 --until 0:2000,1:1800
    """
    _need_spark()
    from penstock.pipeline.access import connection_for, settings_for
    from penstock.pipeline.backfill import backfill as fill
    from penstock.pipeline.backfill import chosen_range
    from penstock.pipeline.jobs import find_job
    from penstock.pipeline.kafka import look_at
    from penstock.pipeline.lock import only_run
    from penstock.pipeline.status import job_files

    wanted = settings_for(options.layout, settings)
    found = find_job(wanted, job)
    connection = connection_for(wanted, options.layout)
    topic = asyncio.run(look_at(connection, found.source.topic, job=job))
    chosen_range(topic, job, start, until)  # a wrong range is told before Spark is started
    _, runner = _runner(settings, master, options)
    with only_run(job_files(wanted.state, job).lock, job), progress(f"reading {found.source.topic} again"):
        filled = fill(runner.tables, found, connection, topic, start, until)
    row = {"job": job, "records": filled.records, "rejected": filled.rejected}
    show(
        asdict(filled),
        options.form,
        table_of([row], {"JOB": "job", "RECORDS": "records", "REJECTED": "rejected"}),
    )
    return Exit.FINE


@app.command
def explain(job: JobName, *, settings: SettingsFile = None, options: Options = Options()) -> int:
    """Say what a job would do: its source, its tables, and where the next run begins.

    Example:  penstock pipeline explain metering
    """
    _need_spark()
    from penstock.pipeline.access import connection_for, settings_for
    from penstock.pipeline.checkpoint import read_checkpoint
    from penstock.pipeline.jobs import find_job
    from penstock.pipeline.kafka import group_of, look_at
    from penstock.pipeline.ledger import behind
    from penstock.pipeline.status import job_files, read_status

    wanted = settings_for(options.layout, settings)
    found = find_job(wanted, job)
    topic = asyncio.run(look_at(connection_for(wanted, options.layout), found.source.topic, job=job))
    files = job_files(wanted.state, job)
    checkpoint = read_checkpoint(job, files.checkpoint, topic.name)
    last = read_status(files, job).offsets
    done = checkpoint.end if checkpoint is not None else {int(p): at for p, at in last.items()}
    begin = ", ".join(f"{p}:{done.get(p, o)}" for p, o in sorted(topic.start.items()))
    if checkpoint is None:  # to ask the table takes Spark
        begin += f", or later: where {found.sink.table} stands"
    data: dict[str, Any] = {
        "job": job,
        "reads": f"{topic.name}, {len(topic.start)} partitions, {found.source.form}, committed records",
        "writes": f"{found.sink.table}, {found.sink.mode}",
        "rejects to": found.sink.rejected,
        "derives": ", ".join(each.table for each in found.derived) or None,
        "lake": wanted.lake.warehouse,
        "checkpoint": str(files.checkpoint),
        "next batch": (checkpoint.committed if checkpoint is not None else -1) + 1,
        "begins at": begin,
        "behind": behind(topic, done),
        "lag is shown by": f"group {group_of(job)}",
        "master": wanted.engine.master,
    }
    rows = [{"what": key, "value": value} for key, value in data.items()]
    show(data, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command
def maintain(
    table: Annotated[str, Parameter(help="A table, as namespace.name.")],
    *,
    days: Annotated[float, Parameter(help="How long histories are kept.")] = 5.0,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Compact a table's files, shorten its history, remove what no commit knows. Rows stay as they are.

    Example:  penstock pipeline maintain platform.probes
    """
    _need_spark()
    from penstock.pipeline.maintenance import maintain as keep

    wanted, runner = _runner(settings, master, options)
    if not runner.tables.exists(table):
        raise TableMissing(table=table, where=wanted.lake.warehouse, job="<job>")
    with progress(f"maintaining {table}"):
        kept = asdict(keep(runner.tables, table, now=datetime.now(UTC), days=days))
    columns = {"TABLE": "table", "FILES": "files_before", "NOW": "files_after"}
    columns |= {"COMMITS": "snapshots_before", "KEPT": "snapshots_after", "ORPHANS": "orphans"}
    show(kept, options.form, table_of([kept], columns))
    return Exit.FINE


@app.command
def invoices(
    file: Annotated[Path, Parameter(help="Where the lines go: .csv, .json or .parquet.")],
    *,
    first: Annotated[date, Parameter(name="--from", help="The first day.")],
    last: Annotated[date, Parameter(name="--until", help="The last day, included.")],
    tenant: Annotated[str | None, Parameter(help="Of this tenant alone.", show_default="all")] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Write what each tenant used in a period, in every dimension, to a file.

    Example:  penstock pipeline invoices june.csv --from 2026-06-01 --until 2026-06-30
    """
    _need_spark()
    from penstock.pipeline.failure import naming
    from penstock.pipeline.invoices import Paper, invoice_lines, write_lines

    suffix = file.suffix.removeprefix(".")
    if suffix not in list(Paper):
        raise SettingInvalid(
            where="flags", key="file", value=str(file), expected="expected .csv, .json or .parquet"
        )
    wanted, runner = _runner(settings, master, options)
    _need_table(runner, wanted, "platform.usage_daily", "metering")
    with naming("the use of tenants"):
        lines = invoice_lines(runner.tables.frame("platform.usage_daily"), first, last, tenant)
        write_lines(lines, file, Paper(suffix))
    tell(f"{len(lines)} lines in {plain(str(file))}")
    return Exit.FINE


@app.command
def slo(
    *,
    plot: Annotated[Path | None, Parameter(help="Draw it into this file, .png or .html.")] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Show the fleet's latency and availability, week over week.

    Example:  penstock pipeline slo --plot slo.html
    """
    _need_spark()
    from penstock.pipeline.failure import naming
    from penstock.pipeline.report import draw, weeks_of

    wanted, runner = _runner(settings, master, options)
    _need_table(runner, wanted, "platform.slo_fleet", "slo")
    with naming("the fleet's SLO"):
        weeks = weeks_of(runner.tables.frame("platform.slo_fleet"))
        if plot is not None:
            draw(weeks, plot)
    if plot is not None:
        tell(f"drawn: {plain(str(plot))}")
    rows = [asdict(week) for week in weeks]
    view = [
        row
        | {"change": "-" if row["change"] is None else f"{row['change']:+.1%}"}
        | {key: f"{row[key]:.4%}" for key in ("availability_median", "availability_p99")}
        for row in rows
    ]
    columns = {
        "WEEK": "week",
        "CLUSTERS": "clusters",
        "MEDIAN MS": "latency_median_ms",
        "P90 MS": "latency_p90_ms",
    }
    columns |= {"P99 MS": "latency_p99_ms", "CHANGE": "change", "AVAILABLE": "availability_median"}
    show(rows, options.form, table_of(view, columns | {"P99 OF IT": "availability_p99"}))
    return Exit.FINE


@app.command
def rebuild(
    *,
    application: Annotated[str, Parameter(help="The application, as module:name.")],
    topic: Annotated[str, Parameter(help="Its log.")],
    state: Annotated[Path, Parameter(help="A new directory, for the SQLite files of its executors.")],
    log: Annotated[
        str | None, Parameter(help="What its events call the log.", show_default="the topic")
    ] = None,
    group: Annotated[
        str | None,
        Parameter(help="Executors' group: what it has sent is not sent again.", show_default="none"),
    ] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Fold a whole log into the state of an event-processing application, for its executors to go on from.

    Example:  penstock pipeline rebuild --application bank:BANK --topic accounts --state state
    """
    _need_spark()
    from penstock.cli.olep import find_application
    from penstock.olep.codec import JsonCodec
    from penstock.pipeline.access import connection_for, settings_for
    from penstock.pipeline.folding import Task
    from penstock.pipeline.kafka import committed_by, look_at
    from penstock.pipeline.rebuild import kafka_form, rebuild_files

    found = find_application(application)
    lies_in = next(path for path in (state, *state.absolute().parents) if path.exists())
    if not lies_in.is_dir() or (lies_in == state and any(state.iterdir())):
        raise SettingInvalid(
            where="flags", key="--state", value=str(state), expected="expected a new directory"
        )
    connection = connection_for(settings_for(options.layout, settings), options.layout)
    facts = asyncio.run(look_at(connection, topic, job=found.name))
    sent = asyncio.run(committed_by(connection, group, topic)) if group else {}
    wanted, runner = _runner(settings, master, options)
    task = Task(found, log or topic, kafka_form(facts.id), JsonCodec(), facts.end, sent, group)
    with progress(f"folding {topic}"):
        work = wanted.state / "rebuild" / found.name / facts.id
        done = rebuild_files(runner.session, connection, facts, task, work, state)
    show(asdict(done), options.form, table_of([asdict(done)], {"ROWS": "rows", "TO SEND": "outgoing"}))
    return Exit.FINE


def _need_spark() -> None:
    try:
        import pyspark  # noqa: F401 - whether it is there is all that is asked
    except ImportError as error:
        raise ExtraMissing(what="penstock pipeline", module="pyspark", extra="spark") from error


def _need_table(runner: Runner, settings: PipelineSettings, table: str, job: str) -> None:
    if not runner.tables.exists(table):
        raise TableMissing(table=table, where=settings.lake.warehouse, job=job)


def _runner(file: Path | None, master: str | None, options: Options) -> tuple[PipelineSettings, Runner]:
    from penstock.pipeline.access import connection_for, runner_for, settings_for

    settings = settings_for(options.layout, file, master)
    connection = connection_for(settings, options.layout)
    with progress("starting Spark"):
        return settings, runner_for(settings, connection)


def _show_outcome(outcome: Outcome, options: Options) -> None:
    row = {
        "job": outcome.job,
        "records": outcome.rows,
        "batches": outcome.batches,
        "rejected": outcome.rejected,
        "renewed": outcome.renewed,
        "behind": outcome.behind,
        "lost": {str(p): list(span) for p, span in outcome.lost.items()} or None,
    }
    columns = {
        "JOB": "job",
        "RECORDS": "records",
        "BATCHES": "batches",
        "REJECTED": "rejected",
        "BEHIND": "behind",
    }
    show(row, options.form, table_of([row], columns | {"LOST": "lost"}))


@contextmanager
def _watching(job: str) -> Iterator[Callable[[JobStatus], None]]:
    """A bar with rows, rate and offsets behind on a terminal; a line for each step elsewhere."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda said: tell(f"{job}: {said.rows} records, {said.batches} batches, {said.behind} behind")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=out, transient=True) as bar:
        task = bar.add_task(job, total=None, rate="")
        began = time.monotonic()

        def observe(said: JobStatus) -> None:
            rate = f"{said.rows / max(time.monotonic() - began, 0.001):,.0f}/s, {said.behind or 0:,} behind"
            bar.update(task, completed=said.rows, total=said.rows + (said.behind or 0), rate=rate)

        yield observe


@contextmanager
def _until_signal() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM asks the job to end at the next safe place; the second one ends it."""
    stop = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
