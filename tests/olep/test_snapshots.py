"""Snapshots of a bank at work on a real Kafka: whole payments from three stores, while all go on."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.audit import audit
from examples.payments.bank import ANSWERS, FINAL
from examples.payments.desk import Desk
from examples.payments.load import Load
from examples.payments.views import BALANCES, CACHED_BALANCES, LINES, SEARCH, STATEMENTS
from penstock.model.errors.olep import TokenForeign
from penstock.model.errors.views import ViewBehind, ViewStale
from penstock.olep.event import request
from penstock.olep.log import ends
from penstock.olep.outcome import Outcomes
from penstock.olep.position import Position
from penstock.olep.view.reads import Reads, Tail
from penstock.olep.view.redis import RedisViews
from penstock.olep.view.runner import Tuning, ViewRunner, catch_up
from penstock.olep.view.snapshots import Snapshots
from penstock.olep.view.sqlite import SqliteViews
from penstock.olep.view.warehouse import WarehouseViews
from tests.olep.ground import wait_for
from tests.olep.viewing import RunningView

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.olep.view import ViewStores
    from tests.ground.valkey import ValkeyServer
    from tests.olep.ground import BankGround

pytestmark = pytest.mark.kafka

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)
PATIENT = {
    "age_max": 60.0,
    "timeout": 60.0,
}  # a test machine may be slow; how old they are is a bench's business


class Bank:
    """A bank at work, its views, and snapshots over three stores."""

    def __init__(self, ground: BankGround, tmp_path: Path, valkey: ValkeyServer) -> None:
        self.ground = ground
        self.log = ground.setting.accounts_log()
        self.stores: dict[str, tuple[Any, ViewStores]] = {
            "statements": (STATEMENTS, SqliteViews(tmp_path / "views")),
            "balances": (CACHED_BALANCES, RedisViews(valkey.url)),
            "search": (SEARCH, SqliteViews(tmp_path / "views")),
        }
        self.tail = Tail(self.log, every_seconds=0.05)
        self.reads = {
            name: Reads(projection, self.log, stores, tail=self.tail)
            for name, (projection, stores) in self.stores.items()
        }
        self.snapshots = Snapshots(self.log, self.reads, tail=self.tail, final=FINAL)

    def running(self, *names: str) -> ExitStack:
        """Their runners, with batches of different sizes, so that they are apart."""
        stack = ExitStack()
        for size, name in enumerate(names or self.stores, start=2):
            projection, stores = self.stores[name]
            runner = ViewRunner(projection, self.log, stores, tuning=Tuning(batch_max=size))
            stack.enter_context(RunningView(runner))
        return stack


@pytest.fixture
def bank(ground: BankGround, tmp_path: Path, valkey: ValkeyServer) -> Iterator[Bank]:
    import redis

    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    made = Bank(ground, tmp_path, valkey)
    with ExitStack() as stack:
        for each in (made.tail, *made.reads.values(), made.snapshots):
            stack.enter_context(each)
        yield made


def test_read_skew_is_absent_from_snapshots_of_a_bank_at_work(bank: Bank) -> None:
    bank.ground.append(PAYMENTS, 0, "accounts")
    seen, before = set[str](), Position()
    with bank.ground.executing(batch_max=3) as running, bank.running():
        wait_for(lambda: running.executor.figures.decided, "the bank to be at work")
        for number in range(4):
            bank.ground.append(PAYMENTS, 60, number)
            for _ in range(15):
                with bank.snapshots.take(**PATIENT) as snapshot:
                    cached: dict[str, int] = {}
                    for _, (name, cents) in snapshot["balances"].rows(BALANCES):
                        cached[name] = cached.get(name, 0) + cents
                    shown = dict(
                        snapshot["statements"].query(
                            "select account, sum(cents) from balances group by account"
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
        assert audit(bank.ground.setting) == []  # which waits until nothing is under way
        tail = ends(bank.log)
        with bank.snapshots.take(after=tail, **PATIENT) as snapshot:
            lines = snapshot["statements"].query("select count(*) from lines")
    assert (len(seen) > 5, lines[0][0] > 100) == (True, True)


def test_a_snapshot_after_a_payment_holds_the_payment(bank: Bank) -> None:
    bank.ground.append(PAYMENTS, 0, "accounts")
    with bank.ground.executing(), bank.running():
        with Outcomes(bank.log, ANSWERS) as outcomes:
            payment = request("mine", "payment.requested", {"to": "account-2", "amount": 700}, time=0)
            final = outcomes.ask("account-1", payment, timeout=60)
        token = Position.at(bank.log.topic_id, final.partition, final.offset + 1)
        with bank.snapshots.take(after=token, **PATIENT) as snapshot:
            lines = [row for _, row in snapshot["statements"].rows(LINES) if row[2] == "mine"]
            assert {(row[0], row[5]) for row in lines} >= {("account-1", -700), ("account-2", 700)}


def test_a_view_that_stands_still_makes_snapshots_old_and_that_is_said(bank: Bank) -> None:
    bank.ground.append(PAYMENTS, 5, "accounts")
    with bank.running(), bank.snapshots.take(after=ends(bank.log), **PATIENT) as snapshot:
        token = snapshot.position
    with bank.running("statements", "search"):  # the cache is not written any more
        bank.ground.append(PAYMENTS, 5, "more")
        with pytest.raises(ViewBehind), bank.snapshots.take(after=ends(bank.log), timeout=0.3):
            pass
        wait_for(lambda: (bank.tail.age(token) or 0) > 0.5, "the snapshot to grow old")
        with pytest.raises(ViewStale), bank.snapshots.take(age_max=0.3, timeout=0.3):
            pass
        with bank.snapshots.take(**PATIENT) as snapshot:
            assert snapshot.position.covers(token)
    foreign = Position({"BAAAAAAAAAAAAAAAAAAAAA": {0: 1}})
    with pytest.raises(TokenForeign), bank.snapshots.take(after=foreign):
        pass


def test_a_warehouse_answers_as_of_any_position_it_ever_had(bank: Bank, tmp_path: Path) -> None:
    stores = WarehouseViews(tmp_path / "warehouse")
    bank.ground.append(PAYMENTS, 10, 1)
    with bank.ground.executing():
        audit(bank.ground.setting)  # waits until nothing is under way
        earlier = ends(bank.log)
        catch_up(ViewRunner(STATEMENTS, bank.log, stores), threading.Event(), until=earlier)
        bank.ground.append(PAYMENTS, 10, 2)
        audit(bank.ground.setting)
    catch_up(ViewRunner(STATEMENTS, bank.log, stores), threading.Event())
    with Reads(STATEMENTS, bank.log, stores) as reads:
        store = reads.store()
        with store.reading(earlier) as then, store.reading() as now:
            count = "select count(*) from lines"
            assert then.query(count)[0][0] < now.query(count)[0][0]
            paid_in = "select sum(amount) from lines where kind = 'opened'"
            for reader in (then, now):
                assert reader.query("select sum(cents) from balances") == reader.query(paid_in)


def test_the_desk_of_the_bank_needs_no_view_to_be_there_yet(ground: BankGround) -> None:
    with Desk(ground.setting) as desk, pytest.raises(Exception, match="PEN-71"):
        desk.search("anything", None)
