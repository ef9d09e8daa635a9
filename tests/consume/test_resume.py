"""The resume property: whatever fails and wherever, the result equals that of a run without the failure.

Random records, code with a bug, a kill at a random fault point; then the repaired code continues. Each
record has one output. Without transactions some may be repeated, but none is lost, and no record overtakes
another of its key. With transactions each output is visible once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition  # noqa: TC002  a type of an overridden method
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.consume import Backoff, Output, ParallelConsumer, Record, Retry, fault_points
from penstock.consume.testing import MemoryClient, MemoryKafka, MemoryProducer
from penstock.model.dead_letter import failure_of, own_headers
from penstock.model.fault_points import points
from tests.consume.conftest import KafkaCluster
from tests.consume.test_kill import PROTOCOLS, SHORT_SESSIONS
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

POINTS = sorted(points("consume"))
PARTITIONS = 3
UNCOMMITTED_MAX = 20
SUITE_SECONDS, SOAK_SECONDS = 20, 200


class KilledError(Exception):
    """The process is dead: nothing it does has an effect any more."""


class MortalKafka(MemoryKafka):
    """Clients made before `kill()` are those of a dead process."""

    lives = 0

    @property
    def clients(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        return {
            "client": lambda properties: MortalClient(self, properties),
            "producer_client": lambda properties: MortalProducer(self, properties),
        }

    def kill(self) -> None:
        with self.lock:
            self.lives += 1
            self.members.clear()


class MortalClient(MemoryClient):
    def __init__(self, kafka: MortalKafka, properties: dict[str, Any]) -> None:
        super().__init__(kafka, properties)
        self._mortal, self._life = kafka, kafka.lives

    def _check(self) -> None:
        if self._mortal.lives != self._life:
            raise KilledError

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition] | None:
        self._check()
        return super().commit(offsets, asynchronous)

    def _serve(self) -> None:
        self._check()
        super()._serve()

    def close(self) -> None:
        self._check()
        super().close()


class MortalProducer(MemoryProducer):
    def __init__(self, kafka: MortalKafka, properties: dict[str, Any]) -> None:
        super().__init__(kafka, properties)
        self._mortal, self._life = kafka, kafka.lives

    def produce(self, topic: str, on_delivery: Any = None, **arguments: Any) -> None:
        if self._mortal.lives != self._life:
            raise KilledError
        super().produce(topic, on_delivery, **arguments)

    def commit_transaction(self, timeout: float = 0) -> None:
        if self._mortal.lives != self._life:
            raise KilledError
        super().commit_transaction(timeout)


@dataclass(frozen=True)
class Plan:
    """One case: the records, the bug, and when the process dies."""

    records: list[tuple[int, int]]  # partition and key
    bug: int  # the broken code fails for numbers divisible by this
    point: str
    arrival: int
    transactional: bool
    batches: bool
    dead_letters: bool
    moves: list[int]  # partitions that are revoked and come back, meanwhile

    @property
    def values(self) -> list[bytes]:
        return [str(number).encode() for number in range(len(self.records))]


plans = st.builds(
    Plan,
    records=st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 4)), min_size=1, max_size=60),
    bug=st.integers(2, 30),
    point=st.sampled_from(POINTS),
    arrival=st.integers(1, 5),
    transactional=st.booleans(),
    batches=st.booleans(),
    dead_letters=st.booleans(),
    moves=st.lists(st.integers(0, PARTITIONS - 1), max_size=3),
)


def consumer_of(kafka: MortalKafka, plan: Plan, handle: Callable[[Record], Output]) -> ParallelConsumer:
    consumer = ParallelConsumer(
        kafka.properties("g"), topics=["orders"], concurrency=8, uncommitted_records_max=UNCOMMITTED_MAX,
        commit_records=5, commit_seconds=0.005, transaction_seconds=0.005, revoke_seconds=0.5,
        drain_seconds=1.0, retry=Retry(attempts=1), restart=Backoff(0.005, 0.01),
        transactional_id="t" if plan.transactional else None,
        dead_letter_topic="dead" if plan.dead_letters else None, **kafka.clients,
    )  # fmt: skip

    async def handle_batch(batch: list[Record]) -> list[Output]:
        await asyncio.sleep(0)
        return [handle(record) for record in batch]

    async def handle_one(record: Record) -> Output:
        if int(record.value) % 3 == 0:
            await asyncio.sleep(0.001)
        return handle(record)

    if plan.batches:
        consumer.batch_handler(records=4)(handle_batch)
    else:
        consumer.handler(handle_one)
    return consumer


async def run_until_killed(kafka: MortalKafka, plan: Plan, patch: pytest.MonkeyPatch) -> int:
    """Runs the broken code; how many records it had started at the kill."""
    loop = asyncio.get_running_loop()
    arrivals, started = 0, 0
    over = asyncio.Event()

    def broken(record: Record) -> Output:
        nonlocal started
        started += 1
        if int(record.value) % plan.bug == 0:
            loop.call_later(0.05, over.set)  # it only restarts from now on
            raise ValueError("the bug")
        return Output("copies", record.value, key=record.key)

    consumer = consumer_of(kafka, plan, broken)

    def reach(point: str) -> None:
        nonlocal arrivals
        arrivals += point == plan.point
        if point == plan.point and arrivals == plan.arrival:
            kafka.kill()
            loop.call_soon_threadsafe(consumer.stop)
            raise KilledError

    patch.setattr(fault_points, "reach", reach)
    await consumer.start()
    waiting = [asyncio.ensure_future(consumer.wait()), asyncio.ensure_future(over.wait())]
    waiting += [asyncio.ensure_future(kafka.until_committed("g", "orders"))]
    for partition in plan.moves:
        await asyncio.sleep(0.002)
        try:
            kafka.revoke("orders", partition)
            kafka.assign("orders", partition)
        except (LookupError, IndexError):
            break  # killed, or not assigned yet
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    kafka.kill()  # if the point was not reached, it dies here
    consumer.stop()
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    patch.undo()
    return started


async def resume(kafka: MortalKafka, plan: Plan) -> None:
    """Runs the repaired code to the end, and replays the dead letters of the broken one."""

    def repaired(record: Record) -> Output:
        return Output("copies", record.value, key=record.key)

    async with consumer_of(kafka, plan, repaired):
        await kafka.until_committed("g", "orders")
        for letter in kafka.messages("dead"):
            failure = failure_of(letter.headers() or [])
            assert failure is not None
            headers = own_headers(letter.headers() or [])
            kafka.write(failure.topic, letter.value(), letter.key(), failure.partition, headers)
        await kafka.until_committed("g", "orders")


def check(kafka: MortalKafka, plan: Plan) -> None:
    outputs = [value for value in kafka.values("copies") if value is not None]
    if plan.transactional:
        assert Counter(outputs) == Counter(plan.values)
    else:
        assert set(outputs) == set(plan.values)
        assert len(outputs) - len(plan.values) <= 3 * UNCOMMITTED_MAX
    if not plan.dead_letters:  # a dead letter gives up the order of its key, by definition
        first: dict[tuple[int, int], list[int]] = defaultdict(list)
        for value in dict.fromkeys(outputs):
            first[plan.records[int(value)]].append(int(value))
        assert all(numbers == sorted(numbers) for numbers in first.values())


def property_holds(plan: Plan) -> None:
    kafka = MortalKafka()
    kafka.create("orders", PARTITIONS)
    kafka.create("dead")
    kafka.create("copies")
    for number, (partition, key) in enumerate(plan.records):
        kafka.write("orders", str(number), f"k{key}", partition)
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(run_until_killed(kafka, plan, patch))
    asyncio.run(resume(kafka, plan))
    check(kafka, plan)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_a_killed_consumer_resumes_to_the_result_of_an_undisturbed_run(plan: Plan) -> None:
    property_holds(plan)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_thousands_of_killed_consumers_resume() -> None:
    settings(max_examples=3_000)(given(plans)(property_holds))()


# The same with a real Kafka and kill -9


class Rounds:
    """Each round has its topic and group, one bug, one kill, and ends with everything copied once."""

    def __init__(
        self, cluster: KafkaCluster, processes: Processes, folder: Path, properties: dict[str, Any]
    ) -> None:
        self.cluster, self.processes, self.folder, self.properties = cluster, processes, folder, properties

    def run(self, seconds: float, seed: int) -> int:
        draw, deadline, count = random.Random(seed), time.monotonic() + seconds, 0
        while time.monotonic() < deadline or not count:
            self._round(draw)
            count += 1
        return count

    def _round(self, draw: random.Random) -> None:
        topic, copies = self.cluster.topic(PARTITIONS), self.cluster.topic(1)
        group = self.cluster.unique("group")
        records = draw.randrange(20, 300)
        transactional = draw.random() < 0.7
        point, arrival = draw.choice(POINTS), draw.randrange(1, 4)
        what = f"{records} records, {point}@{arrival}, transactional {transactional}"
        print(what, flush=True)
        self.cluster.write(topic, [(f"k{draw.randrange(20)}", str(number)) for number in range(records)])

        def start(name: str, fault: str = "", **more: Any) -> Any:
            options: dict[str, Any] = {
                "commit_seconds": 0.05, "transaction_seconds": 0.05, "concurrency": 10, "commit_records": 20,
                "uncommitted_records_max": 100, "revoke_seconds": 1.0, "retry_attempts": 1,
            }  # fmt: skip
            if transactional:
                options["transactional_id"] = f"{group}-{name}"
            static = {} if "group.protocol" in self.properties else {"group.instance.id": name}
            connection = self.cluster.fleet.client_config() | {"group.id": group} | static
            plan = {
                "properties": connection | self.properties, "topics": [topic], "work_ms": 5,
                "journal": str(self.folder / group), "output": copies, "options": options, **more,
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.consume.member", json.dumps(plan)]
            environment = os.environ | ({"PENSTOCK_FAULT": fault} if fault else {})
            return self.processes.start(command, env=environment, stderr=-3)

        broken: dict[str, Any] = {"bug": draw.randrange(records // 2, 2 * records)}
        first = start("a", f"{point}@{arrival}", **broken)

        def done() -> bool:
            return self.cluster.all_committed(group, topic, PARTITIONS)

        def half_done() -> bool:
            return first.poll() is not None or done() or self._lines(group) > records // 4

        wait_for(half_done, what=f"half of {what}", seconds=90)
        second = start("b", **broken)  # takes partitions of the first
        bound = time.monotonic() + draw.random() * 5
        wait_for(
            lambda: first.poll() is not None or done() or time.monotonic() > bound, what=what, seconds=90
        )
        for member in (first, second):
            if member.poll() is None:
                self.processes.kill(member.pid)
        repaired = [start("a"), start("b")]
        wait_for(done, what=f"all of {what}", seconds=120)
        config = {"isolation.level": "read_committed"} if transactional else {}
        outputs = Counter(int(each.value()) for each in self.cluster.read([copies], records, **config))
        for member in repaired:
            self.processes.kill(member.pid)
        assert set(outputs) == set(range(records)), what
        if transactional:
            assert max(outputs.values()) == 1, (what, [number for number, n in outputs.items() if n > 1])

    def _lines(self, group: str) -> int:
        path = self.folder / group
        return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_killed_members_resume_to_the_result_of_an_undisturbed_run(
    cluster: KafkaCluster, processes: Processes, tmp_path: Path
) -> None:
    Rounds(cluster, processes, tmp_path, PROTOCOLS["cooperative"]).run(SUITE_SECONDS, seed=3)


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_members_killed_for_minutes_resume(
    make_fleet: Callable[..., Fleet],
    unique: Callable[[str], str],
    processes: Processes,
    tmp_path: Path,
    name: str,
) -> None:
    fleet = make_fleet(combined=True, brokers=1, zones=["a"], config=SHORT_SESSIONS)
    cluster = KafkaCluster(fleet, unique)
    seed = int(os.environ.get("RESUME_SEED") or time.time())
    print(f"RESUME_SEED={seed}")
    rounds = Rounds(cluster, processes, tmp_path, PROTOCOLS[name]).run(SOAK_SECONDS, seed)
    print(f"{rounds} rounds")
    cluster.close()
