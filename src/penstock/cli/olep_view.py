"""`penstock olep view`: run views of a log, look at them, rebuild them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.output import Format, show, table_of, tell
from penstock.garbage import rare_collections
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid
from penstock.model.errors.views import ViewMissing
from penstock.olep.log import Log, ends, open_log
from penstock.olep.view import SKIPPED, ViewStore, ViewStores, digest
from penstock.olep.view.memory import MemoryViews
from penstock.olep.view.projection import Projection
from penstock.olep.view.rebuild import drop_unused
from penstock.olep.view.rebuild import rebuild as rebuild_view
from penstock.olep.view.runner import Progress, Tuning, ViewRunner, catch_up
from penstock.olep.view.sqlite import SqliteViews

app = App(name="view", help="Views of a log: run, status, verify, rebuild, drop.")

TELL_SECONDS = 5.0  # between lines about progress


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Which log, and how data is printed."""

    topic: Annotated[str, Parameter(help="The topic of the log.")]
    bootstrap: Annotated[str, Parameter(help="Kafka's address, host:port.")] = "127.0.0.1:9092"
    option: Annotated[
        tuple[str, ...], Parameter(name=["--option", "-X"], help="Client property, key=value.", negative="")
    ] = ()
    output: Annotated[Format, Parameter(name=["--output", "-o"], help="How data is printed.")] = Format.TABLE

    def log(self) -> Log:
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        for each in self.option:
            key, found, value = each.partition("=")
            if not found:
                raise SettingInvalid(where="flags", key="--option", value=each, expected="expected key=value")
            config[key] = value
        return open_log(config, self.topic)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class View:
    """Which view: what it is made by, and where it lives."""

    projection: Annotated[str, Parameter(help="The projection, module:name.")]
    sqlite: Annotated[Path | None, Parameter(help="Directory of SQLite files.")] = None
    tantivy: Annotated[Path | None, Parameter(help="The same, with text searched by tantivy.")] = None
    postgres: Annotated[str | None, Parameter(help="Connection string of a database.")] = None
    redis: Annotated[str | None, Parameter(help="Address of a Valkey or Redis, redis://…")] = None
    warehouse: Annotated[Path | None, Parameter(help="Directory of Parquet files.")] = None

    def made_by(self) -> Projection:
        module, _, attribute = self.projection.partition(":")
        sys.path.insert(0, str(Path.cwd()))
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingInvalid(
                where="flags",
                key="--projection",
                value=self.projection,
                expected=f"expected module:name ({error})",
            ) from error
        finally:
            sys.path.pop(0)
        if not isinstance(found, Projection):
            raise SettingInvalid(
                where="flags", key="--projection", value=self.projection, expected="which is no Projection"
            )
        return found

    def stores(self) -> ViewStores:
        places = (self.sqlite, self.tantivy, self.postgres, self.redis, self.warehouse)
        if len([each for each in places if each is not None]) != 1:
            raise SettingInvalid(
                where="flags",
                key="--sqlite",
                value=self.sqlite,
                expected="expected one of --sqlite, --tantivy, --postgres, --redis and --warehouse",
            )
        if self.tantivy is not None:
            from penstock.olep.view.tantivy import TantivyViews

            return TantivyViews(self.tantivy)
        if self.postgres is not None:
            from penstock.olep.view.postgres import PostgresViews

            return PostgresViews(self.postgres)
        if self.redis is not None:
            from penstock.olep.view.redis import RedisViews

            return RedisViews(self.redis)
        if self.warehouse is not None:
            from penstock.olep.view.warehouse import WarehouseViews

            return WarehouseViews(self.warehouse)
        assert self.sqlite is not None
        return SqliteViews(self.sqlite)


@app.command
def run(
    *,
    view: View,
    kafka: Kafka,
    batch: Annotated[int, Parameter(help="Records in one transaction.")] = 1000,
    once: Annotated[bool, Parameter(help="Stop at the log's present end.", negative="")] = False,
) -> int:
    """Follow the log and keep the view up to date. Ctrl-C stops it.

    Example:  penstock olep view run --projection bank:BALANCES --sqlite views --topic accounts
    """
    log = kafka.log()
    runner = ViewRunner(view.made_by(), log, view.stores(), tuning=Tuning(batch_max=batch), see=_teller())
    stopping = _stop_on_signals()
    with rare_collections():
        if once:
            catch_up(runner, stopping)
            _told(runner.progress())
        else:
            runner.run(stopping)
    return Exit.FINE


