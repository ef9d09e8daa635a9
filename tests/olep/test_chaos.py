"""Random payments while executors, callers and brokers are killed: seconds here, ten minutes in a soak.

Everything random comes from a seed that a failure prints.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.payments.audit import audit
from examples.payments.load import Load
from penstock.model import faults
from penstock.olep.executor import REVOKED
from penstock.olep.log import APPEND_AFTER, APPEND_BEFORE
from penstock.olep.snapshot import SNAPSHOT_HALF
from tests.ground import heard
from tests.olep.ground import BankGround

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet
    from tests.olep.ground import Process

pytestmark = pytest.mark.kafka

POINTS = [p for p in faults.points("olep") if p not in {REVOKED, SNAPSHOT_HALF, APPEND_BEFORE, APPEND_AFTER}]
BREATH_SECONDS = (0.3, 1.5)
AFTERWARDS_SECONDS = 120.0
ASKED_MIN = 100
KILLED_MIN = 6
PATIENCE_SECONDS = 120.0


class Chaos:
    """Two executors, a caller and the brokers, any of which may die at any time."""

    def __init__(self, fleet: Fleet, ground: BankGround, seed: str) -> None:
        self.fleet = fleet
        self.ground = ground
        self.dice = random.Random(seed)
        self.journal = Path(ground.setting.home) / "journal"
        self.killed = {"executor": 0, "caller": 0, "broker": 0}
        self.executors: dict[str, Process] = {}
        self.caller: Process | None = None

    def run(self, seconds: float, *, brokers: bool = True) -> None:
        end = time.monotonic() + seconds
        acts = [self.kill_executor, self.kill_executor, self.kill_caller] + [self.kill_broker] * brokers
        self.keep_going()
        # On a busy machine processes take long to start: go on until something has happened at all.
        while time.monotonic() < end or self.uneventful():
            assert time.monotonic() < end + PATIENCE_SECONDS, "next to nothing has happened"
            time.sleep(self.dice.uniform(*BREATH_SECONDS))
            self.dice.choice(acts)()
            self.keep_going()

    def uneventful(self) -> bool:
        return len(self.asked()) < ASKED_MIN or sum(self.killed.values()) < KILLED_MIN

    def keep_going(self) -> None:
        """Starts what is dead. An executor is armed to die at a fault point, more often than not."""
        for member in ("one", "two"):
            process = self.executors.get(member)
            if process is None or not process.running():
                if process is not None:
                    # Killed; or it gave up by itself, with an error of the catalogue, for want of brokers.
                    assert process.wait() == -signal.SIGKILL or "(PEN-" in process.end()
                fault = (
                    f"{self.dice.choice(POINTS)}@{self.dice.randrange(2, 40)}"
                    if self.dice.random() < 0.6
                    else None
                )
                self.executors[member] = self.ground.start("executor", "--member", member, fault=fault)
        if self.caller is None or not self.caller.running():
            words = ("--repeats", "0.1", "--agreements", "0.3", "--accounts", "8", "--in-flight", "50")
            seed = str(self.dice.randrange(10**6))
            self.caller = self.ground.start(
                "load", "--seconds", "1000", *words, "--seed", seed, "--journal", f"{self.journal}-{seed}"
            )

    def kill_executor(self) -> None:
        process = self.executors[self.dice.choice(["one", "two"])]
        if process.running():
            process.signal(signal.SIGKILL)
            process.wait()
        self.killed["executor"] += 1

    def asked(self) -> set[str]:
        """Every request that a caller has made."""
        return {line for path in self.journals() for line in path.read_text(encoding="utf-8").split()}

    def journals(self) -> list[Path]:
        return [*self.journal.parent.glob(f"{self.journal.name}-*")]

    def kill_caller(self) -> None:
        assert self.caller is not None
        newest = self.caller.words[-1]
        if self.caller.running() and not (Path(newest).exists() and Path(newest).stat().st_size):
            return  # it has not even begun
        self.caller.end()
        self.killed["caller"] += 1

    def kill_broker(self) -> None:
        name = self.dice.choice(self.fleet.brokers).name
        self.fleet.kill(name)
        time.sleep(self.dice.uniform(0.0, 1.0))
        self.fleet.start_node(name)
        self.killed["broker"] += 1

    def calm(self) -> None:
        """Nobody pays any more, and whoever executes now lives."""
        assert self.caller is not None
        self.caller.end()
        for process in self.executors.values():
            process.end()
        for member in self.executors:
            self.executors[member] = self.ground.start("executor", "--member", member)


def loop(fleet: Fleet, home: Path, name: str, seconds: float, *, brokers: bool) -> Chaos:
    seed = os.environ.get("PENSTOCK_SEED", str(time.time_ns()))
    print(f"seed {seed}")
    ground = BankGround(home, fleet.client_config(), name, batch_max=20)
    heard.now(heard.topics_heard(fleet, ground.setting.accounts, ground.setting.notices))
    try:
        ground.append(Load(accounts=8), 0, seed)
        chaos = Chaos(fleet, ground, seed)
        chaos.run(seconds, brokers=brokers)
        chaos.calm()
        found = audit(ground.setting, timeout=AFTERWARDS_SECONDS)
        assert found == [], found[:10]
        return chaos
    finally:
        ground.end()


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
    chaos = loop(make_fleet(brokers=3), tmp_path, unique("chaos"), 30, brokers=True)
    assert sum(chaos.killed.values()) >= KILLED_MIN
