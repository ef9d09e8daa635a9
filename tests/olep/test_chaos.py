"""Random payments while executors, callers and brokers are killed: seconds here, minutes in a soak.

All randomness comes from a seed, which is printed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.payments.bank_check import check_bank
from examples.payments.load import Load
from penstock.model import fault_points
from penstock.olep.executor import REVOKED
from penstock.olep.log import APPEND_AFTER, APPEND_BEFORE
from penstock.olep.state_snapshot import SNAPSHOT_HALF
from tests.harness import propagation
from tests.olep.bank_harness import BankHarness

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.olep.bank_harness import Process

pytestmark = pytest.mark.kafka

POINTS = [
    p for p in fault_points.points("olep") if p not in {REVOKED, SNAPSHOT_HALF, APPEND_BEFORE, APPEND_AFTER}
]
PAUSE_SECONDS = (0.3, 1.5)
AFTERWARDS_SECONDS = 120.0
REQUESTS_MIN = 100
KILLED_MIN = 6
PATIENCE_SECONDS = 120.0


class Chaos:
    """Two executors, a caller and the brokers, any of which may die at any time."""

    def __init__(self, fleet: Fleet, harness: BankHarness, seed: str, load: tuple[str, ...]) -> None:
        self.fleet = fleet
        self.harness = harness
        self.load = load
        self.dice = random.Random(seed)
        self.journal = Path(harness.settings.home) / "journal"
        self.killed = {"executor": 0, "caller": 0, "broker": 0}
        self.executors: dict[str, Process] = {}
        self.caller: Process | None = None

    def run(self, seconds: float, *, brokers: bool = True) -> None:
        end = time.monotonic() + seconds
        actions = [self.kill_executor, self.kill_executor, self.kill_caller] + [self.kill_broker] * brokers
        self.restart_dead()
        # On a busy machine processes start slowly: continue until enough has happened.
        while time.monotonic() < end or self.uneventful():
            assert time.monotonic() < end + PATIENCE_SECONDS, "too little has happened"
            time.sleep(self.dice.uniform(*PAUSE_SECONDS))
            self.dice.choice(actions)()
            self.restart_dead()

    def uneventful(self) -> bool:
        return len(self.requests()) < REQUESTS_MIN or sum(self.killed.values()) < KILLED_MIN

    def restart_dead(self) -> None:
        """Restarts dead processes. Most executors are armed to die at a fault point."""
        for member in ("one", "two"):
            process = self.executors.get(member)
            if process is None or not process.running():
                if process is not None:
                    # Killed, or it stopped with an error of the catalogue because brokers were down.
                    assert process.wait() == -signal.SIGKILL or "(PEN-" in process.end()
                fault = (
                    f"{self.dice.choice(POINTS)}@{self.dice.randrange(2, 40)}"
                    if self.dice.random() < 0.6
                    else None
                )
                self.executors[member] = self.harness.start("executor", "--member", member, fault=fault)
        if self.caller is None or not self.caller.running():
            words = (
                "--repeats",
                "0.1",
                "--agreements",
                "0.3",
                "--accounts",
                "8",
                "--in-flight",
                "50",
                *self.load,
            )
            seed = str(self.dice.randrange(10**6))
            self.caller = self.harness.start(
                "load", "--seconds", "1000", *words, "--seed", seed, "--journal", f"{self.journal}-{seed}"
            )

    def kill_executor(self) -> None:
        process = self.executors[self.dice.choice(["one", "two"])]
        if process.running():
            process.signal(signal.SIGKILL)
            process.wait()
        self.killed["executor"] += 1

    def requests(self) -> set[str]:
        """The ids of all requests that callers have made."""
        return {line for path in self.journals() for line in path.read_text(encoding="utf-8").split()}

    def journals(self) -> list[Path]:
        return [*self.journal.parent.glob(f"{self.journal.name}-*")]

    def kill_caller(self) -> None:
        assert self.caller is not None
        newest = self.caller.words[-1]
        if self.caller.running() and not (Path(newest).exists() and Path(newest).stat().st_size):
            return  # it has not started
        self.caller.end()
        self.killed["caller"] += 1

    def kill_broker(self) -> None:
        name = self.dice.choice(self.fleet.brokers).name
        self.fleet.kill(name)
        time.sleep(self.dice.uniform(0.0, 1.0))
        self.fleet.start_node(name)
        self.killed["broker"] += 1

    def recover(self) -> None:
        """Stops the load, and restarts the executors without faults."""
        assert self.caller is not None
        self.caller.end()
        for process in self.executors.values():
            process.end()
        for member in self.executors:
            self.executors[member] = self.harness.start("executor", "--member", member)


def loop(
    fleet: Fleet, home: Path, name: str, seconds: float, *, brokers: bool, load: tuple[str, ...] = ()
) -> Chaos:
    seed = os.environ.get("PENSTOCK_SEED", str(time.time_ns()))
    print(f"seed {seed}")
    harness = BankHarness(home, fleet.client_config(), name, batch_max=20)
    propagation.run_in_thread(
        propagation.wait_for_topics(fleet, harness.settings.accounts, harness.settings.notices)
    )
    try:
        harness.append(Load(accounts=8), 0, seed)
        chaos = Chaos(fleet, harness, seed, load)
        chaos.run(seconds, brokers=brokers)
        chaos.recover()
        wrong = check_bank(harness.settings, timeout=AFTERWARDS_SECONDS)
        assert wrong == [], wrong[:10]
        return chaos
    finally:
        harness.end()


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_no_cent_is_lost_in_ten_minutes_of_killing_everything(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str], tmp_path: Path
) -> None:
    chaos = loop(make_fleet(brokers=3), tmp_path, unique("soak"), 600, brokers=True)
    assert min(chaos.killed.values()) > 10


@pytest.mark.timeout(300)
def test_no_cent_is_lost_while_brokers_are_killed_too(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str], tmp_path: Path
) -> None:
    chaos = loop(make_fleet(brokers=3), tmp_path, unique("chaos"), 30, brokers=True, load=("--rate", "100"))
    assert sum(chaos.killed.values()) >= KILLED_MIN
