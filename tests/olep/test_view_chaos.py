"""A bank at work while its views and executors are killed: snapshots stay whole, views equal the log.

All randomness comes from a seed, which is printed. `PENSTOCK_SEED` sets it.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.bank_check import check_bank
from examples.payments.load import Load
from examples.payments.queries import BankQueries
from penstock.model import fault_points
from penstock.model.errors import PenstockError
from penstock.olep.log import end_position
from penstock.olep.view import digest
from penstock.olep.view.consistent_reads import Reads
from penstock.olep.view.runner import Tuning, ViewRunner, catch_up
from penstock.olep.view.stores.memory import MemoryViews
from tests.olep.bank_harness import wait_for

if TYPE_CHECKING:
    from tests.olep.bank_harness import BankHarness, Process

pytestmark = pytest.mark.kafka

POINTS = [point for point in fault_points.points("view") if not point.startswith("view.rebuild.")]
ACCOUNTS = 8
DEPOSIT = 5000


class Chaos:
    def __init__(self, harness: BankHarness, seed: str) -> None:
        self.harness = harness
        self.dice = random.Random(seed)
        self.killed = 0
        self.snapshots = 0
        self.wrong: list[str] = []
        self._processes: dict[str, Process] = {}
        self._done = threading.Event()

    def run(self, seconds: float) -> None:
        reader = threading.Thread(target=self._read)
        reader.start()
        end = time.monotonic() + seconds
        try:
            self._restart_dead()
            while time.monotonic() < end:
                time.sleep(self.dice.uniform(2.0, 8.0))
                name = self.dice.choice(["views", "views", "executor"])
                if self._processes[name].running():
                    self._processes[name].signal(signal.SIGKILL)
                self._processes[name].wait()
                self.killed += 1
                self._restart_dead()
        finally:
            self._done.set()
            reader.join()
            for process in self._processes.values():
                process.end()

    def _restart_dead(self) -> None:
        words = {
            "views": ("views",),
            "executor": ("executor", "--member", "only"),
            "load": ("load", "--seconds", "1000", "--accounts", str(ACCOUNTS), "--in-flight", "20"),
        }
        for name, command in words.items():
            if name not in self._processes or not self._processes[name].running():
                armed = f"{self.dice.choice(POINTS)}@{self.dice.randrange(2, 60)}"
                fault = armed if name == "views" and self.dice.random() < 0.5 else None
                self._processes[name] = self.harness.start(*command, fault=fault)

    def _read(self) -> None:
        """Takes snapshots meanwhile; retries while a view is down."""
        with BankQueries(self.harness.settings) as queries:
            while not self._done.wait(0.05):
                try:
                    held = dict(queries.accounts())
                except PenstockError:
                    continue
                self.snapshots += 1
                if sum(held.values()) != DEPOSIT * sum(name.startswith("account") for name in held):
                    self.wrong.append(f"{held}")


def loop(harness: BankHarness, seconds: float) -> Chaos:
    seed = os.environ.get("PENSTOCK_SEED", str(time.time_ns()))
    print(f"seed {seed}")
    harness.append(Load(accounts=ACCOUNTS), 0, seed)
    chaos = Chaos(harness, seed)
    chaos.run(seconds)
    assert chaos.wrong == []
    with harness.executing():
        assert check_bank(harness.settings) == []
    views = harness.start("views")
    log = harness.settings.accounts_log()
    memory = MemoryViews()
    for projection, stores in harness.settings.views.values():
        with Reads(projection, log, stores) as reads:
            wait_for(partial(_reached, reads, log), f"{projection.name} to catch up", 120)
            catch_up(ViewRunner(projection, log, memory, tuning=Tuning(batch_max=20_000)), threading.Event())
            replayed = memory.open(projection, log.topic_id, log.partitions, generation=1)
            with reads.latest() as ours, replayed.reading() as theirs:
                assert digest(ours, projection) == digest(theirs, projection), projection.name
    views.end()
    return chaos


def _reached(reads: Reads, log: Any) -> bool:
    try:
        return reads.position().covers(end_position(log))
    except PenstockError:
        return False


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_views_equal_the_log_after_five_minutes_of_killing(harness: BankHarness) -> None:
    chaos = loop(harness, float(os.environ.get("SOAK_SECONDS", "300")))
    assert (chaos.killed > 10, chaos.snapshots > 10) == (True, True)