@app.command
def status(*, view: View, kafka: Kafka) -> int:
    """Print where each generation stands, and which one serves.

    Example:  penstock olep view status --projection bank:BALANCES --sqlite views --topic accounts
    """
    projection, stores, log = view.made_by(), view.stores(), kafka.log()
    tail, serving = ends(log), stores.serving(projection.name)
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
def verify(*, view: View, kafka: Kafka) -> int:
    """Compare the view with the replayed log, at the position where it stands.

    Example:  penstock olep view verify --projection bank:BALANCES --sqlite views --topic accounts
    """
    projection, log = view.made_by(), kafka.log()
    store = _serving(projection, view.stores(), log)
    position = store.position()
    with store.reading(position) as reader:
        found = digest(reader, projection)
    store.close()
    memory = MemoryViews()
    runner = ViewRunner(projection, log, memory, tuning=Tuning(batch_max=20_000), see=_teller())
    with rare_collections():
        catch_up(runner, _stop_on_signals(), until=position)
    replayed = memory.open(projection, log.topic_id, log.partitions, generation=1)
    with replayed.reading(position) as reader:
        expected = digest(reader, projection)
    same = found == expected
    row = {"view": projection.name, "digest": found, "replayed": expected, "same": same}
    columns = {"VIEW": "view", "DIGEST": "digest", "REPLAYED": "replayed", "SAME": "same"}
    show([row], kafka.output, table_of([row], columns))
    return Exit.FINE if same else Exit.FAILED


@app.command
def rebuild(
    *,
    view: View,
    kafka: Kafka,
    drop: Annotated[bool, Parameter(help="Drop older generations afterwards.", negative="")] = False,
) -> int:
    """Build the view anew from the log's start while the old one serves; compare; swap.

    A rebuild that was interrupted goes on where it stopped.

    Example:  penstock olep view rebuild --projection bank:BALANCES --sqlite views --topic accounts
    """
    projection, stores = view.made_by(), view.stores()
    with rare_collections():
        done = rebuild_view(
            projection,
            kafka.log(),
            stores,
            _stop_on_signals(),
            tuning=Tuning(batch_max=5000),
            see=_teller(),
        )
    if done is None:
        tell("stopped; call it again to go on")
        return Exit.FAILED
    dropped = drop_unused(projection, stores) if drop else []
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
def skipped(*, view: View, kafka: Kafka) -> int:
    """List the events that the projection could not apply and went past.

    Example:  penstock olep view skipped --projection bank:BALANCES --sqlite views --topic accounts
    """
    projection, log = view.made_by(), kafka.log()
    store = _serving(projection, view.stores(), log)
    rows = [
        {"partition": partition, "offset": at, "reason": reason, "detail": detail}
        for partition in range(log.partitions)
        for at, reason, detail in sorted(store.scan(partition, SKIPPED))
    ]
    store.close()
    columns = {"PARTITION": "partition", "OFFSET": "offset", "REASON": "reason", "DETAIL": "detail"}
    show(rows, kafka.output, table_of(rows, columns))
    return Exit.FINE


def _serving(projection: Projection, stores: ViewStores, log: Log) -> ViewStore:
    serving = stores.serving(projection.name)
    if serving is None:
        raise ViewMissing(view=projection.name, generation="any")
    return stores.open(projection, log.topic_id, log.partitions, generation=serving)


def _teller() -> Any:
    due = time.monotonic() + TELL_SECONDS

    def see(progress: Progress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + TELL_SECONDS
            _told(progress)

    return see


def _told(progress: Progress) -> None:
    left = progress.seconds_left
    tell(
        f"{progress.view} {progress.generation}: {progress.records} events, {progress.rate:.0f} a second, "
        f"{progress.lag} behind" + (f", {left:.0f} s left" if left and left >= 1 else "")
    )
    if progress.failure:
        tell(f"{progress.view} {progress.generation}: {progress.failure}")


def _stop_on_signals() -> threading.Event:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
