"""`penstock pipeline`: jobs on Spark that write topics to tables."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.output import Format, console, plain, progress, report, show, table_of
from penstock.cli.settings import LogLines, Metrics, Options, start_logs
from penstock.fleet.jars import cache_directory
from penstock.log_lines import announce
from penstock.metrics_server import metrics_at, page_of
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.pipeline import TableMissing
from penstock.model.errors.settings import ExtraMissing, SettingInvalid
from penstock.model.plural import counted
from penstock.stop_signals import stop_flag

if TYPE_CHECKING:
    from penstock.pipeline.job import Job
    from penstock.pipeline.runner import Outcome, Runner
    from penstock.pipeline.settings import PipelineSettings
    from penstock.pipeline.status import JobStatus

app = App(name="pipeline", help="Jobs on Spark: topics to tables, metering, fleet SLO, audit.")

JobName = Annotated[str, Parameter(help="Name of the job.")]
SettingsFile = Annotated[
    Path | None,
    Parameter(name=("--settings", "-s"), help="Settings file of the pipeline.", show_default="none"),
]
Master = Annotated[str | None, Parameter(help="Spark's master.", show_default="local[*]")]


@app.command
def fetch(
    *,
    force: Annotated[bool, Parameter(help="Fetch again what is already cached.", negative="")] = False,
    to: Annotated[
        Path | None, Parameter(help="Copy what spark-submit needs to this directory.", show_default="none")
    ] = None,
    options: Options = Options(),
) -> int:
    """Resolve Spark's connectors with Maven, and verify them.

    Example:  penstock pipeline fetch --to submit
    """
    from penstock.pipeline.spark.connectors import SPARK_VERSION, connector_jars, copy_for_submit

    with progress(f"fetching connectors for Spark {SPARK_VERSION} with Maven, once"):
        jars = connector_jars(cache_directory(), force=force)
        if to is not None:
            jars = copy_for_submit(jars, to)
    data = {"spark": SPARK_VERSION, "jars": [str(jar) for jar in jars]}
    if options.form is not Format.TABLE:
        show(data, options.form, "")
    return Exit.FINE


@app.command(name="list")
def list_(*, settings: SettingsFile = None, options: Options = Options()) -> int:
    """List the jobs: source topic, table, mode, interval.

    Example:  penstock pipeline list
    """
    _need_spark()
    from penstock.pipeline.composition import settings_for
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
    live: Annotated[bool, Parameter(help="Run until stopped.", negative="")] = False,
    accept_loss: Annotated[
        bool, Parameter(help="Continue without records that retention has deleted.", negative="")
    ] = False,
    metrics: Metrics = None,
    options: Options = Options(),
) -> int:
    """Run a job: over what its topic holds now, or continuously with --live.

    Example:  penstock pipeline run metering
    """
    _need_spark()
    from penstock.pipeline.composition import match_topics, settings_for
    from penstock.pipeline.jobs import find_job, find_jobs
    from penstock.pipeline.metrics import JobsCollector

    chosen = match_topics(settings_for(options.layout, settings), options.layout)
    definitions = [find_job(chosen, job)] if live else find_jobs(chosen, job)
    with metrics_at(metrics, page_of(JobsCollector(chosen.state))):
        _, runner = _runner(settings, master, options)
        with stop_flag() as stop:
            for definition in definitions:
                with _watching(definition.name) as observe:
                    outcome = runner.run(
                        definition, live=live, accept_loss=accept_loss, observe=observe, stopped=stop.is_set
                    )
                _show_outcome(outcome, options)
    return Exit.FINE


@app.command
def schedule(
    *,
    settings: SettingsFile = None,
    master: Master = None,
    once: Annotated[bool, Parameter(help="Run the jobs that are due, then exit.", negative="")] = False,
    metrics: Metrics = None,
    log_format: LogLines = None,
    options: Options = Options(),
) -> int:
    """Run every job with an interval whenever it is due, until stopped. Compacts tables as needed.

    Example:  penstock pipeline schedule --settings pipeline.yaml
    """
    _need_spark()
    from penstock.pipeline.composition import match_topics, settings_for
    from penstock.pipeline.jobs import all_jobs
    from penstock.pipeline.lake.maintenance import maintain_due
    from penstock.pipeline.metrics import JobsCollector
    from penstock.pipeline.schedule import ListedJobs, SystemClock, run_schedule

    chosen = settings_for(options.layout, settings)
    start_logs(log_format)
    with ExitStack() as stack:
        stack.enter_context(metrics_at(metrics, page_of(JobsCollector(chosen.state))))
        _, runner = _runner(settings, master, options)
        stopped = stack.enter_context(stop_flag()).is_set

        def carry_out(job: Job) -> None:
            _show_outcome(runner.run(job, stopped=stopped), options)
            if not stopped():
                for kept in maintain_due(runner.tables, job, now=datetime.now(UTC)):
                    announce(f"compacted {kept.table}: {kept.files_before} files, now {kept.files_after}")

        def failed(job: Job, error: PenstockError) -> None:
            announce(f"{job.name} failed: {error}")
            if (
                not runner.alive()
            ):  # without Spark every run would fail, so let a supervisor restart this process
                raise error

        clock = SystemClock()
        jobs = ListedJobs(lambda: all_jobs(match_topics(chosen, options.layout)).values(), clock)
        well = run_schedule(jobs, carry_out, clock=clock, stopped=stopped, failed=failed, once=once)
    return Exit.FAILED if once and not well else Exit.FINE


@app.command
def status(*, settings: SettingsFile = None, options: Options = Options()) -> int:
    """Show every job: state, last run, lag.

    Example:  penstock pipeline status
    """
    _need_spark()
    from penstock.pipeline.composition import settings_for
    from penstock.pipeline.jobs import all_jobs
    from penstock.pipeline.status import job_files, read_status

    chosen = settings_for(options.layout, settings)
    rows = [asdict(read_status(job_files(chosen.state, name), name)) for name in all_jobs(chosen)]
    for row in rows:
        stamp = row["updated_ms"]
        row["updated"] = (
            datetime.fromtimestamp(stamp / 1000, UTC).isoformat(timespec="seconds") if stamp else None
        )
    columns = {
        "JOB": "job",
        "STATE": "state",
        "UPDATED": "updated",
        "RECORDS": "records",
        "REJECTED": "rejected",
    }
    show(rows, options.form, table_of(rows, columns | {"LAG": "lag", "ERROR": "error"}))
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
    from penstock.pipeline.backfill import backfill as fill
    from penstock.pipeline.backfill import resolve_range
    from penstock.pipeline.composition import connection_for, match_topics, settings_for
    from penstock.pipeline.jobs import find_job
    from penstock.pipeline.lock import exclusive_run
    from penstock.pipeline.spark.kafka import describe_topic
    from penstock.pipeline.status import job_files

    chosen = match_topics(settings_for(options.layout, settings), options.layout)
    definition = find_job(chosen, job)
    connection = connection_for(chosen, options.layout)
    topic = asyncio.run(describe_topic(connection, definition.source.topic, job=job))
    resolve_range(topic, job, start, until)  # so that a wrong range is refused before Spark starts
    _, runner = _runner(settings, master, options)
    with (
        exclusive_run(job_files(chosen.state, job).lock, job),
        progress(f"reading {definition.source.topic} again"),
    ):
        filled = fill(runner.tables, definition, connection, topic, start, until)
    row = {"job": job, "records": filled.records, "rejected": filled.rejected}
    show(
        asdict(filled),
        options.form,
        table_of([row], {"JOB": "job", "RECORDS": "records", "REJECTED": "rejected"}),
    )
    return Exit.FINE


@app.command
def explain(job: JobName, *, settings: SettingsFile = None, options: Options = Options()) -> int:
    """Explain what a job would do: source, tables, and where the next run starts.

    Example:  penstock pipeline explain metering
    """
    _need_spark()
    from penstock.pipeline.composition import connection_for, match_topics, settings_for
    from penstock.pipeline.jobs import find_job
    from penstock.pipeline.lake.ledger import lag
    from penstock.pipeline.spark.checkpoint import LocalDirectory, read_checkpoint
    from penstock.pipeline.spark.kafka import describe_topic, group_of
    from penstock.pipeline.status import job_files, read_status

    chosen = match_topics(settings_for(options.layout, settings), options.layout)
    definition = find_job(chosen, job)
    topic = asyncio.run(
        describe_topic(connection_for(chosen, options.layout), definition.source.topic, job=job)
    )
    files = job_files(chosen.state, job)
    location = chosen.checkpoint_of(job)
    checkpoint = read_checkpoint(job, LocalDirectory(Path(location)), topic.name)
    last = read_status(files, job).offsets
    done = checkpoint.end if checkpoint is not None else {int(p): at for p, at in last.items()}
    begin = ", ".join(f"{p}:{done.get(p, o)}" for p, o in sorted(topic.start.items()))
    if checkpoint is None:  # to ask the table, or another file system, takes Spark
        begin += f", or later: at the position of {definition.sink.table}"
    partitions = counted(len(topic.start), "partition")
    data: dict[str, Any] = {
        "job": job,
        "reads": f"{topic.name}, {partitions}, {definition.source.format}, committed records",
        "writes": f"{definition.sink.table}, {definition.sink.mode}",
        "rejects to": definition.sink.rejected,
        "derives": ", ".join(each.table for each in definition.derived) or None,
        "lake": chosen.lake.warehouse,
        "checkpoint": location,
        "next batch": (checkpoint.committed if checkpoint is not None else -1) + 1,
        "begins at": begin,
        "lag": lag(topic, done),
        "lag is shown by": f"group {group_of(job)}",
        "master": chosen.engine.master,
    }
    rows = [{"what": key, "value": value} for key, value in data.items()]
    show(data, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command
def maintain(
    table: Annotated[str, Parameter(help="A table, as namespace.name.")],
    *,
    days: Annotated[float, Parameter(help="Days of history to keep.")] = 5.0,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Compact a table's files, expire old snapshots, delete orphan files. Rows do not change.

    Example:  penstock pipeline maintain platform.probes
    """
    _need_spark()
    from penstock.pipeline.lake.maintenance import maintain as keep

    chosen, runner = _runner(settings, master, options)
    if not runner.tables.exists(table):
        raise TableMissing(table=table, where=chosen.lake.warehouse, job="<job>")
    with progress(f"maintaining {table}"):
        kept = asdict(keep(runner.tables, table, now=datetime.now(UTC), days=days))
    columns = {"TABLE": "table", "FILES": "files_before", "NOW": "files_after"}
    columns |= {"COMMITS": "snapshots_before", "KEPT": "snapshots_after", "ORPHANS": "orphans"}
    show(kept, options.form, table_of([kept], columns))
    return Exit.FINE


