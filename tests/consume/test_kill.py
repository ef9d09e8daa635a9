"""kill -9 in a loop: three members, rebalances all the time, nothing lost, order kept, repeats bounded."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.consume.conftest import KafkaCluster
from tests.consume.journal import ended, lines, order_breaches, repeats
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

MEMBERS = 3
PARTITIONS = 6
KEYS = 60
CONCURRENCY = 20
UNCOMMITTED_MAX = 100  # the documented bound: no kill repeats more than this

SUITE_SECONDS, SOAK_SECONDS = 30, 200
PROTOCOLS: dict[str, dict[str, Any]] = {
    "cooperative": {"session.timeout.ms": 6000},
    "eager": {"session.timeout.ms": 6000, "partition.assignment.strategy": "range"},
    "kip-848": {"group.protocol": "consumer"},
}
# With KIP-848 the broker sets the session time-out; its default of 45 s would leave too few rebalances.
SHORT_SESSIONS = {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}


class KillLoop:
    """Members that are killed and replaced at random, while records keep coming."""

    def __init__(
        self, cluster: KafkaCluster, processes: Processes, journal: Path, properties: dict[str, Any]
    ) -> None:
        self.cluster, self.processes, self.journal = cluster, processes, journal
        self.topic, self.group = cluster.topic(PARTITIONS), cluster.unique("group")
        self.properties = properties
        self.kills = 0
        self.written = 0
        self.members = [self.start(index) for index in range(MEMBERS)]

    def start(self, index: int) -> Any:
        plan = {
            "properties": self.cluster.fleet.client_config()
            | {"group.id": self.group, "group.instance.id": f"member-{index}"}
            | self.properties,
            "topics": [self.topic], "journal": str(self.journal), "work_ms": 10,
            "options": {
                "concurrency": CONCURRENCY, "commit_records": 30, "uncommitted_records_max": UNCOMMITTED_MAX,
                "commit_seconds": 0.2, "revoke_seconds": 2.0,
            },
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.consume.member", json.dumps(plan)]
        with self.journal.with_name(f"member-{index}.log").open("a") as log:
            return self.processes.start(command, stderr=log, env=dict(os.environ))

    def write(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        self.cluster.write(self.topic, [(f"k{number % KEYS}", str(number)) for number in numbers])
        self.written += count

    def run(self, seconds: float, random: Random) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.write(500)
            progress = functools.partial(self._has_lines, len(lines(self.journal)) + 50)
            wait_for(progress, what="work", seconds=90)
            index = random.randrange(MEMBERS)
            self.processes.kill(self.members[index].pid)
            self.kills += 1
            self.members[index] = self.start(index)

    def _has_lines(self, count: int) -> bool:
        return len(lines(self.journal)) > count


@pytest.mark.kafka
def test_members_killed_in_a_loop_lose_nothing(
    cluster: KafkaCluster, processes: Processes, tmp_path: Path
) -> None:
    _kill_members(cluster, processes, tmp_path, "cooperative", SUITE_SECONDS)


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
    cluster = KafkaCluster(fleet, unique)
    _kill_members(cluster, processes, tmp_path, name, SOAK_SECONDS)
    cluster.close()


def _kill_members(
    cluster: KafkaCluster, processes: Processes, tmp_path: Path, name: str, seconds: float
) -> None:
    loop = KillLoop(cluster, processes, tmp_path / "journal", PROTOCOLS[name])
    loop.run(seconds, Random(7))
    wait_for(
        lambda: cluster.all_committed(loop.group, loop.topic, PARTITIONS),
        what="everything committed",
        seconds=90,
    )
    journal = lines(loop.journal)
    assert ended(journal) == {str(number) for number in range(loop.written)}, "nothing is lost"
    assert order_breaches(journal) == []
    # A kill repeats at most the uncommitted records; a rebalance may cut short what the members were running.
    bound = loop.kills * (UNCOMMITTED_MAX + MEMBERS * CONCURRENCY)
    print(f"kills {loop.kills}, records {loop.written}, repeats {repeats(journal)}, bound {bound}")
    assert loop.kills > 0
    assert repeats(journal) <= bound
