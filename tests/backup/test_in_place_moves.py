"""The moves of a restore in place, on a model of Kafka with brokers that die."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from penstock.backup.in_place.moves import (
    Done,
    Elect,
    Follow,
    Observation,
    Place,
    Wait,
    next_move,
    real_of,
)
from penstock.model.shadow_ids import SHADOW_IDS, is_shadow

if TYPE_CHECKING:
    from penstock.backup.in_place.moves import Move

S = SHADOW_IDS[0]
CUT = 600
STEPS_MAX = 400
SEEDS = 100


@dataclass
class Cluster:
    """Kafka, as far as moves depend on it. A log is its start."""

    original: tuple[int, ...]
    brokers: tuple[int, ...]
    needed: int = 2
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1
    adding: frozenset[int] = frozenset()
    dead: set[int] = field(default_factory=set)
    starts: dict[int, int] = field(default_factory=dict)
    dropped: int = 0
    led: int = 0

    def __post_init__(self) -> None:
        self.replicas = self.isr = self.original
        self.leader = self.original[0]
        self.starts = dict.fromkeys(self.original, CUT)

    @property
    def in_sync(self) -> tuple[int, ...]:
        return real_of(self.isr)

    def observe(self) -> Observation:
        live = frozenset(self.brokers) - self.dead
        starts = {one: start for one, start in self.starts.items() if one in live}
        return Observation(
            self.original, 0, self.needed, S, self.replicas, self.isr, self.leader,
            self.adding, frozenset(), live, starts,
        )  # fmt: skip

    def apply(self, move: Move) -> None:
        match move:
            case Place(target):
                self._place(target)
            case Elect(leader):
                assert self.replicas[0] == leader
                assert leader in self.isr
                self._elect(leader)
            case Follow():
                assert self.leader not in (S, -1)
                self.isr = tuple(one for one in self.replicas if one in {*self.isr, S})
                self.adding -= {S}

    def _place(self, target: tuple[int, ...]) -> None:
        new = set(target) - set(self.replicas)
        removed = set(self.replicas) - set(target)
        assert not new or not removed, "a reassignment that adds and removes takes long"
        assert len(new) <= 1
        left = set(real_of(self.isr)) & set(target)
        kept = len(left) >= self.needed or len(left) == len(self.in_sync)
        assert kept or target == self.original, "too few replicas in sync"
        self.replicas = target
        self.adding = frozenset((set(self.adding) | new) & set(target))
        self.isr = tuple(one for one in target if one in self.isr)
        for one in removed - {S}:
            self.dropped += 1
            del self.starts[one]
        for one in new - {S}:
            assert one not in self.starts, "a broker keeps a log that it has"
            self.starts[one] = 0
        if self.leader not in self.isr:
            self._elect(next((one for one in self.replicas if one in self.isr), -1))

    def _elect(self, leader: int) -> None:
        self.leader = leader
        self.led += leader == S

    def tick(self) -> None:
        """Followers catch up."""
        if self.leader < 0:
            self._elect(next((one for one in self.replicas if one in self.isr and one not in self.dead), -1))
        if self.leader < 0:
            return
        for one in real_of(self.replicas):
            if one in self.dead:
                continue
            if one in self.adding:
                self.starts[one] = 0 if self.leader == S else self.starts[self.leader]
            elif self.leader != S:
                self.starts[one] = max(self.starts[one], self.starts[self.leader])
            self.isr = tuple(r for r in self.replicas if r in {*self.isr, one})
            self.adding -= {one}

    def kill(self, broker: int) -> None:
        """The shadow comes back at once, unclean."""
        if broker != S:
            self.dead.add(broker)
        left = tuple(one for one in self.isr if one != broker)
        if left:
            self.isr = left
        if self.leader == broker:
            self._elect(next((one for one in self.replicas if one in left and one not in self.dead), -1))

    def check(self) -> None:
        assert self.replicas == self.original
        assert not any(map(is_shadow, self.replicas))
        assert self.starts == dict.fromkeys(self.original, 0)
        assert self.leader == self.original[0]


def run(cluster: Cluster, chance: random.Random | None = None, *, undo: bool = False) -> list[Move]:
    moves: list[Move] = []
    for step in range(STEPS_MAX):
        if chance is not None and step < STEPS_MAX // 2 and chance.random() < 0.08:
            cluster.kill(chance.choice([*cluster.brokers, S]))
        if cluster.dead and (chance is None or chance.random() < 0.3 or step > STEPS_MAX // 2):
            cluster.dead.clear()
        move = next_move(cluster.observe(), undo=undo)
        moves.append(move)
        if isinstance(move, Done):
            return moves
        cluster.apply(move)
        if chance is None or chance.random() < 0.5:
            cluster.tick()
    raise AssertionError(f"no end: {moves[-5:]}, {cluster}")


@pytest.mark.parametrize(
    ("original", "brokers", "needed"),
    [
        ((1, 2, 3), (1, 2, 3), 2),
        ((2, 3, 1), (1, 2, 3), 2),
        ((1, 2), (1, 2, 3), 2),
        ((3,), (1, 2, 3), 2),
        ((1, 2, 3), (1, 2, 3, 4, 5), 2),
        ((1, 2, 3), (1, 2, 3, 4), 3),
    ],
)
def test_every_replica_gets_its_prefix_and_the_partition_is_as_it_was(
    original: tuple[int, ...], brokers: tuple[int, ...], needed: int
) -> None:
    cluster = Cluster(original, brokers, needed)
    run(cluster)
    cluster.check()
    assert cluster.led == 1


def test_producers_wait_for_one_replica_only() -> None:
    cluster = Cluster((1, 2, 3), (1, 2, 3))
    moves = run(cluster)
    elected = moves.index(Elect(S))
    rest = [move for move in moves[elected:] if isinstance(move, Place)]
    assert rest[:3] == [Place((S, 1, 2), dropped=3), Place((S, 1, 2, 3)), Place((3, 1, 2))]


def test_a_free_broker_is_used_before_a_replica_is_dropped() -> None:
    cluster = Cluster((1, 2, 3), (1, 2, 3, 4))
    moves = run(cluster)
    elected = moves.index(Elect(S))
    assert next(move for move in moves[elected:] if isinstance(move, Place)) == Place((S, 1, 2, 3, 4))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_brokers_and_shadows_may_die_at_any_time(seed: int) -> None:
    chance = random.Random(seed)
    brokers = tuple(range(1, chance.choice((4, 5, 6))))
    original = tuple(chance.sample(brokers, chance.choice((1, 2, 3))))
    cluster = Cluster(original, brokers)
    run(cluster, chance)
    cluster.check()


@pytest.mark.parametrize("seed", range(50))
def test_a_restore_that_gives_up_leaves_the_partition_as_it_was(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster((1, 2, 3), (1, 2, 3))
    for _ in range(chance.randrange(12)):
        cluster.apply(next_move(cluster.observe()))
        cluster.tick()
    run(cluster, chance, undo=True)
    assert (cluster.replicas, cluster.leader, S in cluster.isr) == ((1, 2, 3), 1, False)


def test_a_shadow_beside_too_few_replicas_is_removed() -> None:
    """It would count for min.insync.replicas, and stores nothing."""
    cluster = Cluster((1, 2, 3), (1, 2, 3))
    cluster.replicas, cluster.isr = (1, 2, 3, S), (1, S)
    assert next_move(cluster.observe()) == Place((1, 2, 3))


def test_a_broker_that_still_has_the_old_log_is_not_added() -> None:
    cluster = Cluster((1, 2, 3), (1, 2, 3))
    cluster.replicas, cluster.isr, cluster.leader = (S, 1, 2), (S, 1, 2), S
    assert next_move(cluster.observe()) == Wait("brokers 3 delete the old log")
