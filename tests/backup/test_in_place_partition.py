"""What a restore in place does when it may not continue, and where the log that it serves ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.audit import intents
from penstock.backup.in_place import partition as in_place_partition
from penstock.backup.in_place import restorer as in_place
from penstock.backup.in_place.moves import Done, Observation, Place, next_move
from penstock.backup.in_place.partition import InPlacePartitionRun, Yielded
from penstock.backup.in_place.plan import InPlacePartition, InPlacePlan, InPlaceRequest
from penstock.backup.in_place.proof import InPlaceProof
from penstock.backup.in_place.restorer import InPlaceRestorer
from penstock.backup.restore_store import RestoreStore
from penstock.backup.restorer import Restorer
from penstock.kafka.admin import reassignments, transactions
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionState
from penstock.model.durability import Intent
from penstock.model.errors.backup import InPlaceUnproven, RestoreRunning, RestoreYielded
from penstock.model.errors.wire import ProducerFenced
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.responses import Timestamp
from tests.tier.segments import CLUSTER, TOPIC_ID

S = SHADOW_IDS[0]
NOTHING: Any = None
PLACE = TopicPartition("orders", 0)
STATE = PartitionState((S, 1, 2, 3), (S, 1, 2, 3), S, 5, 9)
PLAN = InPlacePlan(
    InPlaceRequest("orders", TOPIC_ID), 2, (InPlacePartition(0, 0, 600, 1000, 0.1, (1, 2, 3)),)
)


async def recorded(_: object) -> None:
    return None


def partition_run(ends: dict[int, int], starts: dict[int, int] | None = None) -> InPlacePartitionRun:
    async def end_on(replica: int, *_: object, timestamp: int = Timestamp.LATEST) -> int | None:
        return (ends if timestamp == Timestamp.LATEST else starts or dict.fromkeys(ends, 600)).get(replica)

    one = InPlacePartitionRun(
        client=NOTHING, shadow=NOTHING, archive=NOTHING, topic_id=TOPIC_ID, place=PLACE, start=0,
        original=(1, 2, 3), needed=2, pause_seconds=60, reached=recorded, truncates=recorded,
    )  # fmt: skip
    image = SimpleNamespace(partitions={one.key: STATE})
    shadow: Any = SimpleNamespace(id=S, end_on=end_on, image=image, led=lambda _: None)
    one.shadow = shadow
    return one


async def test_the_served_log_ends_where_every_real_in_sync_replica_has_it() -> None:
    one = partition_run({1: 70, 2: 50, 3: 60}, {1: 10, 2: 12, 3: 11})
    assert await one._agreed_range(STATE) == (12, 50)


async def test_the_served_log_never_ends_below_what_the_shadow_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader before may have acknowledged records up to there."""
    monkeypatch.setattr(in_place_partition, "READY_SECONDS_MAX", 0.2)
    one = partition_run({1: 70, 2: 50, 3: 60})
    one._followed.claimed = 55
    with pytest.raises(Yielded, match="ends of its replicas"):
        await one._agreed_range(STATE)


async def test_a_replica_that_does_not_respond_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place_partition, "READY_SECONDS_MAX", 0.2)
    with pytest.raises(Yielded):
        await partition_run({1: 70, 2: 50})._agreed_range(STATE)


@pytest.mark.parametrize("open_since", [None, 40])
async def test_an_open_transaction_is_waited_for(
    open_since: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def producers(*_: object) -> dict[TopicPartition, Any]:
        return {PLACE: (SimpleNamespace(open_since_offset=open_since),)}

    monkeypatch.setattr(transactions, "producers", producers)
    monkeypatch.setattr(in_place_partition, "TRANSACTIONS_SECONDS_MAX", 0.2)
    one = partition_run({})
    if open_since is None:
        await one._until_no_transaction()
    else:
        with pytest.raises(Yielded, match="a transaction was open"):
            await one._until_no_transaction()


def observation(leader: int) -> Observation:
    return Observation(
        (1, 2, 3), 0, 2, S, STATE.replicas, STATE.isr, leader, frozenset(), frozenset(), frozenset((1, 2, 3))
    )


async def test_producers_wait_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_: object) -> None:
        return None

    monkeypatch.setattr(InPlacePartitionRun, "_serve", serve)
    one = partition_run({})
    one.pause_seconds = -1.0
    with pytest.raises(Yielded, match="producers have waited"):
        await one._keep_leading(observation(S))


