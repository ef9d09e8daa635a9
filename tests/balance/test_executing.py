"""What the executor decides, on an in-memory cluster that copies as fast as a test decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.executing import (
    DEAD_SECONDS,
    PACE_SECONDS,
    SETTLE_SECONDS,
    SHARE_MIN,
    Budget,
    Health,
    Memory,
    Observation,
    PartitionState,
    Round,
    Standing,
    Status,
    TopicPartition,
    Work,
    decide,
    health_of,
)
from penstock.balance.plan_document import PlannedMove

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

ALIVE = frozenset(range(8))


def move(
    number: int = 0, before: tuple[int, ...] = (0, 1), after: tuple[int, ...] = (2, 1), size: int = 1
) -> PlannedMove:
    return PlannedMove("orders", "t1", number, before, after, bytes=size)


@dataclass
class Cluster:
    """Partitions that are reassigned and led as Kafka would; completion is up to the test."""

    partitions: dict[TopicPartition, PartitionState]
    alive: frozenset[int] = ALIVE
    health: Health = field(default_factory=Health)
    memory: Memory = field(default_factory=Memory)
    budget: Budget = field(default_factory=Budget)
    now: float = 1000.0
    starts: Counter[TopicPartition] = field(default_factory=Counter)
    external: frozenset[TopicPartition] = frozenset()
    unfit: dict[TopicPartition, str] = field(default_factory=dict)
    hold: str = ""

    @classmethod
    def before(cls, *moves: PlannedMove) -> Cluster:
        return cls(
            {
                (m.topic, m.partition): PartitionState("t1", m.before, m.before, m.before[0], m.bytes)
                for m in moves
            }
        )

    def seen(self) -> Observation:
        moving = frozenset({key for key, each in self.partitions.items() if each.reassigning} | self.external)
        return Observation(self.partitions, self.alive, moving, self.health, self.unfit, self.hold)

    def round(self, *works: Work, seconds: float = 1.0) -> Round:
        self.now += seconds
        decided = decide(works, self.seen(), self.budget, self.memory, self.now)
        self.memory = decided.memory
        for one in decided.start:
            self.starts[one.topic, one.partition] += 1
            self.reassign((one.topic, one.partition), one.after)
        for key, replicas in decided.cancel.items():
            self.cancel(key, replicas)
        for key in decided.elect:
            each = self.partitions[key]
            if each.replicas[0] in each.isr:
                self.partitions[key] = replace(each, leader=each.replicas[0])
        return decided

    def reassign(self, key: TopicPartition, after: tuple[int, ...]) -> None:
        each = self.partitions[key]
        adding = tuple(b for b in after if b not in each.replicas)
        removing = tuple(b for b in each.replicas if b not in after)
        if not adding:
            self.partitions[key] = replace(each, replicas=after, isr=tuple(b for b in after if b in each.isr))
            return
        self.partitions[key] = replace(
            each, replicas=(*after, *removing), adding=adding, removing=removing, reassigning=True
        )

    def cancel(self, key: TopicPartition, replicas: tuple[int, ...] | None = None) -> None:
        """Without replicas, as Kafka does it: those that were to leave come last then."""
        each = self.partitions[key]
        old = replicas or tuple(b for b in each.replicas if b not in each.adding)
        self.partitions[key] = PartitionState("t1", old, old, each.leader, each.size_bytes)

    def complete(self, key: TopicPartition) -> None:
        each = self.partitions[key]
        leader = each.leader if each.leader in each.target else each.target[0]
        self.partitions[key] = PartitionState("t1", each.target, each.target, leader, each.size_bytes)

    def complete_all(self) -> None:
        for key, each in self.partitions.items():
            if each.reassigning:
                self.complete(key)


def statuses(decided: Round) -> list[Status]:
    return [each.status for each in decided.standings[0]]


def test_a_move_is_started_copied_and_done() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())

    assert cluster.round(work).start == (move(),)
    assert statuses(cluster.round(work)) == [Status.COPYING]
    cluster.complete_all()
    last = cluster.round(work)

    assert statuses(last) == [Status.DONE]
    assert last.done


def test_leadership_moves_without_copying_and_needs_an_election() -> None:
    work = Work([move(after=(1, 0))])
    cluster = Cluster.before(*work.moves)

    cluster.round(work)
    second = cluster.round(work)

    assert statuses(second) == [Status.PLACED]
    assert second.elect == (("orders", 0),)
    assert cluster.round(work).done


def test_no_leader_is_elected_that_is_not_in_sync() -> None:
    work = Work([move(before=(0, 1), after=(0, 1))])
    cluster = Cluster.before(*work.moves)
    cluster.partitions["orders", 0] = replace(cluster.partitions["orders", 0], leader=1, isr=(1,))

    assert not cluster.round(work).elect


def test_a_replica_that_lacks_the_beginning_of_the_log_is_not_elected_and_the_move_is_dropped() -> None:
    work = Work([move(0, after=(1, 0)), move(1, after=(1, 0))])
    cluster = Cluster.before(*work.moves)
    cluster.unfit = {("orders", 0): "broker 1 lacks offsets 0 to 99"}
    cluster.round(work)

    second = cluster.round(work)
    third = cluster.round(work)

    assert second.elect == (("orders", 1),)
    assert third.standings[0][0] == Standing(Status.DROPPED, "broker 1 lacks offsets 0 to 99")
    assert third.done


def test_a_tenant_move_waits_for_a_replica_that_may_lead() -> None:
    work = Work([move(after=(1, 0))], persistent=True)
    cluster = Cluster.before(*work.moves)
    cluster.unfit = {("orders", 0): "broker 1 lacks offsets 0 to 99"}
    for _ in range(3):
        assert not cluster.round(work).elect

    cluster.unfit = {}

    assert cluster.round(work).elect == (("orders", 0),)


def test_a_demoted_broker_is_not_elected() -> None:
    moves = [move(before=(0, 1), after=(0, 1))]
    cluster = Cluster.before(*moves)
    cluster.partitions["orders", 0] = replace(cluster.partitions["orders", 0], leader=1)

    decided = cluster.round(Work(moves, demoted=frozenset({0})))

    assert decided.done
    assert not decided.elect


def test_a_deleted_topic_is_dropped_once_it_stays_away() -> None:
    work = Work([move()])
    cluster = Cluster({})

    assert statuses(cluster.round(work)) == [Status.COPYING]  # a broker that just started knows no topic
    last = cluster.round(work, seconds=SETTLE_SECONDS)

    assert last.standings[0] == (Standing(Status.DROPPED, "orders-0 does not exist any more"),)


def test_a_topic_created_again_is_dropped() -> None:
    work = Work([replace(move(), topic_id="t0")])
    cluster = Cluster.before(move())

    cluster.round(work)
    last = cluster.round(work, seconds=SETTLE_SECONDS)

    assert statuses(last) == [Status.DROPPED]
    assert "created again" in last.standings[0][0].reason
    assert not cluster.starts


def test_a_partition_that_others_moved_is_dropped() -> None:
    work = Work([move()])
    cluster = Cluster.before(move(before=(5, 6)))

    cluster.round(work)
    last = cluster.round(work, seconds=SETTLE_SECONDS)

    assert last.standings[0] == (Standing(Status.DROPPED, "orders-0 has replicas [5, 6], not [0, 1]"),)
    assert not cluster.starts


def test_a_broker_that_lags_behind_the_controller_drops_nothing() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.round(work)
    cluster.partitions["orders", 0] = PartitionState("t1", (2, 1, 0), (0, 1, 2), 0)  # no longer listed

    assert statuses(cluster.round(work)) == [Status.COPYING]
    cluster.partitions["orders", 0] = PartitionState("t1", (2, 1), (1, 2), 2)
    assert cluster.round(work).done


def test_a_reassignment_that_an_operator_cancelled_is_not_started_again() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.round(work)
    cluster.cancel(("orders", 0), (0, 1))

    cluster.round(work)
    last = cluster.round(work, seconds=SETTLE_SECONDS)

    assert statuses(last) == [Status.DROPPED]
    assert cluster.starts == {("orders", 0): 1}


def test_a_move_to_a_broker_that_died_is_cancelled_and_dropped() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.round(work)
    cluster.alive -= {2}

    assert not cluster.round(work).cancel  # it may be restarting
    assert cluster.round(work, seconds=DEAD_SECONDS).cancel == {("orders", 0): None}
    assert cluster.partitions["orders", 0].replicas == (1, 0)  # as Kafka leaves them
    cluster.memory = Memory(absent=cluster.memory.absent)  # the process dies
    assert cluster.round(work).cancel == {("orders", 0): (0, 1)}
    last = cluster.round(work)

    assert last.standings[0] == (Standing(Status.DROPPED, "broker 2 is down"),)


def test_a_restarting_destination_is_waited_for() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.alive -= {2}

    assert statuses(cluster.round(work)) == [Status.WAITING]
    cluster.alive |= {2}

    assert cluster.round(work).start == (move(),)


def test_a_tenants_move_to_a_dead_broker_is_cancelled_and_waits_for_it() -> None:
    work = Work([move()], persistent=True, needs=(2, 1))
    cluster = Cluster.before(move())
    cluster.round(work)
    cluster.alive -= {2}
    cluster.round(work)
    cluster.round(work, seconds=DEAD_SECONDS)

    waiting = cluster.round(work)
    cluster.round(work, seconds=SETTLE_SECONDS)
    cluster.alive |= {2}
    cluster.round(work)
    cluster.complete_all()

    assert not waiting.done
    assert cluster.round(work).done
    assert cluster.starts == {("orders", 0): 2}


def test_a_dead_source_does_not_keep_a_move_from_starting() -> None:
    cluster = Cluster.before(move())
    cluster.alive -= {0}

    assert cluster.round(Work([move()])).start == (move(),)


def test_reassignments_of_other_clients_are_reported_and_awaited() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.external = frozenset({("theirs", 3)})

    waiting = cluster.round(work)
    cluster.external = frozenset()

    assert waiting.external == (("theirs", 3),)
    assert "theirs-3" in waiting.waiting
    assert not waiting.start
    assert cluster.round(work).start == (move(),)


def test_a_partition_that_another_client_moves_is_taken_over_on_request() -> None:
    cluster = Cluster.before(move())
    cluster.reassign(("orders", 0), (6, 1))

    assert not cluster.round(Work([move()])).start
    assert cluster.round(Work([move()], take_over=True)).start == (move(),)


def test_work_that_stops_cancels_what_is_copied_and_drops_the_rest() -> None:
    moves = [move(n) for n in range(3)]
    cluster = Cluster.before(*moves)
    cluster.budget = Budget(broker_partitions_max=2)
    cluster.round(Work(moves))
    cluster.complete(("orders", 0))

    assert cluster.round(Work(moves, stopping=True)).cancel == {("orders", 1): None}
    assert cluster.round(Work(moves, stopping=True)).cancel == {("orders", 1): (0, 1)}
    last = cluster.round(Work(moves, stopping=True))

    assert statuses(last) == [Status.DONE, Status.DROPPED, Status.DROPPED]


def test_work_that_stops_ends_whatever_other_clients_and_brokers_do() -> None:
    theirs, placed = move(), move(1, after=(1, 0))
    cluster = Cluster.before(theirs, placed)
    cluster.round(Work([placed]))
    cluster.reassign(("orders", 0), (6, 1))  # by another client, and it never ends
    cluster.partitions["orders", 1] = replace(cluster.partitions["orders", 1], isr=(0,))  # cannot lead

    last = cluster.round(Work([theirs, placed], stopping=True))

    assert statuses(last) == [Status.DROPPED, Status.DONE]
    assert "another client" in last.standings[0][0].reason


def test_during_a_roll_no_copy_starts_and_leadership_moves() -> None:
    copied, handed = move(), move(1, after=(1, 0))
    cluster = Cluster.before(copied, handed)
    cluster.hold = "a roll is under way"

    held = cluster.round(Work([copied, handed]))
    cluster.round(Work([copied, handed]))
    cluster.hold = ""

    assert held.start == (handed,)
    assert cluster.partitions["orders", 1].leader == 1
    assert cluster.round(Work([copied, handed])).start == (copied,)


def test_a_broker_that_restarts_slowly_during_a_roll_is_not_dead() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.round(work)
    cluster.hold, cluster.alive = "a roll is under way", cluster.alive - {2}
    cluster.round(work)

    later = cluster.round(work, seconds=2 * DEAD_SECONDS)

    assert not later.cancel
    assert statuses(later) == [Status.COPYING]


def test_undoing_restores_every_partition() -> None:
    moves = [move(n) for n in range(3)]
    cluster = Cluster.before(*moves)
    cluster.budget = Budget(broker_partitions_max=2)
    cluster.round(Work(moves))
    cluster.complete(("orders", 0))
    undo = Work([each.reversed for each in moves], undoing=True)

    for _ in range(5):
        last = cluster.round(undo)
        cluster.complete_all()

    assert last.done
    assert {each.replicas for each in cluster.partitions.values()} == {(0, 1)}


def test_two_plans_never_move_the_same_partition_at_once() -> None:
    first, second = Work([move()]), Work([move(after=(3, 1))])
    cluster = Cluster.before(move())

    decided = cluster.round(first, second)

    assert decided.start == (move(),)
    assert decided.standings[1][0].status is Status.WAITING


def test_batches_alternate_over_the_brokers_that_send() -> None:
    moves = [move(n, (n // 10, 7), (6, 7)) for n in range(40)]
    cluster = Cluster.before(*moves)
    cluster.budget = Budget(broker_partitions_max=8)

    started = cluster.round(Work(moves)).start

    assert Counter(each.before[0] for each in started) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_nothing_starts_below_the_minimum_of_in_sync_replicas_but_repairs() -> None:
    healthy, repair = move(0), move(1, before=(5, 1), after=(2, 1))
    cluster = Cluster.before(healthy, repair)
    cluster.alive -= {5}
    cluster.health = Health(under_min_isr=(("theirs", 1),))

    decided = cluster.round(Work([healthy, repair]))

    assert decided.start == (repair,)
    assert "theirs-1" in cluster.round(Work([healthy, repair])).waiting


def test_the_pace_halves_under_pressure_and_recovers_step_by_step() -> None:
    work = Work([move()])
    cluster = Cluster.before(move())
    cluster.health = Health(slow="broker 1 is under pressure")
    shares = [cluster.round(work, seconds=PACE_SECONDS).memory.share for _ in range(6)]
    cluster.health = Health()
    later = [cluster.round(work, seconds=PACE_SECONDS).memory.share for _ in range(12)]

    assert shares == [1 / 2, 1 / 4, 1 / 8, 1 / 16, SHARE_MIN, SHARE_MIN]
    assert later == sorted(later)
    assert later[0] < 0.2
    assert later[-1] == 1.0
    assert cluster.round(work, seconds=1.0).memory.paced == cluster.now - 1.0  # no change in between


def test_a_slower_pace_has_fewer_partitions_in_flight() -> None:
    moves = [move(n) for n in range(20)]
    cluster = Cluster.before(*moves)
    cluster.budget = Budget(broker_partitions_max=16)
    cluster.memory = Memory(share=0.25, paced=cluster.now)

    assert len(cluster.round(Work(moves)).start) == 4


def test_leaders_and_starts_are_limited_by_the_second() -> None:
    moves = [move(n, after=(1, 0)) for n in range(100)]
    cluster = Cluster.before(*moves)
    cluster.budget = Budget(starts_per_second=30, leader_changes_per_second=5)
    work = Work(moves)

    assert len(cluster.round(work).start) == 30
    second = cluster.round(work)

    assert len(second.start) == 30
    assert len(second.elect) == 5


def test_leadership_leaves_a_sick_broker_while_a_partition_is_below_its_minimum() -> None:
    demotion = move(0, before=(0, 1), after=(1, 0))
    cluster = Cluster.before(demotion)
    cluster.health = Health(under_min_isr=(("theirs", 1),))

    assert cluster.round(Work([demotion])).start == (demotion,)


def test_one_call_makes_the_controller_write_a_bounded_number_of_records() -> None:
    moves = [move(n, after=(1, 0)) for n in range(100)]
    cluster = Cluster.before(*moves)
    cluster.budget = Budget(starts_per_second=1e6, leader_changes_per_second=1e6, records_max=40)

    assert len(cluster.round(Work(moves)).start) == 40


def test_health_leaves_out_moves_dead_brokers_and_impossible_minimums() -> None:
    fine = PartitionState("t", (0, 1, 2), (0, 1, 2), 0)
    partitions = {
        ("moving", 0): replace(fine, isr=(0,), reassigning=True),
        ("dead", 0): replace(fine, isr=(0, 1)),
        ("lagging", 0): replace(fine, isr=(0, 2)),
        ("under", 0): replace(fine, isr=(0,)),
        ("impossible", 0): replace(fine, replicas=(0,), isr=()),
    }
    least = {"dead": 1, "lagging": 2, "under": 2, "impossible": 2}

    health = health_of(partitions, frozenset({0, 1}), least)

    assert health == Health(under_min_isr=(("under", 0),), at_min_isr=1, lagging=2)


moves_of_plans = st.lists(
    st.tuples(st.permutations(range(6)), st.permutations(range(6)), st.integers(1, 3), st.integers(0, 100)),
    min_size=1,
    max_size=8,
).map(
    lambda rows: [
        move(n, tuple(before[:factor]), tuple(after[:factor]), size)
        for n, (before, after, factor, size) in enumerate(rows)
    ]
)
budgets = st.builds(
    Budget,
    broker_partitions_max=st.integers(1, 6),
    broker_bytes_max=st.integers(50, 300),
    starts_per_second=st.integers(1, 10).map(float),
    leader_changes_per_second=st.integers(1, 10).map(float),
)


def _check_budget(cluster: Cluster) -> None:
    counts, sizes = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for each in cluster.partitions.values():
        if not each.reassigning:
            continue
        flows = [(("in", b), each.size_bytes) for b in each.adding]
        flows.append((("out", each.leader or 0), each.size_bytes * len(each.adding)))
        for flow, size in flows:
            counts[flow] += 1
            sizes[flow] += size
    for flow, count in counts.items():
        assert count <= cluster.budget.broker_partitions_max
        assert count == 1 or sizes[flow] <= cluster.budget.broker_bytes_max


@given(
    moves=moves_of_plans,
    budget=budgets,
    replaced=st.lists(st.booleans(), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_a_plan_completes_within_the_budget_and_moves_no_partition_twice(
    moves: list[PlannedMove], budget: Budget, replaced: list[bool], order: Random
) -> None:
    """Also if the process is replaced at any time, and loses what it remembered."""
    cluster = Cluster.before(*moves)
    cluster.budget = budget
    work = Work(moves)
    for _ in range(40 * len(moves) + 100):
        if replaced and replaced.pop():
            cluster.memory = Memory()
        decided = cluster.round(work)
        assert len(decided.start) <= budget.starts_per_second
        assert len(decided.elect) <= budget.leader_changes_per_second
        _check_budget(cluster)
        if decided.done:
            break
        copying = sorted(key for key, each in cluster.partitions.items() if each.reassigning)
        if copying:
            for key in copying[: order.randint(1, len(copying))]:
                cluster.complete(key)

    assert set(statuses(decided)) == {Status.DONE}
    assert max(cluster.starts.values(), default=1) == 1
    for each in moves:
        state = cluster.partitions[each.topic, each.partition]
        assert (state.replicas, state.leader) == (each.after, each.after[0])


def _kill(cluster: Cluster) -> None:
    cluster.alive -= {3}


def _pressure(cluster: Cluster) -> None:
    cluster.health = Health(slow="pressure")


def _recreate(cluster: Cluster) -> None:
    key = min(cluster.partitions)
    cluster.partitions[key] = replace(cluster.partitions[key], topic_id="t2")


def _nothing(cluster: Cluster) -> None:
    del cluster


@given(
    moves=moves_of_plans,
    budget=budgets,
    events=st.lists(st.sampled_from([_kill, _pressure, _recreate, _nothing]), max_size=5),
)
def test_whatever_interferes_a_plan_ends_and_moves_no_partition_twice(
    moves: list[PlannedMove], budget: Budget, events: list[Callable[[Cluster], None]]
) -> None:
    cluster = Cluster.before(*moves)
    cluster.budget = budget
    for _ in range(40 * len(moves) + 200):
        decided = cluster.round(Work(moves), seconds=5.0)
        _check_budget(cluster)
        if decided.done:
            break
        if events:
            events.pop()(cluster)
        for key, each in list(cluster.partitions.items()):
            if each.reassigning and set(each.adding) <= cluster.alive:
                cluster.complete(key)

    assert decided.done
    assert max(cluster.starts.values(), default=1) == 1