@app.command
def invoices(
    file: Annotated[Path, Parameter(help="Output file: .csv, .json or .parquet.")],
    *,
    first: Annotated[date, Parameter(name="--from", help="The first day.")],
    last: Annotated[date, Parameter(name="--until", help="The last day, included.")],
    tenant: Annotated[str | None, Parameter(help="Only this tenant.", show_default="all")] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Write each tenant's usage of a period to a file, by dimension.

    Example:  penstock pipeline invoices june.csv --from 2026-06-01 --until 2026-06-30
    """
    _need_spark()
    from penstock.pipeline.jobs.invoices import InvoiceFormat, invoice_lines, write_lines
    from penstock.pipeline.spark.failure import translate_errors

    suffix = file.suffix.removeprefix(".")
    if suffix not in list(InvoiceFormat):
        raise SettingInvalid(
            where="flags", key="file", value=str(file), expected="expected .csv, .json or .parquet"
        )
    chosen, runner = _runner(settings, master, options)
    _need_table(runner, chosen, "platform.usage_daily", "metering")
    with translate_errors("the use of tenants"):
        lines = invoice_lines(runner.tables.frame("platform.usage_daily"), first, last, tenant)
        write_lines(lines, file, InvoiceFormat(suffix))
    report(f"wrote {counted(len(lines), 'line')} to {plain(str(file))}")
    return Exit.FINE


@app.command
def slo(
    *,
    plot: Annotated[Path | None, Parameter(help="Plot to this file, .png or .html.")] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Show the fleet's latency and availability, week over week.

    Example:  penstock pipeline slo --plot slo.html
    """
    _need_spark()
    from penstock.pipeline.jobs.slo_report import draw, weeks_of
    from penstock.pipeline.spark.failure import translate_errors

    chosen, runner = _runner(settings, master, options)
    _need_table(runner, chosen, "platform.slo_fleet", "slo")
    with translate_errors("the fleet's SLO"):
        weeks = weeks_of(runner.tables.frame("platform.slo_fleet"))
        if plot is not None:
            draw(weeks, plot)
    if plot is not None:
        report(f"wrote {plain(str(plot))}")
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
    state: Annotated[Path, Parameter(help="New directory for the executors' SQLite files.")],
    log: Annotated[
        str | None, Parameter(help="Name of the log in its events.", show_default="the topic")
    ] = None,
    group: Annotated[
        str | None,
        Parameter(help="Executors' group, so that its output is not sent again.", show_default="none"),
    ] = None,
    settings: SettingsFile = None,
    master: Master = None,
    options: Options = Options(),
) -> int:
    """Build the state of an event-processing application from its whole log.

    Example:  penstock pipeline rebuild --application bank:BANK --topic accounts --state state
    """
    _need_spark()
    from penstock.cli.library.olep import find_application
    from penstock.olep.codec import JsonCodec
    from penstock.pipeline.composition import connection_for, settings_for
    from penstock.pipeline.lake.ledger import kafka_topic_id
    from penstock.pipeline.olep_fold import FoldTask
    from penstock.pipeline.olep_rebuild import rebuild as rebuild_stores
    from penstock.pipeline.spark.kafka import committed_offsets, describe_topic

    folded = find_application(application)
    nearest = next(path for path in (state, *state.absolute().parents) if path.exists())
    if not nearest.is_dir() or (nearest == state and any(state.iterdir())):
        raise SettingInvalid(
            where="flags", key="--state", value=str(state), expected="expected a new directory"
        )
    connection = connection_for(settings_for(options.layout, settings), options.layout)
    facts = asyncio.run(describe_topic(connection, topic, job=folded.name))
    sent = asyncio.run(committed_offsets(connection, group, topic)) if group else {}
    chosen, runner = _runner(settings, master, options)
    task = FoldTask(folded, log or topic, kafka_topic_id(facts.id), JsonCodec(), facts.end, sent, group)
    with progress(f"folding {topic}"):
        work = chosen.state / "rebuild" / folded.name / facts.id
        done = rebuild_stores(runner.session, connection, facts, task, work, state)
    show(asdict(done), options.form, table_of([asdict(done)], {"ROWS": "rows", "TO SEND": "outgoing"}))
    return Exit.FINE


