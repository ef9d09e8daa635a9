"""Views: events a second per store, rebuild speed, and the cost of consistent reads.

The log is a bank's: three events per payment, of which a view applies one and skips two. Skipped events
count too, since a view must keep up with the whole log.

*Apply*: records in memory → fold → store, without Kafka, by batch size. *Rebuild*: from Kafka, by the
runner. *Reads*: two SQLite views written by runners in this process while another process appends; plain
reads and snapshots run the same queries, alternating.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness import ROOT, Result, Run, main
from bench.views_load import apply, produce, records_of
from examples.payments.bank import FINAL
from examples.payments.queries import NEWEST_LINES
from examples.payments.views import ACCOUNTS, CACHED_BALANCES, PAYMENTS, SEARCH, STATEMENTS
from penstock.gc_tuning import rare_collections
from penstock.olep.event import request
from penstock.olep.log import Appender, create_log, end_position, open_log
from penstock.olep.view.consistent_reads import LogTail, Reads
from penstock.olep.view.runner import Tuning, ViewRunner, run_together
from penstock.olep.view.snapshot_reads import Snapshots
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.harness.fleet import Fleet
from tests.harness.postgres import PostgresServer, without_postgres
from tests.harness.valkey import ValkeyServer, without_valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.olep.log import Log
    from penstock.olep.view import ViewStores
    from penstock.olep.view.projection import Projection

PARTITIONS = 2
GOAL_RATE = ">= 50000"
LOAD_RATE = 1500  # events a second during the reads
TUNING = Tuning()
_LINES = NEWEST_LINES.format(p="?", n=10)
BATCH_SECONDS = TUNING.linger_seconds + TUNING.gather_seconds


def measure(run: Run) -> Iterator[Result]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-views-")))
        yield from _apply(run, home, stack)
        shape = {
            "port": 0,
            "combined": True,
            "brokers": 1,
            "zones": ["a"],
            "jit": "quick" if run.quick else "full",
        }
        fleet = Fleet.start(home / "kafka", shape)
        stack.callback(fleet.destroy)
        yield from _rebuild(run, fleet.client_config(), home)
        yield from _reads(run, fleet.client_config(), home)


def _apply(run: Run, home: Path, stack: ExitStack) -> Iterator[Result]:
    stores: dict[str, tuple[Projection, Callable[[Path], ViewStores] | str]] = {
        "sqlite-statements": (STATEMENTS, SqliteViews),
        "sqlite-text-search": (SEARCH, SqliteViews),
        "postgres-statements": (STATEMENTS, _postgres(stack)),
        "valkey-balances": (CACHED_BALANCES, _valkey(stack)),
    }
    rates: dict[str, list[float]] = {name: [] for name in stores}
    for batch, payments in ((1, 100), (100, 2_000), (1000, 10_000)):
        records = records_of(payments if run.quick else 10 * payments)
        for name, (projection, make) in stores.items():
            goal = GOAL_RATE if batch == 1000 and name.startswith("sqlite") else None
            label, unit = f"apply-{name}-batch-{batch}", "events a second"
            if isinstance(make, str):
                yield Result.missing(label, unit=unit, goal=goal, reason=make, optional=True)
                continue
            measured = [
                apply(projection, make(home / f"{name}-{batch}-{number}"), records, batch)
                for number in range(1 if run.quick else 3)
            ]
            rates[name].append(statistics.median(len(records) / seconds for seconds, _ in measured))
            yield Result.of_runs(
                label, [len(records) / seconds for seconds, _ in measured], unit=unit, goal=goal,
                detail={
                    "events_per_processor_second": statistics.median(len(records) / u for _, u in measured),
                    "applied_share": 1 / 3,
                },
            )  # fmt: skip
    with run.plot("apply", title="Events applied by batch size", x="batch", y="events a second") as axes:
        for name, measured_rates in rates.items():
            if len(measured_rates) == 3:
                axes.plot(["1", "100", "1000"], measured_rates, "o-", label=name)
        axes.set_yscale("log")
        axes.legend()


def _postgres(stack: ExitStack) -> Callable[[Path], ViewStores] | str:
    if missing := without_postgres():
        return missing
    from penstock.olep.view.stores.postgres import PostgresViews

    server = stack.enter_context(PostgresServer.start())

    def fresh(_: Path) -> ViewStores:
        views = PostgresViews(server.dsn)
        views.drop("statements", 1)
        return views

    return fresh


def _valkey(stack: ExitStack) -> Callable[[Path], ViewStores] | str:
    if missing := without_valkey():
        return missing
    from penstock.olep.view.stores.redis import RedisViews

    server = stack.enter_context(ValkeyServer.start())

    def fresh(_: Path) -> ViewStores:
        views = RedisViews(server.url)
        views.drop("cached_balances", 1)
        return views

    return fresh


def _rebuild(run: Run, config: dict[str, Any], home: Path) -> Iterator[Result]:
    payments = 60_000 if run.quick else 1_666_667
    create_log(config, "rebuild", PARTITIONS)
    produce(config, "rebuild", PARTITIONS, payments)
    log = open_log(config, "rebuild")
    count = sum(end_position(log).offsets[log.topic_id].values())
    for name, projection in (("statements", STATEMENTS), ("text-search", SEARCH)):
        runner = ViewRunner(projection, log, SqliteViews(home / "rebuild"), tuning=Tuning(batch_max=5000))
        begin, used = time.perf_counter(), time.process_time()
        with rare_collections():
            runner.run(threading.Event(), until=end_position(log))
        seconds, used = time.perf_counter() - begin, time.process_time() - used
        detail = {"events": count, "seconds": seconds, "events_per_processor_second": count / used}
        yield Result(f"rebuild-{name}", count / seconds, "events a second", detail=detail)


@contextmanager
def _load(config: dict[str, Any], topic: str, payments: int) -> Iterator[None]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    words = [json.dumps(config), topic, str(PARTITIONS), str(payments), str(LOAD_RATE)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.views_load", *words], env={**os.environ, "PYTHONPATH": path}, cwd=ROOT
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _reads(run: Run, config: dict[str, Any], home: Path) -> Iterator[Result]:
    create_log(config, "reads", PARTITIONS)
    log = open_log(config, "reads")
    count = 200 if run.quick else 2000
    stores, stopping = SqliteViews(home / "reads"), threading.Event()
    statements = ViewRunner(STATEMENTS, log, stores, tuning=TUNING)
    search = ViewRunner(SEARCH, log, stores, tuning=TUNING)
    thread = threading.Thread(target=lambda: run_together([statements, search], stopping))
    with ExitStack() as stack:
        thread.start()
        stack.callback(thread.join)
        stack.callback(stopping.set)
        tail = stack.enter_context(LogTail(log))
        one = stack.enter_context(Reads(STATEMENTS, log, stores, runner=statements, tail=tail))
        two = stack.enter_context(Reads(SEARCH, log, stores, runner=search, tail=tail))
        both = {"statements": one, "search": two}
        snapshots = stack.enter_context(Snapshots(log, both, tail=tail, final=FINAL))
        stack.enter_context(_load(config, "reads", 200 * count))
        while stores.serving("search") is None or log_is_quiet(log):
            time.sleep(0.05)
        yield from _own_writes(log, one, count)
        yield from _beside_plain(run, snapshots, one, two, count)
        yield from _staleness(run, tail, one, snapshots, count)


def log_is_quiet(log: Log) -> bool:
    return sum(end_position(log).offsets[log.topic_id].values()) < 3000


def _own_writes(log: Log, reads: Reads, count: int) -> Iterator[Result]:
    """Times each append, and the append with reading it back."""
    appender = Appender(log)
    appends, whole = [], []
    for number in range(count + 20):
        event = request(f"own-{number}", "account.open", {}, time=0)
        begin = time.perf_counter()
        token = appender.append("own", event)
        middle = time.perf_counter()
        with reads.after(token) as reader:
            reader.get(ACCOUNTS, "account-7")
        end = time.perf_counter()
        if number >= 20:  # the first ones have cold caches
            appends.append(middle - begin)
            whole.append(end - begin)
    append_p99, whole_p99 = _percentile(appends, 0.99), _percentile(whole, 0.99)
    bound = 2 * append_p99 + BATCH_SECONDS
    detail = {
        "append_ms": {"p50": _percentile(appends, 0.5) * 1000, "p99": append_p99 * 1000},
        "read_your_writes_ms": {"p50": _percentile(whole, 0.5) * 1000, "p99": whole_p99 * 1000},
        "batch_interval_ms": BATCH_SECONDS * 1000,
    }
    yield Result(
        "read-your-writes-p99", whole_p99 / bound, "ratio to 2 × append's p99 + a batch interval",
        "<= 1", detail=detail,
    )  # fmt: skip


def _beside_plain(run: Run, snapshots: Snapshots, one: Reads, two: Reads, count: int) -> Iterator[Result]:
    plain, at_once = [], []
    for number in range(count + 20):
        keys = (f"account-{number % 5000}", f"account-{(number * 7) % 5000}")
        begin = time.perf_counter()
        with one.latest() as accounts, two.latest() as payments:
            _query(accounts, payments, keys, number)
        middle = time.perf_counter()
        with snapshots.take(age_max=60.0) as snapshot:
            _query(snapshot["statements"], snapshot["search"], keys, number)
        end = time.perf_counter()
        if number >= 20:
            plain.append(middle - begin)
            at_once.append(end - middle)
    for name in ("p50", "p99"):
        fraction = int(name[1:]) / 100
        plain_seconds, snapshot_seconds = _percentile(plain, fraction), _percentile(at_once, fraction)
        detail = {"plain_ms": plain_seconds * 1000, "snapshot_ms": snapshot_seconds * 1000}
        yield Result(
            f"snapshot-read-{name}", snapshot_seconds / plain_seconds, "ratio to plain reads",
            "<= 2" if name == "p50" else None, detail=detail,
        )  # fmt: skip


def _query(accounts: Any, payments: Any, keys: tuple[str, str], number: int) -> None:
    """Reads two accounts with their last lines, and a payment."""
    for key in keys:
        accounts.get(ACCOUNTS, key)
        accounts.query(_LINES, (key,))
    payments.get(PAYMENTS, f"r-{number % 500}")


def _staleness(run: Run, tail: LogTail, reads: Reads, snapshots: Snapshots, count: int) -> Iterator[Result]:
    """Samples the age of a view and of a snapshot under load."""
    views, cuts = [], []
    for _ in range(count // 2):
        time.sleep(0.01)
        if (age := tail.age(reads.position())) is not None:
            views.append(age)
        with snapshots.take(age_max=60.0) as snapshot:
            cuts.append(snapshot.age)
    for name, ages, goal in (("view", views, None), ("snapshot", cuts, "<= 2")):
        detail = {f"p{int(share * 100)}_s": _percentile(ages, share) for share in (0.5, 0.9, 0.99)}
        yield Result(f"staleness-{name}-max", max(ages), "seconds", goal, detail=detail)
    with run.plot("staleness", title="Age of the data shown", x="seconds", y="share") as axes:
        for name, ages in (("view", views), ("snapshot", cuts)):
            axes.plot(sorted(ages), [n / len(ages) for n in range(1, len(ages) + 1)], label=name)
        axes.legend()


def _percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


if __name__ == "__main__":
    sys.exit(main("views", measure))
