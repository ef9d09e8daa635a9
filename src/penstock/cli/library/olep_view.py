"""`penstock olep view`: runs, inspects and rebuilds views of a log."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.flags import import_object, key_values
from penstock.cli.output import Format, report, show, table_of
from penstock.cli.settings import LogLines, Metrics, start_logs
from penstock.gc_tuning import rare_collections
from penstock.log_lines import active_format, announce
from penstock.metrics_server import metrics_at, page_of
from penstock.model.errors import Exit
from penstock.model.errors.views import ViewMissing
from penstock.olep.log import Log, end_position
from penstock.olep.view import SKIPPED, ViewStore, ViewStores, digest
from penstock.olep.view.consistent_reads import SWITCH_SECONDS
from penstock.olep.view.projection import Projection
from penstock.olep.view.rebuild import drop_unused
from penstock.olep.view.rebuild import rebuild as rebuild_view
from penstock.olep.view.runner import Progress, Tuning, ViewRunner, catch_up
from penstock.olep.view.settings import BATCH_DEFAULT, BOOTSTRAP_DEFAULT, ViewSettings, read_view_settings
from penstock.olep.view.stores.memory import MemoryViews
from penstock.stop_signals import stop_flag

app = App(name="view", help="Views of a log: run, status, verify, rebuild, drop.")

PROGRESS_SECONDS = 5.0  # between lines about progress


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Kafka:
    """The flags of the log and of the output."""

    topic: Annotated[str | None, Parameter(help="The topic of the log.")] = None
    bootstrap: Annotated[
        str | None, Parameter(help="Kafka's address, host:port.", show_default=BOOTSTRAP_DEFAULT)
    ] = None
    option: Annotated[
        tuple[str, ...], Parameter(name=["--option", "-X"], help="Client property, key=value.", negative="")
    ] = ()
    output: Annotated[Format, Parameter(name=["--output", "-o"], help="Output format.")] = Format.TABLE


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class View:
    """The flags of the view: its settings file, its projection and its store."""

    config: Annotated[Path | None, Parameter(help="Settings file, overridden by flags.", negative="")] = None
    projection: Annotated[str | None, Parameter(help="The projection, module:name.")] = None
    sqlite: Annotated[Path | None, Parameter(help="Directory of SQLite files.")] = None
    postgres: Annotated[str | None, Parameter(help="Connection string of a database.")] = None
    redis: Annotated[str | None, Parameter(help="Address of a Valkey or Redis, redis://…")] = None

    def settings(self, kafka: Kafka, **more: object) -> ViewSettings:
        flags = {
            "projection": self.projection, "topic": kafka.topic, "bootstrap": kafka.bootstrap,
            "sqlite": None if self.sqlite is None else str(self.sqlite.absolute()),
            "postgres": self.postgres, "redis": self.redis, **more,
        }  # fmt: skip
        given: dict[str, Any] = {key: value for key, value in flags.items() if value is not None}
        if kafka.option:
            given["options"] = key_values(kafka.option, "--option")
        return read_view_settings(self.config, os.environ, given)


def _projection(settings: ViewSettings) -> Projection:
    return import_object(settings.projection, Projection, "--projection")


@app.command
def run(
    *,
    view: View = View(),
    kafka: Kafka = Kafka(),
    batch: Annotated[
        int | None, Parameter(help="Records in one transaction.", show_default=str(BATCH_DEFAULT))
    ] = None,
    once: Annotated[bool, Parameter(help="Stop at the current end of the log.", negative="")] = False,
    metrics: Metrics = None,
    log_format: LogLines = None,
) -> int:
    """Follow the log and keep the view up to date, until Ctrl-C.

    Example:  penstock olep view run --projection bank:BALANCES --sqlite views --topic accounts
    """
    settings = view.settings(kafka, batch=batch, metrics=metrics)
    start_logs(log_format)
    runner = ViewRunner(
        _projection(settings),
        settings.log(),
        settings.stores,
        tuning=Tuning(batch_max=settings.batch),
        on_progress=_progress_reporter(),
    )
    from penstock.olep.metrics import ViewCollector

    with rare_collections(), stop_flag() as stopping:

        def not_ready() -> str:
            return "it is stopping" if stopping.is_set() else runner.not_ready()

        with metrics_at(settings.metrics, page_of(ViewCollector(runner)), not_ready=not_ready) as url:
            if url:
                announce(f"metrics on {url}")
            if once:
                catch_up(runner, stopping)
                _report_progress(runner.progress())
            else:
                runner.run(stopping)
    return Exit.FINE


@app.command
def status(*, view: View = View(), kafka: Kafka = Kafka()) -> int:
    """Show the position of each generation, and which one serves.

    Example:  penstock olep view status --projection bank:BALANCES --sqlite views --topic accounts
    """
    settings = view.settings(kafka)
    projection, stores, log = _projection(settings), settings.stores, settings.log()
    tail, serving = end_position(log), stores.serving(projection.name)
    rows = []
    for generation in stores.generations(projection.name):
        try:
            store = stores.open(projection, log.topic_id, log.partitions, generation=generation)
        except Exception as error:  # noqa: BLE001 - a generation that cannot be opened is a line of the table
            rows.append({"generation": generation, "state": str(error)})
            continue
        position = store.position()
        lag = sum(end - position.of(log.topic_id, p) for p, end in tail.offsets[log.topic_id].items())
        skipped = sum(len([*store.scan(p, SKIPPED)]) for p in range(log.partitions))
        store.close()
        state = "serves" if generation == serving else "being built" if generation > (serving or 0) else "old"
        rows.append(
            {
                "generation": generation,
                "state": state,
                "lag": lag,
                "skipped": skipped,
                "token": position.token(),
            }
        )
    columns = {"GENERATION": "generation", "STATE": "state", "LAG": "lag", "SKIPPED": "skipped"}
    columns["POSITION"] = "token"
    for row in rows:
        row.update({name: "" for name in columns.values() if name not in row})
    show(rows, kafka.output, table_of(rows, columns))
    return Exit.FINE


@app.command
def verify(*, view: View = View(), kafka: Kafka = Kafka()) -> int:
    """Compare the view with a replay of the log up to the view's position.

    Example:  penstock olep view verify --projection bank:BALANCES --sqlite views --topic accounts
    """
    settings = view.settings(kafka)
    projection, log = _projection(settings), settings.log()
    store = _serving(projection, settings.stores, log)
    position = store.position()
    with store.reading(position) as reader:
        actual = digest(reader, projection)
    store.close()
    memory = MemoryViews()
    runner = ViewRunner(
        projection, log, memory, tuning=Tuning(batch_max=20_000), on_progress=_progress_reporter()
    )
    with rare_collections(), stop_flag() as stopping:
        catch_up(runner, stopping, until=position)
    replayed = memory.open(projection, log.topic_id, log.partitions, generation=1)
    with replayed.reading(position) as reader:
        expected = digest(reader, projection)
    same = actual == expected
    row = {"view": projection.name, "digest": actual, "replayed": expected, "same": same}
    columns = {"VIEW": "view", "DIGEST": "digest", "REPLAYED": "replayed", "SAME": "same"}
    show([row], kafka.output, table_of([row], columns))
    return Exit.FINE if same else Exit.FAILED


@app.command
def rebuild(
    *,
    view: View = View(),
    kafka: Kafka = Kafka(),
    drop: Annotated[bool, Parameter(help="Drop older generations afterwards.", negative="")] = False,
) -> int:
    """Rebuild the view from the start of the log, compare it with the old one, then swap.

    The old view serves meanwhile. An interrupted rebuild continues where it stopped.

    Example:  penstock olep view rebuild --projection bank:BALANCES --sqlite views --topic accounts
    """
    settings = view.settings(kafka)
    projection, stores = _projection(settings), settings.stores
    with rare_collections(), stop_flag() as stopping:
        done = rebuild_view(
            projection,
            settings.log(),
            stores,
            stopping,
            tuning=Tuning(batch_max=5000),
            on_progress=_progress_reporter(),
        )
    if done is None:
        report("stopped; run it again to continue")
        return Exit.FAILED
    dropped = []
    if drop:
        time.sleep(2 * SWITCH_SECONDS)  # until every reader uses the new generation
        dropped = drop_unused(projection, stores)
    row = {
        "view": done.view,
        "old": "" if done.old is None else done.old,
        "new": done.new,
        "compared": done.compared or "another version: nothing to compare",
        "dropped": ", ".join(map(str, dropped)),
    }
    columns = {"VIEW": "view", "OLD": "old", "NEW": "new", "COMPARED": "compared", "DROPPED": "dropped"}
    show([row], kafka.output, table_of([row], columns))
    return Exit.FINE


@app.command
def skipped(*, view: View = View(), kafka: Kafka = Kafka()) -> int:
    """List the events that the projection skipped.

    Example:  penstock olep view skipped --projection bank:BALANCES --sqlite views --topic accounts
    """
    settings = view.settings(kafka)
    projection, log = _projection(settings), settings.log()
    store = _serving(projection, settings.stores, log)
    rows = [
        {"partition": partition, "offset": at, "reason": reason, "detail": detail}
        for partition in range(log.partitions)
        for at, reason, detail in sorted(store.scan(partition, SKIPPED))
    ]
    store.close()
    columns = {"PARTITION": "partition", "OFFSET": "offset", "REASON": "reason", "DETAIL": "detail"}
    show(rows, kafka.output, table_of(rows, columns, empty="no skipped events"))
    return Exit.FINE


def _serving(projection: Projection, stores: ViewStores, log: Log) -> ViewStore:
    serving = stores.serving(projection.name)
    if serving is None:
        raise ViewMissing(view=projection.name, generation="any")
    return stores.open(projection, log.topic_id, log.partitions, generation=serving)


def _progress_reporter() -> Any:
    due = time.monotonic() + PROGRESS_SECONDS

    def on_progress(progress: Progress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + PROGRESS_SECONDS
            _report_progress(progress)

    return on_progress


def _report_progress(progress: Progress) -> None:
    left = progress.seconds_left
    line = report if active_format() is None else announce
    line(
        f"{progress.view} {progress.generation}: {progress.records} events, {progress.rate:.0f} a second, "
        f"{progress.lag} behind" + (f", {left:.0f} s left" if left and left >= 1 else "")
    )
    if progress.failure:
        line(f"{progress.view} {progress.generation}: {progress.failure}")