def _need_spark() -> None:
    try:
        import pyspark  # noqa: F401 - only to see that it is installed
    except ImportError as error:
        raise ExtraMissing(what="penstock pipeline", module="pyspark", extra="spark") from error


def _need_table(runner: Runner, settings: PipelineSettings, table: str, job: str) -> None:
    if not runner.tables.exists(table):
        raise TableMissing(table=table, where=settings.lake.warehouse, job=job)


def _runner(file: Path | None, master: str | None, options: Options) -> tuple[PipelineSettings, Runner]:
    from penstock.pipeline.composition import connection_for, runner_for, settings_for

    settings = settings_for(options.layout, file, master)
    connection = connection_for(settings, options.layout)
    with progress("starting Spark"):
        return settings, runner_for(settings, connection)


def _show_outcome(outcome: Outcome, options: Options) -> None:
    row = {
        "job": outcome.job,
        "records": outcome.records,
        "batches": outcome.batches,
        "rejected": outcome.rejected,
        "refreshed": outcome.refreshed,
        "lag": outcome.lag,
        "lost": {str(p): list(span) for p, span in outcome.lost.items()} or None,
    }
    columns = {
        "JOB": "job",
        "RECORDS": "records",
        "BATCHES": "batches",
        "REJECTED": "rejected",
        "LAG": "lag",
    }
    show(row, options.form, table_of([row], columns | {"LOST": "lost"}))


@contextmanager
def _watching(job: str) -> Iterator[Callable[[JobStatus], None]]:
    """A progress bar on a terminal; a line for each step elsewhere."""
    out = console(stderr=True)
    if not out.is_interactive:
        yield lambda status: report(
            f"{job}: {status.records} records, {status.batches} batches, lag {status.lag}"
        )
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

        def observe(status: JobStatus) -> None:
            records, lag = status.records, status.lag or 0
            rate = f"{records / max(time.monotonic() - began, 0.001):,.0f}/s, lag {lag:,}"
            bar.update(task, completed=records, total=records + lag, rate=rate)

        yield observe
