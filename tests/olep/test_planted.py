"""Bugs planted on purpose: each of the classic ones is caught by the checks that guard the real code.

A check that cannot fail proves nothing, so every one of them fails here once.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from examples.payments.bank import ACCOUNTS, Account, Bank
from penstock.model.errors.olep import DecideImpure
from penstock.olep.codec import JsonCodec
from penstock.olep.fold import Batch, Fold
from penstock.olep.store.memory import MemoryStore
from penstock.olep.table import Put
from tests.olep.ground import ROOT
from tests.olep.test_money import opened, wrong
from tests.olep.world import World

if TYPE_CHECKING:
    from penstock.olep.application import Application, Decision, State
    from penstock.olep.event import Event

PAYMENT = {"to": "bob", "amount": 10}


def paid(application: Application | None = None) -> World:
    world = opened(World(application or Bank(fee=1).application()))
    world.settle()
    world.ask("p", "payment.requested", "ann", PAYMENT)
    world.ask("q", "payment.offered", "cy", PAYMENT)
    return world


def crashed(world: World) -> World:
    """Every executor dies after it has sent a batch and before it has noted that; twice."""
    for _ in range(2):
        for lane in world.lanes:
            lane.step(10)
        for lane in world.lanes:
            lane.send(10)
            lane.start()
    return world


def rolled_back(world: World) -> World:
    """Every executor's store goes back to before the payments, after their events were sent."""
    for lane in world.lanes:
        lane.remember()
    world.settle()
    for lane in world.lanes:
        lane.roll_back()
    return world


def test_without_a_bug_nothing_is_found() -> None:
    assert wrong(rolled_back(crashed(paid()))) == []


def test_dedup_outside_the_transaction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are saved before the effects they guard, in a transaction of their own."""
    commit = MemoryStore.commit

    def two_transactions(self: MemoryStore, batch: Batch, *, sent: int) -> None:
        first = replace(batch, changes={n: batch.changes.pop(n) for n in ("olep_marks", "olep_seen")})
        commit(self, replace(first, appends={}, outgoing=[], position=self.at), sent=sent)
        if next(deaths):
            raise KeyboardInterrupt  # dies between the two
        commit(self, batch, sent=sent)

    world = paid()
    world.settle()
    world.ask("r", "payment.requested", "ann", PAYMENT)
    deaths = itertools.chain([True, True, True], itertools.repeat(False))
    monkeypatch.setattr(MemoryStore, "commit", two_transactions)
    for lane in world.lanes:
        with pytest.raises(KeyboardInterrupt):
            lane.step(10)
        lane.start()
    assert "request r reached no final state" in wrong(world)


def test_effects_before_dedup_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round: effects first, ids later. A crash between them pays twice."""
    commit = MemoryStore.commit

    def without_ids(self: MemoryStore, batch: Batch, *, sent: int) -> None:
        kept = {name: rows for name, rows in batch.changes.items() if name not in {"olep_marks", "olep_seen"}}
        commit(self, replace(batch, changes=kept), sent=sent)

    world = paid()
    world.settle()
    monkeypatch.setattr(MemoryStore, "commit", without_ids)
    world.ask("r", "payment.requested", "ann", PAYMENT)
    assert any("the accounts hold" in each for each in wrong(crashed(world)))


def test_ids_that_are_not_derived_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids from a counter of the process: a resend carries other ids and is applied again."""
    counter = itertools.count(10**6)
    derive = JsonCodec.encode_caused
    monkeypatch.setattr(
        JsonCodec,
        "encode_caused",
        lambda self, stream, cause, emits: derive(self, stream, cause._replace(offset=next(counter)), emits),
    )
    assert any("the accounts hold" in each or "final states" in each for each in wrong(rolled_back(paid())))


def test_events_sent_before_the_commit_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending what is not yet stored: the process dies, the state never happened, the money arrives."""
    world = paid()
    for lane in world.lanes:
        lane.step(3)
        batch = lane.fold.take(world.records[lane.partition][lane.position :], lane.position)
        for out in batch.outgoing:
            world.append(out)
        # Nothing is committed, and the restarted process decides under another tariff.
    world.application = Bank(fee=7).application()
    for lane in world.lanes:
        lane.start()
    assert wrong(world) != []


def test_a_clock_in_decide_is_caught_by_the_watch_and_by_the_replay() -> None:
    bank = Bank()

    def with_clock(state: State, event: Event) -> Decision:
        effects, emits = bank.decide(state, event)
        stamped = [
            Put(ACCOUNTS, Account(*effect.row[:-1], time.time_ns()))
            if effect.table is ACCOUNTS and isinstance(effect, Put)
            else effect
            for effect in effects
        ]
        return stamped, emits

    application = replace(bank.application(), decide=with_clock)
    world = paid(application)
    world.settle()
    with pytest.raises(DecideImpure, match=r"time\.time_ns"):
        world.watched()
    assert world.digests() != world.replayed()


SET_ORDER = """
import sys
from dataclasses import replace
from examples.payments.bank import Bank
from penstock.olep.application import Emit
from tests.olep.test_money import opened
from tests.olep.world import World

def decide(state, event):
    effects, emits = Bank(fee=1).decide(state, event)
    if sys.argv[1] == "planted" and event.type == "payment.requested":
        emits = [Emit("accounts", key, "account.opened", {"deposit": 0}) for key in {"ann", "bob", "cy"}]
    return effects, emits

world = opened(World(replace(Bank(fee=1).application(), decide=decide)))
for number in range(20):
    kind = ("payment.requested", "payment.offered")[number % 2]
    world.ask(f"p{number}", kind, "ann", {"to": ("bob", "cy", "dot")[number % 3], "amount": number})
world.settle()
print(world.digests(), [record.value for records in world.records for record in records])
"""


def replayed_elsewhere(kind: str, seed: str) -> str:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", SET_ORDER, kind]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_the_bank_decides_alike_in_processes_with_other_hash_seeds() -> None:
    assert replayed_elsewhere("real", "1") == replayed_elsewhere("real", "2")


def test_the_order_of_a_set_in_decide_is_caught_by_a_process_with_another_hash_seed() -> None:
    assert len({replayed_elsewhere("planted", seed) for seed in ("1", "2", "3")}) > 1


def test_a_fold_that_forgets_nothing_after_a_refused_commit_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache that stays ahead of its store after a rollback."""
    world = paid()
    world.settle()
    world.ask("r", "payment.requested", "ann", PAYMENT)
    monkeypatch.setattr(Fold, "forget", Fold.settle)
    for lane in world.lanes:
        records = world.records[lane.partition]
        lane.fold.take(records[lane.position :], lane.position)
        lane.fold.forget()
    assert "request r reached no final state" in wrong(world)
