"""Plans on six real brokers: killed at fault points, and with dying brokers and other clients in the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.balance.actions import Purpose
from penstock.balance.cluster_observation import observe
from penstock.balance.executing import Budget
from penstock.balance.plan_document import PlannedMove, PlanState
from penstock.balance.replication_throttle import FOLLOWERS, LEADERS, RATES
from penstock.control.load.load_history import ensure_load_topic
from penstock.control.load.planning import ClusterReading, PlanMaker, PlanRequest, read_cluster
from penstock.control.registry import Put, Registry
from penstock.kafka.admin import configs, reassignments, topics
from penstock.kafka.admin.configs import Source
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model import fault_points
from penstock.model.entities import BrokerEndpoint, ClusterState, PhysicalCluster
from penstock.model.ids import BrokerId, Zone
from tests.balance.plan_process import CLUSTER, Plans
from tests.harness.fleet import Fleet
from tests.harness.propagation import wait_for_leaders
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.kafka.client import Client as KafkaClient
    from tests.harness.processes import Processes

from penstock.kafka.client import Client

pytestmark = pytest.mark.kafka

SIX = {"port": 0, "brokers": 6, "heap": 256}
ARRIVAL_SECONDS_MAX = 120
SLOW = 1e6  # bytes a second
# The plan is stored when it is proposed, when it is paced, and when it is run.
POINTS = [f"{p}@3" if p == "balance.plan.written" else p for p in fault_points.points("balance")]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet.start(tmp_path_factory.mktemp("plans"), SIX)
    yield fleet
    fleet.destroy()


def client_of(fleet: Fleet) -> Client:
    return Client(fleet.bootstrap, fleet.security())


def ids(fleet: Fleet) -> list[int]:
    return sorted(node.spec.id for node in fleet.brokers)


def name_of(fleet: Fleet, broker: int) -> str:
    return next(node.name for node in fleet.brokers if node.spec.id == broker)


async def create(fleet: Fleet, client: KafkaClient, name: str, replicas: list[list[int]]) -> str:
    """A topic with these replicas; returns its id."""
    new = topics.NewTopic(name, replicas=dict(enumerate(replicas)))
    made = results_or_raise(await topics.create(client, [new]))[name]
    await wait_for_leaders(fleet.bootstrap, fleet.security(), name, len(replicas))
    return str(made)


def fill(fleet: Fleet, topic: str, megabytes: int) -> None:
    producer = Producer(fleet.client_config())
    for _ in range(megabytes * 10):
        producer.produce(topic, os.urandom(100_000), partition=0)
    assert producer.flush(ARRIVAL_SECONDS_MAX) == 0


async def throttles(client: KafkaClient, fleet: Fleet, topic: str) -> dict[str, str | None]:
    """Every throttle that is set on the topic or on a broker."""
    resources = [configs.topic(topic), *(configs.broker(broker) for broker in ids(fleet))]
    names = (*RATES, LEADERS, FOLLOWERS)
    described = results_or_raise(await configs.describe(client, resources, names=names))
    return {
        f"{resource} {entry.name}": entry.value
        for resource, entries in described.items()
        for entry in entries.values()
        if entry.source in (Source.TOPIC, Source.BROKER_DYNAMIC)
    }


async def placed(client: KafkaClient, topic: str) -> list[tuple[tuple[int, ...], int | None]]:
    """Replicas and leader of each partition."""
    seen = await observe(client, [topic])
    return [(state.replicas, state.leader) for _, state in sorted(seen.partitions.items())]


@pytest.mark.parametrize("point", POINTS)
async def test_a_plan_killed_anywhere_is_resumed_from_its_document(
    six: Fleet, unique: Callable[[str], str], point: str, processes: Processes
) -> None:
    a, b, c, d, *_ = ids(six)
    topic = unique("orders")
    cancels = point == "balance.plan.cancelled"
    config = six.client_config()
    async with client_of(six) as client:
        topic_id = await create(six, client, topic, [[a, b, c], [b, c, a]])
        await asyncio.to_thread(fill, six, topic, 12 if cancels else 1)
        moves = [
            PlannedMove(topic, topic_id, 0, (a, b, c), (d, b, c), bytes=1_000_000),
            PlannedMove(topic, topic_id, 1, (b, c, a), (c, b, a)),
        ]
        facts = {
            "bootstrap": six.bootstrap,
            "user": config["sasl.username"],
            "password": config["sasl.password"],
            "moves": [asdict(move) for move in moves],
            "rate": SLOW if cancels else 50e6,
            "cancels": cancels,
        }
        command = [sys.executable, "-m", "tests.balance.plan_process", json.dumps(facts)]
        child = processes.start(command, env=os.environ | {fault_points.FAULT_VARIABLE: point})
        assert await asyncio.to_thread(child.wait, ARRIVAL_SECONDS_MAX) == -signal.SIGKILL

        async with Plans.running(client) as plans:
            headers = plans.store.documents.headers
            plan = next(p for p in headers if any(m.topic == topic for m in plans.store.need(p).moves))
            if headers[plan].state is PlanState.PROPOSED:
                await plans.change(plan, "plan.run")
            header = await plans.until_ended(plan)

        assert header.state is (PlanState.CANCELLED if cancels else PlanState.DONE)
        assert header.dropped == ()
        expected = [m.before if cancels else m.after for m in moves]

        async def as_expected() -> bool:
            return await placed(client, topic) == [(replicas, replicas[0]) for replicas in expected]

        async def unthrottled() -> bool:
            return not await throttles(client, six, topic)

        await eventually(as_expected)
        await eventually(unthrottled)


async def test_throttles_that_an_operator_set_stay(six: Fleet, unique: Callable[[str], str]) -> None:
    a, b, c, d, *_ = ids(six)
    topic = unique("orders")
    operators = {LEADERS: f"1:{a}", FOLLOWERS: f"1:{d}"}
    default = configs.CLUSTER_DEFAULT
    async with client_of(six) as client:
        topic_id = await create(six, client, topic, [[a, b, c], [a, b, c]])
        results_or_raise(
            await configs.alter(
                client,
                {
                    configs.topic(topic): configs.changes(dict(operators)),
                    configs.broker(b): configs.changes({RATES[0]: "9000000"}),
                    default: configs.changes({RATES[1]: "8000000"}),
                },
            )
        )
        async with Plans.running(client) as plans:
            plan = (await plans.propose([PlannedMove(topic, topic_id, 0, (a, b, c), (d, b, c))])).id
            await plans.change(plan, "plan.run")
            header = await plans.until_ended(plan)

        assert (header.state, header.dropped) == (PlanState.DONE, ())
        expected = {f"{configs.topic(topic)} {name}": value for name, value in operators.items()}
        expected[f"{configs.broker(b)} {RATES[0]}"] = "9000000"

        async def as_before() -> bool:
            return await throttles(client, six, topic) == expected

        await eventually(as_before)
        undo = {configs.broker(b): {RATES[0]: None}, default: {RATES[1]: None}}
        await configs.alter(client, {where: configs.changes(each) for where, each in undo.items()})


async def test_a_dead_source_is_left_and_other_clients_reassignments_are_awaited(
    six: Fleet, unique: Callable[[str], str]
) -> None:
    a, b, c, d, _e, f = ids(six)
    topic, theirs = unique("orders"), unique("theirs")
    external = TopicPartition(theirs, 0)
    async with client_of(six) as client:
        topic_id = await create(six, client, topic, [[f, b, c]])
        await create(six, client, theirs, [[a, b, c]])
        await asyncio.to_thread(six.kill, name_of(six, f))

        async def is_seen_dead() -> bool:
            return f not in (await observe(client, [topic])).alive

        await eventually(is_seen_dead)
        # The new replica is on the dead broker, so it does not end by itself.
        results_or_raise(await reassignments.alter(client, {external: [a, b, f]}))
        async with Plans.running(client) as plans:
            plan = (await plans.propose([PlannedMove(topic, topic_id, 0, (f, b, c), (d, b, c))])).id
            await plans.change(plan, "plan.run")

            async def waits() -> bool:
                return theirs in plans.store.need(plan).header.progress.waiting

            await eventually(waits)
            assert (await placed(client, topic))[0][0] == (f, b, c)
            results_or_raise(await reassignments.alter(client, {external: None}))
            header = await plans.until_ended(plan)

        assert (header.state, header.dropped) == (PlanState.DONE, ())
        assert (await placed(client, topic))[0] == ((d, b, c), d)
        await asyncio.to_thread(six.start_node, name_of(six, f))

        async def unthrottled() -> bool:
            return not await throttles(client, six, topic)

        await eventually(unthrottled)


async def test_a_move_to_a_broker_that_dies_is_cancelled_and_leaves_no_throttle(
    six: Fleet, unique: Callable[[str], str]
) -> None:
    a, b, c, _d, e, f = ids(six)
    topic = unique("orders")
    async with client_of(six) as client:
        topic_id = await create(six, client, topic, [[a, b, c], [a, b, c]])
        await asyncio.to_thread(fill, six, topic, 12)
        moves = [
            PlannedMove(topic, topic_id, 0, (a, b, c), (f, b, c), bytes=12_000_000),
            PlannedMove(topic, topic_id, 1, (a, b, c), (a, b, e)),
        ]
        async with Plans.running(client, Budget(dead_seconds=2.0)) as plans:
            plan = (await plans.propose(moves)).id
            await plans.change(plan, "plan.pace", rate=SLOW)
            await plans.change(plan, "plan.run")

            async def copies() -> bool:
                return bool((await observe(client, [topic])).partitions[topic, 0].reassigning)

            await eventually(copies)
            await asyncio.to_thread(six.kill, name_of(six, f))
            header = await plans.until_ended(plan)

            assert header.state is PlanState.DONE
            assert header.dropped_moves == {0: f"broker {f} is down"}
            assert [replicas for replicas, _ in await placed(client, topic)] == [(a, b, c), (a, b, e)]
            await asyncio.to_thread(six.start_node, name_of(six, f))
            await plans.executor.tidy((await observe(client, [topic])).alive)

        async def unthrottled() -> bool:
            return not await throttles(client, six, topic)

        await eventually(unthrottled)


def registered(fleet: Fleet) -> Registry:
    """A registry that knows this fleet."""
    endpoints = tuple(
        BrokerEndpoint(BrokerId(node.spec.id), Zone(node.spec.zone), "127.0.0.1", 1) for node in fleet.brokers
    )
    physical = PhysicalCluster(
        id=CLUSTER, version=1, name="six", provider="local", brokers=endpoints, state=ClusterState.READY
    )
    registry = Registry()
    registry.accept([Put(physical)])
    return registry


def maker_of(client: KafkaClient, registry: Registry, plans: Plans) -> PlanMaker:
    async def reading(cluster: str) -> ClusterReading:
        del cluster
        return await read_cluster(client)

    return PlanMaker(lambda: registry, dict, reading, lambda: plans.service)


async def test_a_skewed_topic_is_planned_run_and_balanced(six: Fleet, unique: Callable[[str], str]) -> None:
    first, *_ = ids(six)
    topic, count = unique("orders"), 36
    async with client_of(six) as client, Plans.running(client) as plans:
        await ensure_load_topic(client)
        await create(six, client, topic, [[first]] * count)

        maker = maker_of(client, registered(six), plans)
        others = frozenset(name for name, _ in (await observe(client)).partitions if name != topic)

        proposed = await maker.propose(PlanRequest(CLUSTER, topics_excluded=others), "test")
        assert {move.topic for move in proposed.moves} == {topic}
        assert "disk" in proposed.header.goals_run
        await plans.change(proposed.id, "plan.run")
        header = await plans.until_ended(proposed.id)

        assert (header.state, header.dropped) == (PlanState.DONE, ())
        leaders = Counter(leader for _, leader in await placed(client, topic))
        assert max(leaders.values()) <= count / len(six.brokers) * 1.5 + 1
        assert sum(leaders.values()) == count
        again = await maker.propose(PlanRequest(CLUSTER, topics_excluded=others), "test")
        assert again.moves == ()
        demoted = await maker.propose(
            PlanRequest(CLUSTER, Purpose.DEMOTE, first, topics_excluded=others), "test"
        )
        assert demoted.moves == ()  # a single replica has no other leader


async def test_leadership_leaves_a_demoted_broker_and_returns(
    six: Fleet, unique: Callable[[str], str]
) -> None:
    a, b, c, *_ = ids(six)
    topic = unique("orders")
    registry = registered(six)
    async with client_of(six) as client, Plans.running(client) as plans:
        await ensure_load_topic(client)
        await create(six, client, topic, [[a, b, c], [b, c, a]])
        maker = maker_of(client, registry, plans)
        others = frozenset(name for name, _ in (await observe(client)).partitions if name != topic)

        async def run(request: PlanRequest) -> list[tuple[tuple[int, ...], int | None]]:
            proposed = await maker.propose(request, "test")
            await plans.change(proposed.id, "plan.run")
            header = await plans.until_ended(proposed.id)
            assert (header.state, header.dropped) == (PlanState.DONE, ())
            return await placed(client, topic)

        demoted = await run(PlanRequest(CLUSTER, Purpose.DEMOTE, a, topics_excluded=others))
        assert all(leader != a for _, leader in demoted)
        assert demoted[1] == ((b, c, a), b)
        assert sorted(demoted[0][0]) == [a, b, c]
        restored = await run(PlanRequest(CLUSTER, Purpose.RESTORE, a))
        assert restored == [((a, b, c), a), ((b, c, a), b)]
