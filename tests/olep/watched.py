"""A bank and views of it in memory, in which dice choose every interleaving."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from examples.payments.bank import FINAL, Bank
from examples.payments.views import BALANCES, CACHED_BALANCES, STATEMENTS
from penstock.olep.placing import partition_of
from penstock.olep.position import Position
from penstock.olep.table import Put, Table
from penstock.olep.view.cut import Causes
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.memory import MemoryViews
from penstock.olep.view.projection import Projection
from tests.olep.world import CODEC, TOPIC_ID, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.application import State
    from penstock.olep.event import Event
    from penstock.olep.table import Effect
    from tests.olep.world import Lane

PARTITIONS = 3
ACCOUNTS = [f"account-{n}" for n in range(6)]
DEPOSIT, OVERDRAFT = 100, 20
LONG = 3600.0


class Half(NamedTuple):
    account: str
    cents: int


HALVES = Table("halves", Half)


def _each_side_from_its_own_event(state: State, event: Event) -> Iterator[Effect]:
    """What a view must not do: the debit from one event, the credit from another."""
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


class Watched:
    """A view that follows a world at its own pace."""

    def __init__(self, world: World, projection: Projection) -> None:
        self.world, self.projection = world, projection
        self.store = MemoryViews(LONG).open(projection, TOPIC_ID, PARTITIONS, generation=1)
        self.at = self.store.claim()
        self.folds = [ViewFold(projection, CODEC, self.store, p) for p in range(PARTITIONS)]

    def step(self, partition: int, count: int) -> None:
        records = self.world.records[partition][self.at[partition] : self.at[partition] + count]
        stretch = self.folds[partition].take(records, self.at[partition])
        self.store.commit([stretch])
        self.folds[partition].settle()
        self.at[partition] = stretch.position

    def balances(self, cut: Position | None = None, table: Table[Any] = BALANCES) -> dict[str, int]:
        with self.store.reading(cut) as reader:
            found: dict[str, int] = {}
            for _, (account, cents) in reader.rows(table):
                found[account] = found.get(account, 0) + cents
            return found


class Ground:
    """A bank, views of it, and the follower that finds cuts, moved by dice."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(Bank(fee=1, overdrawn_fee=2).application(), PARTITIONS)
        self.statements, self.cache = Watched(self.world, STATEMENTS), Watched(self.world, CACHED_BALANCES)
        self.halves = Watched(self.world, HALF_VIEW)
        self.causes = Causes(TOPIC_ID, FINAL, patience=float("inf"))
        self.seen = [0] * PARTITIONS
        self.number = 0
        terms = {"deposit": DEPOSIT, "overdraft": OVERDRAFT, "ceiling": 10 * DEPOSIT}
        for account in ACCOUNTS:
            self.world.ask(f"open-{account}", "account.open", account, terms)
        self.world.settle()

    def step(self) -> None:
        dice = self.dice
        match dice.randrange(5):
            case 0:
                self.number += 1
                source, to = dice.sample(ACCOUNTS, 2)
                kind = dice.choice(["payment.requested", "payment.requested", "payment.offered"])
                self.world.ask(
                    f"r{self.number}", kind, source, {"to": to, "amount": dice.randint(60, DEPOSIT)}
                )
            case 1:
                self.world.lanes[dice.randrange(PARTITIONS)].step(dice.randint(1, 3))
            case 2:
                lane = self.world.lanes[dice.randrange(PARTITIONS)]
                # Events of one decision reach their partitions in any order: the sender's order
                # holds within a partition only.
                self._send_shuffled(lane)
            case _:
                view = dice.choice([self.statements, self.cache, self.halves])
                view.step(dice.randrange(PARTITIONS), dice.randint(1, 4))

    def _send_shuffled(self, lane: Lane) -> None:
        count = self.dice.randint(1, 4)
        taken = lane.to_send[:count]
        by_partition: dict[int, list[Any]] = {}
        for each in taken:
            by_partition.setdefault(partition_of(each[1].key, PARTITIONS), []).append(each)
        groups = [*by_partition.values()]
        self.dice.shuffle(groups)
        lane.to_send[:count] = [each for group in groups for each in group]
        lane.send(count)

    def limit(self) -> dict[int, int]:
        return {p: min(self.statements.at[p], self.cache.at[p]) for p in range(PARTITIONS)}

    def cut(self) -> Position:
        for partition, records in enumerate(self.world.records):
            for record in records[self.seen[partition] :]:
                assert record.value is not None
                event = CODEC.decode(record.value, (record.key or b"").decode(), partition, record.offset)
                self.causes.see(event, 0.0)
            self.seen[partition] = len(records)
        return Position({TOPIC_ID: self.causes.greatest(self.limit(), 0.0)})
