"""A bank and its views in memory, with random interleavings from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from examples.payments.bank import FINAL, Bank
from examples.payments.views import CACHED_BALANCES, STATEMENTS
from penstock.olep.partitioner import partition_of
from penstock.olep.position import Position
from penstock.olep.table import Put, Table
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.projection import Projection
from penstock.olep.view.snapshot_position import CausalityTracker
from penstock.olep.view.stores.memory import MemoryViews
from tests.olep.memory_cluster import CODEC, TOPIC_ID, MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.application import State
    from penstock.olep.event import Event
    from penstock.olep.table import Effect
    from tests.olep.memory_cluster import MemoryTask

PARTITIONS = 3
ACCOUNTS = [f"account-{n}" for n in range(6)]
DEPOSIT, OVERDRAFT = 100, 20
LONG = 3600.0


class Half(NamedTuple):
    account: str
    cents: int


HALVES = Table("halves", Half)


def _each_side_from_its_own_event(state: State, event: Event) -> Iterator[Effect]:
    """What a view must not do: make the debit from one event and the credit from another."""
    payload = event.payload
    moved = {
        "account.opened": payload.get("deposit", 0),
        "payment.outgoing": -payload.get("amount", 0) - payload.get("fee", 0),
        "payment.incoming": payload.get("amount", 0),
        "fee.incoming": payload.get("amount", 0),
    }[event.type]
    before = state.get(HALVES, event.key)
    yield Put(HALVES, Half(event.key, moved + (before.cents if before else 0)))


HALF_VIEW = Projection(
    "halves",
    _each_side_from_its_own_event,
    (HALVES,),
    {"account.opened": 1, "payment.outgoing": 1, "payment.incoming": 1, "fee.incoming": 1},
)


class FollowingView:
    """A view that follows a cluster independently."""

    def __init__(self, cluster: MemoryCluster, projection: Projection) -> None:
        self.cluster, self.projection = cluster, projection
        self.store = MemoryViews(LONG).open(projection, TOPIC_ID, PARTITIONS, generation=1)
        self.at = self.store.claim()
        self.folds = [ViewFold(projection, CODEC, self.store, p) for p in range(PARTITIONS)]

    def step(self, partition: int, count: int) -> None:
        records = self.cluster.records[partition][self.at[partition] : self.at[partition] + count]
        batch = self.folds[partition].process(records, self.at[partition])
        self.store.commit([batch])
        self.folds[partition].committed()
        self.at[partition] = batch.position

    def balances(self, as_of: Position | None = None) -> dict[str, int]:
        with self.store.reading(as_of) as reader:
            balances: dict[str, int] = {}
            for _, (account, cents, *_rest) in reader.rows(self.projection.tables[0]):
                balances[account] = balances.get(account, 0) + cents
            return balances


class BankSimulation:
    """A bank, its views, and the tracker of consistent positions, advanced at random."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = MemoryCluster(Bank(fee=1, overdrawn_fee=2).application(), PARTITIONS)
        self.statements, self.cache = (
            FollowingView(self.cluster, STATEMENTS),
            FollowingView(self.cluster, CACHED_BALANCES),
        )
        self.halves = FollowingView(self.cluster, HALF_VIEW)
        self.causes = CausalityTracker(TOPIC_ID, FINAL, patience=float("inf"))
        self.seen = [0] * PARTITIONS
        self.number = 0
        terms = {"deposit": DEPOSIT, "overdraft": OVERDRAFT, "ceiling": 10 * DEPOSIT}
        for account in ACCOUNTS:
            self.cluster.request(f"open-{account}", "account.open", account, terms)
        self.cluster.settle()

    def step(self) -> None:
        dice = self.dice
        match dice.randrange(5):
            case 0:
                self.number += 1
                source, to = dice.sample(ACCOUNTS, 2)
                kind = dice.choice(["payment.requested", "payment.requested", "payment.offered"])
                self.cluster.request(
                    f"r{self.number}", kind, source, {"to": to, "amount": dice.randint(60, DEPOSIT)}
                )
            case 1:
                self.cluster.tasks[dice.randrange(PARTITIONS)].step(dice.randint(1, 3))
            case 2:
                task = self.cluster.tasks[dice.randrange(PARTITIONS)]
                # The sender's order holds within a partition only, so events of one decision reach their
                # partitions in any order.
                self._send_shuffled(task)
            case _:
                view = dice.choice([self.statements, self.cache, self.halves])
                view.step(dice.randrange(PARTITIONS), dice.randint(1, 4))

    def _send_shuffled(self, task: MemoryTask) -> None:
        count = self.dice.randint(1, 4)
        taken = task.to_send[:count]
        by_partition: dict[int, list[Any]] = {}
        for each in taken:
            by_partition.setdefault(partition_of(each[1].key, PARTITIONS), []).append(each)
        groups = [*by_partition.values()]
        self.dice.shuffle(groups)
        task.to_send[:count] = [each for group in groups for each in group]
        task.send(count)

    def limit(self) -> dict[int, int]:
        return {p: min(self.statements.at[p], self.cache.at[p]) for p in range(PARTITIONS)}

    def consistent_position(self) -> Position:
        for partition, records in enumerate(self.cluster.records):
            for record in records[self.seen[partition] :]:
                assert record.value is not None
                event = CODEC.decode(record.value, (record.key or b"").decode(), partition, record.offset)
                self.causes.observe(event, 0.0)
            self.seen[partition] = len(records)
        return Position({TOPIC_ID: self.causes.greatest_consistent(self.limit(), 0.0)})
