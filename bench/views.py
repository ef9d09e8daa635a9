"""Views: how many events a second each store takes, how fast one is rebuilt, what consistent reads cost.

The log is a bank's: three events a payment, of which a view applies one and passes over two. An
event counts whether it is applied or passed over, as it does for a log that must be kept up with.

*Apply*: records in memory → fold → store, without Kafka, by size of batch. *Rebuild*: from Kafka, by the
runner. *Reads*: two views in SQLite written by runners in this process while another process appends;
plain reads and snapshots ask the same questions, in turns.
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

from bench.frame import ROOT, Result, Run, main
from bench.views_load import applied, produce, records_of
from examples.payments.bank import FINAL
from examples.payments.views import BALANCES, CACHED_BALANCES, PAYMENTS, SEARCH, STATEMENTS, WAREHOUSE
from penstock.garbage import rare_collections
from penstock.model.errors.settings import ExtraMissing
from penstock.olep.event import request
from penstock.olep.log import Appender, create_log, ends, open_log
from penstock.olep.view.reads import Reads, Tail
from penstock.olep.view.runner import Tuning, ViewRunner, run_together
from penstock.olep.view.snapshots import Snapshots
from penstock.olep.view.sqlite import SqliteViews
from tests.ground.fleet import Fleet
from tests.ground.postgres import PostgresServer, without_postgres
from tests.ground.valkey import ValkeyServer, without_valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.olep.log import Log
    from penstock.olep.view import ViewStores
    from penstock.olep.view.projection import Projection

PARTITIONS = 2
GOAL_RATE = ">= 50000"
LOAD_RATE = 1500  # events a second beside the reads
TUNING = Tuning()
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
    places: dict[str, tuple[Projection, Callable[[Path], ViewStores] | str]] = {
        "sqlite-statements": (STATEMENTS, SqliteViews),
        "sqlite-text-search": (SEARCH, SqliteViews),
        "tantivy-text-search": (SEARCH, _tantivy()),
        "postgres-statements": (STATEMENTS, _postgres(stack)),
        "valkey-balances": (CACHED_BALANCES, _valkey(stack)),
        "parquet-facts": (WAREHOUSE, _warehouse()),
    }
    rates: dict[str, list[float]] = {name: [] for name in places}
    for batch, payments in ((1, 100), (100, 2_000), (1000, 10_000)):
        records = records_of(payments if run.quick else 10 * payments)
        for name, (projection, make) in places.items():
            goal = GOAL_RATE if batch == 1000 and name.startswith("sqlite") else None
            label, unit = f"apply-{name}-batch-{batch}", "events a second"
            if isinstance(make, str):
                yield Result.missing(label, unit=unit, goal=goal, reason=make, optional=True)
                continue
            found = [
                applied(projection, make(home / f"{name}-{batch}-{turn}"), records, batch)
                for turn in range(1 if run.quick else 3)
            ]
            rates[name].append(statistics.median(len(records) / seconds for seconds, _ in found))
            yield Result.of_runs(
                label, [len(records) / seconds for seconds, _ in found], unit=unit, goal=goal,
                detail={
                    "events_per_processor_second": statistics.median(len(records) / u for _, u in found),
                    "applied_share": 1 / 3,
                },
            )  # fmt: skip
    with run.plot("apply", title="Events applied by size of batch", x="batch", y="events a second") as axes:
        for name, found_rates in rates.items():
            if len(found_rates) == 3:
                axes.plot(["1", "100", "1000"], found_rates, "o-", label=name)
        axes.set_yscale("log")
        axes.legend()


def _postgres(stack: ExitStack) -> Callable[[Path], ViewStores] | str:
    if missing := without_postgres():
        return missing
    from penstock.olep.view.postgres import PostgresViews

    server = stack.enter_context(PostgresServer.start())

    def fresh(_: Path) -> ViewStores:
        views = PostgresViews(server.dsn)
        views.drop("statements", 1)
        return views

    return fresh


def _valkey(stack: ExitStack) -> Callable[[Path], ViewStores] | str:
    if missing := without_valkey():
        return missing
    from penstock.olep.view.redis import RedisViews

    server = stack.enter_context(ValkeyServer.start())

    def fresh(_: Path) -> ViewStores:
        views = RedisViews(server.url)
        views.drop("cached_balances", 1)
        return views

    return fresh


def _tantivy() -> Callable[[Path], ViewStores] | str:
    try:
        from penstock.olep.view.tantivy import TantivyViews
    except ExtraMissing as error:
        return error.message
    return TantivyViews


def _warehouse() -> Callable[[Path], ViewStores] | str:
    from penstock.olep.view.warehouse import WarehouseViews

    return WarehouseViews


def _rebuild(run: Run, config: dict[str, Any], home: Path) -> Iterator[Result]:
    payments = 60_000 if run.quick else 1_666_667
    create_log(config, "rebuild", PARTITIONS)
    produce(config, "rebuild", PARTITIONS, payments)
    log = open_log(config, "rebuild")
    count = sum(ends(log).offsets[log.topic_id].values())
    for name, projection in (("statements", STATEMENTS), ("text-search", SEARCH)):
        runner = ViewRunner(projection, log, SqliteViews(home / "rebuild"), tuning=Tuning(batch_max=5000))
        begin, used = time.perf_counter(), time.process_time()
        with rare_collections():
            runner.run(threading.Event(), until=ends(log))
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
        tail = stack.enter_context(Tail(log))
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
    return sum(ends(log).offsets[log.topic_id].values()) < 3000


def _own_writes(log: Log, reads: Reads, count: int) -> Iterator[Result]:
    """Appends alone, and appends that are read back, in turns."""
    appender = Appender(log)
    appends, whole = [], []
    for number in range(count + 20):
        mine = request(f"own-{number}", "account.open", {}, time=0)
        begin = time.perf_counter()
        token = appender.append("own", mine)
        middle = time.perf_counter()
        with reads.after(token) as reader:
            reader.get(BALANCES, "account-7")
        end = time.perf_counter()
        if number >= 20:  # the first ones meet cold caches
            appends.append(middle - begin)
            whole.append(end - begin)
    bound = 2 * _share(appends, 0.99) + BATCH_SECONDS
    detail = {
        "append_ms": {"p50": _share(appends, 0.5) * 1000, "p99": _share(appends, 0.99) * 1000},
        "read_your_writes_ms": {"p50": _share(whole, 0.5) * 1000, "p99": _share(whole, 0.99) * 1000},
        "batch_interval_ms": BATCH_SECONDS * 1000,
    }
    yield Result(
        "read-your-writes-p99", _share(whole, 0.99) / bound, "ratio to 2 × append's p99 + a batch interval",
        "<= 1", detail=detail,
    )  # fmt: skip


def _beside_plain(run: Run, snapshots: Snapshots, one: Reads, two: Reads, count: int) -> Iterator[Result]:
    plain, at_once = [], []
    for number in range(count + 20):
        keys = (f"account-{number % 5000}", f"account-{(number * 7) % 5000}")
        begin = time.perf_counter()
        with one.latest() as accounts, two.latest() as payments:
            _asked(accounts, payments, keys, number)
        middle = time.perf_counter()
        with snapshots.take(age_max=60.0) as snapshot:
            _asked(snapshot["statements"], snapshot["search"], keys, number)
        end = time.perf_counter()
        if number >= 20:
            plain.append(middle - begin)
            at_once.append(end - middle)
    for name in ("p50", "p99"):
        share = int(name[1:]) / 100
        detail = {"plain_ms": _share(plain, share) * 1000, "snapshot_ms": _share(at_once, share) * 1000}
        yield Result(
            f"snapshot-read-{name}", _share(at_once, share) / _share(plain, share), "ratio to plain reads",
            "<= 2" if name == "p50" else None, detail=detail,
        )  # fmt: skip


def _asked(accounts: Any, payments: Any, keys: tuple[str, str], number: int) -> None:
    """Two accounts with their last lines, and a payment."""
    for key in keys:
        accounts.get(BALANCES, key)
        accounts.query("select * from lines where account = ? order by entry desc limit 10", (key,))
    payments.get(PAYMENTS, f"r-{number % 500}")


def _staleness(run: Run, tail: Tail, reads: Reads, snapshots: Snapshots, count: int) -> Iterator[Result]:
    """How old a view and a snapshot are, looked at now and then under load."""
    views, cuts = [], []
    for _ in range(count // 2):
        time.sleep(0.01)
        if (age := tail.age(reads.position())) is not None:
            views.append(age)
        with snapshots.take(age_max=60.0) as snapshot:
            cuts.append(snapshot.age)
    for name, ages, goal in (("view", views, None), ("snapshot", cuts, "<= 2")):
        detail = {f"p{int(share * 100)}_s": _share(ages, share) for share in (0.5, 0.9, 0.99)}
        yield Result(f"staleness-{name}-max", max(ages), "seconds", goal, detail=detail)
    with run.plot("staleness", title="Age of what is shown", x="seconds", y="share") as axes:
        for name, ages in (("view", views), ("snapshot", cuts)):
            axes.plot(sorted(ages), [n / len(ages) for n in range(1, len(ages) + 1)], label=name)
        axes.legend()


def _share(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


if __name__ == "__main__":
    sys.exit(main("views", measure))
