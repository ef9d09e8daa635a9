"""Payments on logs: payments per processor second, compared with PostgreSQL, and latency.

Everything that works is counted: the load generator, which makes requests and reads each outcome, the
executor, and the broker. PostgreSQL does the same transfers (`bench/olep_postgres.py`), and its client
and server are counted alike. A batch is a number of payments in one transaction. A payment on logs is
three events (request, outgoing, incoming), so an executor's batch has three times as many.

Kafka runs as one node and PostgreSQL as one server, both with their default durability: PostgreSQL
flushes each commit, Kafka acknowledges from memory and would replicate. Processor time is the main
comparison, since neither kind of waiting shows in it. For throughput, with thousands of requests in
flight, events may be gathered for `GATHER_MS` before they are sent or fetched, because a broker's cost is
per request rather than per record. Latency is measured without that.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Result, Run, main
from bench.olep_load import GATHER_MS, Outcome, open_accounts, pay
from bench.olep_postgres import PostgresBank
from bench.olep_processes import Meter, executing
from examples.payments.settings import Settings
from tests.harness.fleet import Fleet
from tests.harness.postgres import PostgresServer, without_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.olep_postgres import Transfer

ACCOUNTS = 5_000
DEPOSIT = 10**9
PARTITIONS = 2
EVENTS_PER_PAYMENT = 3
CONNECTIONS = {"batched": 1, "for-update": 8, "atomic": 8}  # the best for PostgreSQL on two cores
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
SHARES = (0.0, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run: its payments, time and processor time."""

    payments: int
    seconds: float
    processor: float
    detail: dict[str, float]

    @property
    def rate(self) -> float:
        return self.payments / self.seconds

    @property
    def efficiency(self) -> float:
        """Payments per processor second."""
        return self.payments / self.processor

    @property
    def microseconds(self) -> float:
        return self.processor / self.payments * 1e6


class Logs:
    """The bank on logs, with one topic per batch size and fee."""

    def __init__(self, fleet: Fleet, home: Path) -> None:
        self._fleet = fleet
        self._home = home
        self._made = 0
        self.broker = [identity.pid for node in fleet.nodes if (identity := node.running()) is not None]

    @contextmanager
    def bank(self, batch: int, *, fee: int = 0, gather: float = GATHER_MS / 1000) -> Iterator[Bench]:
        self._made += 1
        settings = Settings(
            str(self._home / f"bank-{self._made}"),
            self._fleet.client_config(),
            accounts=f"accounts-{self._made}",
            notices=f"notices-{self._made}",
            partitions=PARTITIONS,
            fee=fee,
            batch_max=batch * EVENTS_PER_PAYMENT,
            gather_seconds=gather,
        )
        settings.create_logs()
        settings.save()
        with executing(settings) as executor:
            log = settings.accounts_log()
            open_accounts(log, ACCOUNTS, DEPOSIT)
            yield Bench(settings, Meter({"executor": [executor], "broker": self.broker}))


class Bench:
    def __init__(self, settings: Settings, meter: Meter) -> None:
        self.settings = settings
        self._meter = meter
        self._log = settings.accounts_log()
        self._round = 0

    def run(self, count: int, *, hot: float = 0.0, in_flight: int = 20_000) -> tuple[Measurement, Outcome]:
        self._round += 1
        transfers = transfers_of(count, hot, f"{self._round}")
        before = self._meter.read()
        outcome = pay(self._log, transfers, in_flight=in_flight)
        used = self._meter.since(before)
        assert outcome.paid == count, f"{outcome.paid} of {count} paid"
        return Measurement(
            count, outcome.seconds, sum(used.values()), {k: v / count * 1e6 for k, v in used.items()}
        ), outcome


