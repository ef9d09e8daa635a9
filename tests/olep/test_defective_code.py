"""The checks that guard the real code fail for each classic bug.

A check that cannot fail proves nothing, so each one fails here on code with that bug.
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
from penstock.olep.store.memory import MemoryStore
from penstock.olep.table import Put
from tests.olep.bank_harness import ROOT
from tests.olep.memory_cluster import MemoryCluster
from tests.olep.test_money_conservation import opened, wrong

if TYPE_CHECKING:
    from penstock.olep.application import Application, Decision, State
    from penstock.olep.event import Event
    from penstock.olep.fold import Batch

PAYMENT = {"to": "bob", "amount": 10}


def paid(application: Application | None = None) -> MemoryCluster:
    cluster = opened(MemoryCluster(application or Bank(fee=1).application()))
    cluster.settle()
    cluster.request("p", "payment.requested", "ann", PAYMENT)
    cluster.request("q", "payment.offered", "cy", PAYMENT)
    return cluster


def crashed(cluster: MemoryCluster) -> MemoryCluster:
    """Every executor dies twice after it has sent a batch and before it has stored that."""
    for _ in range(2):
        for task in cluster.tasks:
            task.step(10)
        for task in cluster.tasks:
            task.send(10)
            task.start()
    return cluster


def rolled_back(cluster: MemoryCluster) -> MemoryCluster:
    """Rolls every store back to before the payments, after their events were sent."""
    for task in cluster.tasks:
        task.remember()
    cluster.settle()
    for task in cluster.tasks:
        task.roll_back()
    return cluster


def test_correct_code_has_no_findings() -> None:
    assert wrong(rolled_back(crashed(paid()))) == []


def test_dedup_outside_the_transaction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are committed before the effects they guard, in a separate transaction."""
    commit = MemoryStore.commit

    def two_transactions(self: MemoryStore, batch: Batch, *, sent: int) -> None:
        first = replace(batch, changes={n: batch.changes.pop(n) for n in ("olep_marks", "olep_seen")})
        commit(self, replace(first, appends={}, outgoing=[], position=self.at), sent=sent)
        if next(deaths):
            raise KeyboardInterrupt  # dies between the two
        commit(self, batch, sent=sent)

    cluster = paid()
    cluster.settle()
    cluster.request("r", "payment.requested", "ann", PAYMENT)
    deaths = itertools.chain([True, True, True], itertools.repeat(False))
    monkeypatch.setattr(MemoryStore, "commit", two_transactions)
    for task in cluster.tasks:
        with pytest.raises(KeyboardInterrupt):
            task.step(10)
        task.start()
    assert "request r reached no final state" in wrong(cluster)


def test_effects_before_dedup_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects first, ids later: a crash in between applies a payment twice."""
    commit = MemoryStore.commit

    def without_ids(self: MemoryStore, batch: Batch, *, sent: int) -> None:
        others = {
            name: rows for name, rows in batch.changes.items() if name not in {"olep_marks", "olep_seen"}
        }
        commit(self, replace(batch, changes=others), sent=sent)

    cluster = paid()
    cluster.settle()
    monkeypatch.setattr(MemoryStore, "commit", without_ids)
    cluster.request("r", "payment.requested", "ann", PAYMENT)
    assert any("the accounts hold" in each for each in wrong(crashed(cluster)))


def test_ids_that_are_not_derived_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids from a process-wide counter: a resend has other ids and is applied again."""
    counter = itertools.count(10**6)
    derive = JsonCodec.encode_caused
    monkeypatch.setattr(
        JsonCodec,
        "encode_caused",
        lambda self, stream, cause, emits: derive(stream, cause._replace(offset=next(counter)), emits),
    )
    assert any("the accounts hold" in each or "final states" in each for each in wrong(rolled_back(paid())))


def test_events_sent_before_the_commit_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are sent before the commit: the process dies, and money arrives that never left."""
    cluster = paid()
    for task in cluster.tasks:
        task.step(3)
        batch = task.fold.process(cluster.records[task.partition][task.position :], task.position)
        for out in batch.outgoing:
            cluster.append(out)
        # Nothing is committed, and the restarted process has another tariff.
    cluster.application = Bank(fee=7).application()
    for task in cluster.tasks:
        task.start()
    assert wrong(cluster) != []


def test_a_clock_in_decide_is_caught_by_the_purity_check_and_by_replay() -> None:
    bank = Bank()

    def with_clock(state: State, event: Event) -> Decision:
        effects, emits = bank.decide(state, event)
        stamped = [
            Put(ACCOUNTS, Account(*effect.row)._replace(last=time.time_ns()))
            if effect.table is ACCOUNTS and isinstance(effect, Put)
            else effect
            for effect in effects
        ]
        return stamped, emits

    application = replace(bank.application(), decide=with_clock)
    cluster = paid(application)
    cluster.settle()
    with pytest.raises(DecideImpure, match=r"time\.time_ns"):
        cluster.check_purity()
    assert cluster.digests() != cluster.replayed()


SET_ORDER = """
import sys
from dataclasses import replace
from examples.payments.bank import Bank
from penstock.olep.application import Emit
from tests.olep.test_money_conservation import opened
from tests.olep.memory_cluster import MemoryCluster

def decide(state, event):
    effects, emits = Bank(fee=1).decide(state, event)
    if sys.argv[1] == "defective" and event.type == "payment.requested":
        emits = [Emit("accounts", key, "account.opened", {"deposit": 0}) for key in {"ann", "bob", "cy"}]
    return effects, emits

cluster = opened(MemoryCluster(replace(Bank(fee=1).application(), decide=decide)))
for number in range(20):
    kind = ("payment.requested", "payment.offered")[number % 2]
    cluster.request(f"p{number}", kind, "ann", {"to": ("bob", "cy", "dot")[number % 3], "amount": number})
cluster.settle()
print(cluster.digests(), [record.value for records in cluster.records for record in records])
"""


def replay_output(kind: str, seed: str) -> str:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", SET_ORDER, kind]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_the_bank_decides_the_same_under_other_hash_seeds() -> None:
    assert replay_output("real", "1") == replay_output("real", "2")


def test_set_order_in_decide_is_caught_under_another_hash_seed() -> None:
    assert len({replay_output("defective", seed) for seed in ("1", "2", "3")}) > 1


def test_a_cache_that_survives_a_refused_commit_is_caught() -> None:
    """The cache stays ahead of the store after a rollback."""
    cluster = paid()
    cluster.settle()
    cluster.request("r", "payment.requested", "ann", PAYMENT)
    for task in cluster.tasks:
        records = cluster.records[task.partition]
        task.fold.process(records[task.position :], task.position)
        task.fold.committed()  # instead of `discard`
    assert "request r reached no final state" in wrong(cluster)