async def test_a_shadow_that_was_elected_unexpectedly_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the epochs of the leader before, a follower could truncate too much."""
    moves = []

    async def carry_out(_: object, move: Any, __: object) -> None:
        moves.append(move)

    monkeypatch.setattr(InPlacePartitionRun, "_carry_out", carry_out)
    await partition_run({})._serve(observation(S))
    assert moves == [Place((1, 2, 3))]


class Store:
    """Records of restores, in memory."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.steps: list[str | None] = []

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def claim(store: RestoreStore) -> None:
            store.documents = self.documents

        async def exists(_: RestoreStore) -> bool:
            return True

        async def put(store: RestoreStore, key: str, document: dict[str, Any]) -> None:
            self.documents[key] = document
            self.steps.append(document["step"])

        monkeypatch.setattr(RestoreStore, "claim", claim)
        monkeypatch.setattr(RestoreStore, "exists", exists)
        monkeypatch.setattr(RestoreStore, "put", put)


def restorer() -> InPlaceRestorer:
    known: Any = SimpleNamespace(cluster=CLUSTER, broker_id=S)
    return InPlaceRestorer(NOTHING, NOTHING, known, known, known)


async def test_a_restore_in_place_excludes_every_other_and_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Store().attach(monkeypatch)
    await restorer().begin(PLAN, "first")
    with pytest.raises(RestoreRunning, match="first"):
        await restorer().begin(PLAN, "second")
    again = restorer()
    assert await again.resume()
    assert again.document["partitions"] == {"0": {"start": 0, "replicas": [1, 2, 3], "done": False}}
    other = Restorer(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    other._store.documents = again._store.documents
    assert not await other.resume(), "a restore in place has other steps"
    again.document["step"] = "proved"
    assert not await again.resume(), "nothing is left of it"


async def test_a_partition_that_gives_up_is_undone_and_the_restore_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, calls = Store(), []
    store.attach(monkeypatch)

    async def move_until_done(_: InPlacePartitionRun, *, undo: bool) -> None:
        calls.append(undo)
        if not undo:
            raise Yielded("producers have waited for 60 s")

    monkeypatch.setattr(InPlacePartitionRun, "_move_until_done", move_until_done)
    one = restorer()
    await one.begin(PLAN, "first")
    with pytest.raises(RestoreYielded, match="producers have waited"):
        await one._restore(NOTHING, 0)
    assert calls == [False, True]
    assert one.document["abandoned"]
    assert not await restorer().resume()


async def test_replicas_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Store().attach(monkeypatch)

    async def prove(*_: object) -> InPlaceProof:
        return InPlaceProof((1, 3), (2,))

    async def chain(*_: object) -> None:
        return None

    monkeypatch.setattr(in_place, "prove_in_place", prove)
    one = restorer()
    archive: Any = SimpleNamespace(cluster=CLUSTER, chain=chain)
    one._archive = archive
    await one.begin(PLAN, "first")
    with pytest.raises(InPlaceUnproven, match="orders-0 on broker 2"):
        await one._prove()
    assert one.document["abandoned"], "it blocks no other restore"


def test_nothing_more_is_done_once_a_partition_is_as_it_was() -> None:
    state = observation(1)
    assert Done() == next_move(
        Observation(
            state.original, 0, 2, S, (1, 2, 3), (1, 2, 3), 1, frozenset(), frozenset(), state.live,
            {1: 0, 2: 0, 3: 0},
        )
    )  # fmt: skip


def test_a_log_start_that_falls_has_an_intent_of_its_topic() -> None:
    planned = intents.restore_in_place(["orders"], "restore r1", 5)
    assert planned == [("named/orders", Intent("restore", "restore r1", until_ms=5))]


async def test_a_process_that_was_fenced_moves_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor restores the same partition; a refused move is something else."""
    moves = []

    async def alter(_: object, targets: dict[TopicPartition, Any]) -> dict[TopicPartition, None]:
        moves.append(targets)
        return {}

    async def fenced(_: object) -> None:
        raise ProducerFenced(transactional_id="_penstock.restore", api="EndTxn")

    async def changed(*_: object) -> None:
        return None

    monkeypatch.setattr(reassignments, "alter", alter)
    monkeypatch.setattr(InPlacePartitionRun, "_until_changed", changed)
    one = partition_run({})
    one.reached = fenced
    with pytest.raises(ProducerFenced):
        await one._carry_out(Place((S, 1, 2), dropped=3), observation(S))
    assert len(moves) == 1


async def test_nothing_is_recorded_after_a_record_whose_outcome_is_unknown() -> None:
    """A broker could take it for a repetition of the first, and drop it."""
    attempts: list[object] = []

    async def commit(records: object) -> None:
        attempts.append(records)
        raise ProducerFenced(transactional_id="_penstock.restore", api="EndTxn")

    store = RestoreStore(NOTHING)
    producer: Any = SimpleNamespace(commit=commit)
    store._producer = producer
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            await store.put("restore/orders", {"step": "leads"})
    assert (len(attempts), store.documents) == (1, {})