def transfers_of(count: int, hot: float, label: str) -> list[Transfer]:
    """The same transfers for every contender; `hot` is the fraction that goes to one account."""
    dice = random.Random(f"{label}-{hot}")
    transfers = []
    for number in range(count):
        source = dice.randrange(1, ACCOUNTS)
        to = 0 if dice.random() < hot else dice.randrange(ACCOUNTS)
        if to == source:
            to = (to + 1) % ACCOUNTS
        transfers.append((f"{label}-{hot}-{number}", f"account-{source}", f"account-{to}", 5))
    return transfers


class Rows:
    """The bank in PostgreSQL."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._meter = Meter({"server": [server.process.pid]})

    def run(self, mode: str, count: int, *, batch: int = 100, hot: float = 0.0, fee: int = 0) -> Measurement:
        bank = PostgresBank(self._server.dsn, fee)
        bank.prepare([f"account-{n}" for n in range(ACCOUNTS)], DEPOSIT)
        transfers = transfers_of(count, hot, "p")
        before, begin = self._meter.read(), time.perf_counter()
        bank.pay(mode, transfers, batch=batch, connections=CONNECTIONS[mode])
        seconds = time.perf_counter() - begin
        time.sleep(0.2)  # a connection's processor time counts once the server has reaped its process
        used = self._meter.since(before)
        assert bank.total() == DEPOSIT * (ACCOUNTS + 1), "money was lost"
        return Measurement(count, seconds, sum(used.values()), {k: v / count * 1e6 for k, v in used.items()})


def measure(run: Run) -> Iterator[Result]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-olep-")))
        shape = {
            "port": 0,
            "combined": True,
            "brokers": 1,
            "zones": ["a"],
            "jit": "quick" if run.quick else "full",
        }
        fleet = Fleet.start(home / "kafka", shape)
        stack.callback(fleet.destroy)
        logs = Logs(fleet, home)
        rows = None
        if (missing := without_postgres()) is None:
            rows = Rows(stack.enter_context(PostgresServer.start(SETTINGS)))
        yield from _beside_postgres(run, logs, rows, missing)
        yield from _by_batch(run, logs)
        yield from _by_share(run, logs, rows, missing)
        yield from _latency(run, logs)


def _beside_postgres(run: Run, logs: Logs, rows: Rows | None, missing: str | None) -> Iterator[Result]:
    count, rounds = (6_000, 3) if run.quick else (60_000, 5)
    ours: list[Measurement] = []
    theirs: dict[str, list[Measurement]] = {"batched": [], "for-update": [], "atomic": []}
    with logs.bank(100) as bank:
        for _ in range(1 if run.quick else 4):
            bank.run(count)  # until the broker's JVM has compiled its hot code
        for _ in range(rounds):
            ours.append(bank.run(count)[0])
            if rows is not None:
                theirs["batched"].append(rows.run("batched", count))
                for mode in ("for-update", "atomic"):
                    theirs[mode].append(rows.run(mode, count // 5))
    middle = _median(ours)
    yield Result.of_runs(
        "payments-batch-100", [each.efficiency for each in ours], unit="payments per processor second",
        detail={"payments_per_second": middle.rate, "microseconds": middle.detail},
    )  # fmt: skip
    for mode, measurements in theirs.items():
        goal = ">= 1.5" if mode == "batched" else None
        name, unit = f"per-processor-second-vs-postgres-{mode}", "ratio to PostgreSQL"
        if not measurements:
            yield Result.missing(name, unit=unit, goal=goal, reason=missing or "", optional=True)
            continue
        ratios = [own.efficiency / other.efficiency for own, other in zip(ours, measurements, strict=True)]
        other = _median(measurements)
        detail = {
            "ours_us": middle.microseconds, "postgres_us": other.microseconds,
            "ours_per_second": middle.rate, "postgres_per_second": other.rate,
        }  # fmt: skip
        yield Result.of_runs(name, ratios, unit=unit, goal=goal, detail=detail, optional=True)


def _by_batch(run: Run, logs: Logs) -> Iterator[Result]:
    rates: dict[str, float] = {}
    for batch, count in ((1, 600), (10, 3_000), (1000, 6_000)):
        with logs.bank(batch) as bank:
            size = count if run.quick else count * 10
            bank.run(size // 2)
            measurements = [bank.run(size)[0] for _ in range(1 if run.quick else 3)]
        middle = _median(measurements)
        rates[str(batch)] = middle.rate
        yield Result.of_runs(
            f"payments-batch-{batch}", [each.efficiency for each in measurements],
            unit="payments per processor second",
            detail={"payments_per_second": middle.rate, "microseconds": middle.detail},
        )  # fmt: skip
    with run.plot(
        "batches", title="Payments by size of batch", x="payments a transaction", y="a second"
    ) as axes:
        axes.bar(list(rates), list(rates.values()))


def _by_share(run: Run, logs: Logs, rows: Rows | None, missing: str | None) -> Iterator[Result]:
    """Processor time per payment as one account gets a larger share: flat on logs, lock waits elsewhere."""
    count, rounds = (3_000, 2) if run.quick else (40_000, 5)
    for what, fee in (("hot", 0), ("fee", 1)):
        costs: dict[float, list[float]] = {share: [] for share in SHARES}
        with logs.bank(100, fee=fee) as bank:
            bank.run(count)  # warms up
            for _ in range(rounds):
                for share in SHARES:
                    costs[share].append(bank.run(count, hot=share)[0].microseconds)
        spreads = [max(one_round) / min(one_round) for one_round in zip(*costs.values())]
        medians = {str(share): statistics.median(runs) for share, runs in costs.items()}
        yield Result(
            f"flat-as-{what}-share-grows", max(medians.values()) / min(medians.values()),
            "highest to lowest processor time for a payment", "<= 1.1", tuple(spreads),
            {"microseconds_by_share": medians},
        )  # fmt: skip
        with run.plot(f"{what}-share", title=f"{what} account", x="share", y="µs a payment") as axes:
            axes.plot(list(medians), list(medians.values()), "o-")
            axes.set_ylim(bottom=0)
    for mode in ("for-update", "atomic", "batched"):
        name, unit = (
            f"postgres-{mode}-at-90-percent-hot",
            "rate, ratio to no hot account",
        )
        if rows is None:
            yield Result.missing(name, unit=unit, reason=missing or "", optional=True)
            continue
        size = count // (1 if mode == "batched" else 4)
        pairs = [(rows.run(mode, size), rows.run(mode, size, hot=0.9)) for _ in range(rounds)]
        ratios = [hot.rate / cold.rate for cold, hot in pairs]
        detail = {
            "cold_us": statistics.median(c.microseconds for c, _ in pairs),
            "hot_us": statistics.median(h.microseconds for _, h in pairs),
        }
        yield Result.of_runs(name, ratios, unit=unit, detail=detail, optional=True)


def _latency(run: Run, logs: Logs) -> Iterator[Result]:
    """From request to status, with few and with many requests in flight."""
    rounds = 1 if run.quick else 5
    outcomes: dict[int, list[Outcome]] = {}
    with logs.bank(100, gather=0.0) as bank:
        for in_flight, count in ((1, 100), (100, 2_000)):
            bank.run(count, in_flight=in_flight)  # warms up
            outcomes[in_flight] = [bank.run(count, in_flight=in_flight)[1] for _ in range(rounds)]
    for in_flight, measured in outcomes.items():
        rate = statistics.median(len(outcome.waits) / outcome.seconds for outcome in measured)
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            yield Result.of_runs(
                f"request-to-status-{name}-{in_flight}-in-flight",
                [outcome.percentile(share) * 1000 for outcome in measured],
                unit="milliseconds",
                detail={"payments_per_second": rate},
            )


def _median(measurements: list[Measurement]) -> Measurement:
    ordered = sorted(measurements, key=lambda each: each.efficiency)
    return replace(ordered[len(ordered) // 2])


if __name__ == "__main__":
    sys.exit(main("olep", measure))
