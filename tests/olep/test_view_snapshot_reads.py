"""Snapshots of a running bank on a real Kafka: whole payments from three stores."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.bank import FINAL, OUTCOME_TYPES
from examples.payments.bank_check import check_bank
from examples.payments.load import Load
from examples.payments.queries import BankQueries
from examples.payments.views import BALANCES, CACHED_BALANCES, LINES, SEARCH, STATEMENTS, Line
from penstock.model.errors.olep import TokenForeign
from penstock.model.errors.views import ViewBehind, ViewStale
from penstock.olep.event import request
from penstock.olep.log import end_position
from penstock.olep.outcome import Outcomes
from penstock.olep.position import Position
from penstock.olep.view.consistent_reads import LogTail, Reads
from penstock.olep.view.runner import Tuning, ViewRunner
from penstock.olep.view.snapshot_reads import Snapshots
from penstock.olep.view.stores.redis import RedisViews
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.olep.bank_harness import wait_for
from tests.olep.counting_view import RunningView

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.olep.view import ViewStores
    from tests.harness.valkey import ValkeyServer
    from tests.olep.bank_harness import BankHarness

pytestmark = pytest.mark.kafka

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)
PATIENT: dict[str, Any] = {"age_max": 60.0, "timeout": 60.0}  # a test machine may be slow


class BankWithViews:
    """A bank, its views, and snapshots of three stores."""

    def __init__(self, harness: BankHarness, tmp_path: Path, valkey: ValkeyServer) -> None:
        self.harness = harness
        self.log = harness.settings.accounts_log()
        self.stores: dict[str, tuple[Any, ViewStores]] = {
            "statements": (STATEMENTS, SqliteViews(tmp_path / "views")),
            "balances": (CACHED_BALANCES, RedisViews(valkey.url)),
            "search": (SEARCH, SqliteViews(tmp_path / "views")),
        }
        self.tail = LogTail(self.log, every_seconds=0.05)
        self.reads = {
            name: Reads(projection, self.log, stores, tail=self.tail)
            for name, (projection, stores) in self.stores.items()
        }
        self.snapshots = Snapshots(self.log, self.reads, tail=self.tail, final=FINAL)

    def running(self, *names: str) -> ExitStack:
        """The runners of the views, with different batch sizes, so that their positions differ."""
        stack = ExitStack()
        for size, name in enumerate(names or self.stores, start=2):
            projection, stores = self.stores[name]
            runner = ViewRunner(projection, self.log, stores, tuning=Tuning(batch_max=size))
            stack.enter_context(RunningView(runner))
        return stack


@pytest.fixture
def bank(harness: BankHarness, tmp_path: Path, valkey: ValkeyServer) -> Iterator[BankWithViews]:
    import redis

    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    bank = BankWithViews(harness, tmp_path, valkey)
    with ExitStack() as stack:
        contexts: list[AbstractContextManager[object]] = [bank.tail, *bank.reads.values(), bank.snapshots]
        for each in contexts:
            stack.enter_context(each)
        yield bank


def test_snapshots_of_a_running_bank_have_no_read_skew(bank: BankWithViews) -> None:
    bank.harness.append(PAYMENTS, 0, "accounts")
    seen, before = set[str](), Position()
    with bank.harness.executing(batch_max=3) as running, bank.running():
        wait_for(lambda: running.executor.counters.decided, "the bank to be running")
        for number in range(4):
            bank.harness.append(PAYMENTS, 60, number)
            for _ in range(15):
                with bank.snapshots.take(**PATIENT) as snapshot:
                    cached: dict[str, int] = {}
                    for _, (name, cents) in snapshot["balances"].rows(BALANCES):
                        cached[name] = cached.get(name, 0) + cents
                    shown = dict(
                        snapshot["statements"].query(
                            "select account, sum(cents) from accounts group by account"
                        )
                    )
                    ((paid_in,),) = snapshot["statements"].query(
                        "select coalesce(sum(amount), 0) from lines where kind = 'opened'"
                    )
                assert shown == cached, "two stores show one moment"
                assert sum(shown.values()) == paid_in, "never half a payment"
                assert snapshot.position.covers(before), "a session never goes back"
                before = snapshot.position
                seen.add(snapshot.position.token())
        assert check_bank(bank.harness.settings) == []  # waits until nothing is in progress
        tail = end_position(bank.log)
        with bank.snapshots.take(after=tail, **PATIENT) as snapshot:
            lines = snapshot["statements"].query("select count(*) from lines")
    assert (len(seen) > 5, lines[0][0] > 100) == (True, True)


def test_a_snapshot_after_a_payment_includes_the_payment(bank: BankWithViews) -> None:
    bank.harness.append(PAYMENTS, 0, "accounts")
    with bank.harness.executing(), bank.running():
        with Outcomes(bank.log, OUTCOME_TYPES) as outcomes:
            payment = request("paid", "payment.requested", {"to": "account-2", "amount": 700}, time=0)
            final = outcomes.ask("account-1", payment, timeout=60)
        token = Position.at(bank.log.topic_id, final.partition, final.offset + 1)
        with bank.snapshots.take(after=token, **PATIENT) as snapshot:
            rows = [Line(*row) for _, row in snapshot["statements"].rows(LINES)]
            lines = [(row.account, row.amount) for row in rows if row.request == "paid"]
            assert {*lines} >= {("account-1", -700), ("account-2", 700)}


def test_a_stopped_view_makes_snapshots_stale(bank: BankWithViews) -> None:
    bank.harness.append(PAYMENTS, 5, "accounts")
    with bank.running(), bank.snapshots.take(after=end_position(bank.log), **PATIENT) as snapshot:
        token = snapshot.position
    with bank.running("statements", "search"):  # the cache has no writer
        bank.harness.append(PAYMENTS, 5, "more")
        with pytest.raises(ViewBehind), bank.snapshots.take(after=end_position(bank.log), timeout=0.3):
            pass
        wait_for(lambda: (bank.tail.age(token) or 0) > 0.5, "the snapshot to grow old")
        with pytest.raises(ViewStale), bank.snapshots.take(age_max=0.3, timeout=0.3):
            pass
        with bank.snapshots.take(**PATIENT) as snapshot:
            assert snapshot.position.covers(token)
    foreign = Position({"BAAAAAAAAAAAAAAAAAAAAA": {0: 1}})
    with pytest.raises(TokenForeign), bank.snapshots.take(after=foreign):
        pass


def test_the_queries_of_the_bank_start_before_its_views(harness: BankHarness) -> None:
    with BankQueries(harness.settings) as queries, pytest.raises(Exception, match="PEN-71"):
        queries.search("anything", None)
