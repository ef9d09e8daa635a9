"""kill -9 in a loop: three members, rebalances all the time, nothing lost, order kept, repeats bounded."""

from __future__ import annotations

import json
import os
import sys
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.consume.conftest import Ground
from tests.consume.journal import ended, lines, order_breaches, repeats
from tests.ground.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ground.fleet import Fleet
    from tests.ground.processes import Processes

MEMBERS = 3
PARTITIONS = 6
KEYS = 60
CONCURRENCY = 20
EXPOSURE = 100  # the documented bound: no kill repeats more than this

SUITE_SECONDS, SOAK_SECONDS = 30, 200
PROTOCOLS: dict[str, dict[str, Any]] = {
    "cooperative": {"session.timeout.ms": 6000},
    "eager": {"session.timeout.ms": 6000, "partition.assignment.strategy": "range"},
    "kip-848": {"group.protocol": "consumer"},
}
# There the broker says how soon a silent member is expelled; its default of 45 s would make a dull storm.
SHORT_SESSIONS = {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}


class Storm:
    """Members that are killed and replaced at random, while records keep coming."""

    def __init__(
        self, ground: Ground, processes: Processes, journal: Path, properties: dict[str, Any]
    ) -> None:
        self.ground, self.processes, self.journal = ground, processes, journal
        self.topic, self.group = ground.topic(PARTITIONS), ground.unique("group")
        self.properties = properties
        self.kills = 0
        self.written = 0
        self.members = [self.start(index) for index in range(MEMBERS)]

    def start(self, index: int) -> Any:
        plan = {
            "properties": self.ground.fleet.client_config()
            | {"group.id": self.group, "group.instance.id": f"member-{index}"}
            | self.properties,
            "topics": [self.topic], "journal": str(self.journal), "work_ms": 10,
            "options": {
                "concurrency": CONCURRENCY, "commit_records": 30, "exposure_records": EXPOSURE,
                "commit_seconds": 0.2, "revoke_seconds": 2.0,
            },
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.consume.member", json.dumps(plan)]
        with self.journal.with_name(f"member-{index}.log").open("a") as log:
            return self.processes.start(command, stderr=log, env=dict(os.environ))

    def write(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        self.ground.write(self.topic, [(f"k{number % KEYS}", str(number)) for number in numbers])
        self.written += count

    def rage(self, seconds: float, random: Random) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.write(500)
            before = len(lines(self.journal))
            wait_for(lambda before=before: len(lines(self.journal)) > before + 50, what="work", seconds=90)
            index = random.randrange(MEMBERS)
            self.processes.kill(self.members[index].pid)
            self.kills += 1
            self.members[index] = self.start(index)


@pytest.mark.kafka
def test_members_killed_in_a_loop_lose_nothing(ground: Ground, processes: Processes, tmp_path: Path) -> None:
    _storm(ground, processes, tmp_path, "cooperative", SUITE_SECONDS)


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_members_killed_for_minutes_lose_nothing(
    make_fleet: Callable[..., Fleet],
    unique: Callable[[str], str],
    processes: Processes,
    tmp_path: Path,
    name: str,
) -> None:
    fleet = make_fleet(combined=True, brokers=1, zones=["a"], config=SHORT_SESSIONS)
    ground = Ground(fleet, unique)
    _storm(ground, processes, tmp_path, name, SOAK_SECONDS)
    ground.close()


def _storm(ground: Ground, processes: Processes, tmp_path: Path, name: str, seconds: float) -> None:
    storm = Storm(ground, processes, tmp_path / "journal", PROTOCOLS[name])
    storm.rage(seconds, Random(7))
    wait_for(
        lambda: ground.all_committed(storm.group, storm.topic, PARTITIONS),
        what="everything committed",
        seconds=90,
    )
    journal = lines(storm.journal)
    assert ended(journal) == {str(number) for number in range(storm.written)}, "nothing is lost"
    assert order_breaches(journal) == []
    # A kill repeats at most what was exposed; a rebalance may cut short what one member was running.
    bound = storm.kills * (EXPOSURE + MEMBERS * CONCURRENCY)
    print(f"kills {storm.kills}, records {storm.written}, repeats {repeats(journal)}, bound {bound}")
    assert storm.kills > 0
    assert repeats(journal) <= bound
