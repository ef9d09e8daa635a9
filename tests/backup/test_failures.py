"""What a restore or a sweep does when it may not, or cannot, continue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.backup import abandoning
from penstock.backup import restorer as restorer_module
from penstock.backup.abandoning import abandon
from penstock.backup.archive import Archive
from penstock.backup.proof import ReplicaProof
from penstock.backup.replay import Replay
from penstock.backup.restore_plan import Request, RestorePlan
from penstock.backup.restore_store import RestoreStore
from penstock.backup.restorer import Restorer
from penstock.cli.operator import tier_sweep
from penstock.kafka.admin import topics
from penstock.kafka.broker_errors import broker_error
from penstock.link import promotion
from penstock.model.errors.backup import (
    RestoreRecordInvalid,
    RestoreRunning,
    RestoreStuck,
    RestoreUnproven,
    SweepRefused,
)
from penstock.model.errors.link import MirrorNotReleased
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.tier.sweep import SweepPlan
from penstock.wire.error_codes import Code
from tests.tier.segments import CLUSTER, TOPIC_ID

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.backup.catalogue import Catalogue
    from penstock.kafka.client import Client
    from penstock.shadow.broker import ShadowBroker, ShadowSettings

NO_CLIENT = cast("Client", None)
SHADOW = SHADOW_IDS[0]
PLAN = RestorePlan(Request(TOPIC_ID, "orders", "orders"), (), {})
OTHER = {"step": "leads", "abandoned": False}


def restorer() -> Restorer:
    nothing = cast("Any", None)
    shadow, catalogue = cast("ShadowSettings", nothing), cast("Catalogue", nothing)
    return Restorer(NO_CLIENT, NO_CLIENT, Archive(CLUSTER, []), catalogue, shadow)


async def test_only_one_restore_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claim(store: RestoreStore) -> None:
        store.documents["restore/first"] = OTHER

    monkeypatch.setattr(RestoreStore, "claim", claim)
    with pytest.raises(RestoreRunning, match="first"):
        await restorer().begin(PLAN, "second")


async def test_a_replica_that_differs_keeps_the_topic_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(*_: object) -> dict[str, Any]:
        return {"orders": None}

    async def prove(*_: object) -> list[ReplicaProof]:
        return [ReplicaProof(0, 1, "a", 5, True), ReplicaProof(0, 2, "b", 5, False)]

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(restorer_module, "prove", prove)
    one = restorer()
    one.restore = "first"
    one.document = {"target": "orders", "expected": {"0": [0, 5, "a", -1]}, "report": {}, **OTHER}
    one._store._producer = cast("Any", SimpleNamespace(commit=committed))
    with pytest.raises(RestoreUnproven, match="orders-0 on broker 2"):
        await one._prove()
    assert one._store.running() is None, "restoring again under another name is possible"


async def committed(_: object) -> None:
    return None


class Stuck:
    """A restore of `orders` that is at its third step, and cannot be completed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replicas: tuple[int, ...] | None) -> None:
        self.removed: list[list[str]] = []
        self.store = RestoreStore(NO_CLIENT)
        self.store._producer = cast("Any", SimpleNamespace(commit=committed))
        self.store.documents["restore/first"] = {"target": "orders", **OTHER}
        self.replicas = replicas
        self.error: Exception | None = None

        async def true(_: object) -> bool:
            return True

        monkeypatch.setattr(abandoning, "RestoreStore", lambda _: self.store)
        monkeypatch.setattr(RestoreStore, "exists", true)
        monkeypatch.setattr(RestoreStore, "claim", true)
        monkeypatch.setattr(topics, "describe", self.describe)
        monkeypatch.setattr(promotion, "remove_shadow", self.remove_shadow)

    async def describe(self, *_: object) -> dict[str, Any]:
        if self.replicas is None:
            return {"orders": broker_error("Metadata", Code.UNKNOWN_TOPIC_OR_PARTITION, None)}
        return {"orders": SimpleNamespace(partitions=(SimpleNamespace(replicas=self.replicas),))}

    async def remove_shadow(self, _: object, names: list[str], shadow: int) -> None:
        assert shadow == SHADOW
        self.removed.append(names)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("replicas", "removed"),
    [((SHADOW, 1, 2), ["orders"]), ((1, 2), []), (None, [])],
    ids=["led by the shadow", "another topic of that name", "deleted"],
)
async def test_a_restore_that_cannot_be_completed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, replicas: tuple[int, ...] | None, removed: list[str]
) -> None:
    """Until then no other restore begins, and nothing is swept."""
    stuck = Stuck(monkeypatch, replicas)
    row = await abandon(NO_CLIENT, SHADOW)
    assert row == {"restore": "first", "topic": "orders", "step": "leads", "left": ""}
    assert (stuck.removed, stuck.store.running()) == ([removed], None)
    assert await abandon(NO_CLIENT, SHADOW) is None


async def test_a_restore_is_given_up_although_no_replica_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = Stuck(monkeypatch, (SHADOW, 1, 2))
    stuck.error = MirrorNotReleased(count=1, shadow=SHADOW, seconds=1)
    row = await abandon(NO_CLIENT, SHADOW)
    assert row is not None
    assert "still list shadow" in row["left"]
    assert stuck.store.running() is None


def replay_with(start: int) -> Replay:
    """On a cluster whose only broker has a block of ids from `start` on, and that allocates one more."""
    given = [start]

    async def allocate(*_: object, **__: object) -> dict[str, int]:
        return {"ErrorCode": 0, "ProducerIdStart": 1000, "ProducerIdLen": 1000}

    async def give(*_: object, **__: object) -> dict[str, int]:
        given[0] += 1
        return {"ErrorCode": 0, "ProducerId": given[0] - 1}

    image = SimpleNamespace(brokers={1: SimpleNamespace(fenced=False)})
    shadow = SimpleNamespace(id=SHADOW, session=SimpleNamespace(broker_epoch=1), image=image)
    brokers, controllers = SimpleNamespace(call=give), SimpleNamespace(call=allocate)
    nothing = cast("Any", None)
    return Replay(
        "first",
        cast("ShadowBroker", shadow),
        Archive(CLUSTER, []),
        cast("Client", brokers),
        cast("Client", controllers),
        nothing,
        nothing,
        nothing,
    )


async def test_no_broker_gives_a_restored_producer_id_to_a_new_producer() -> None:
    """Not even from a block that it had before: the new producer's records would count as repetitions."""
    replay = replay_with(start=1)

    await replay.burn_producer_ids(700)

    after = await replay.brokers.call("InitProducerId", {})
    assert after["ProducerId"] > 700


async def test_producer_ids_that_cannot_be_allocated_stop_a_restore() -> None:
    with pytest.raises(RestoreStuck, match="brokers 1 may still give out producer ids up to 2500"):
        await replay_with(start=1).burn_producer_ids(2500)


def test_a_record_of_another_program_is_an_error() -> None:
    store = RestoreStore(NO_CLIENT)
    store._apply(b"restore/first", b'{"step": "leads", "abandoned": false}')
    assert store.running() == ("first", OTHER)
    store._apply(b"restore/first", b'{"step": "opened", "abandoned": false}')
    assert store.running() is None
    with pytest.raises(RestoreRecordInvalid):
        store._apply(b"restore/first", b"{")


async def test_nothing_is_swept_while_a_restore_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "backup.yaml").write_text(
        "cluster: {bootstrap: '127.0.0.1:1'}\nstore: {directory: s}\ntier: {directory: t}\n"
    )

    class Connected:
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def cluster(self) -> Any:
            return SimpleNamespace(id=CLUSTER)

    async def running(*_: object) -> str:
        return "first"

    async def plan(*_: object) -> SweepPlan:
        return SweepPlan(refused="a restore is running")

    monkeypatch.setattr(tier_sweep, "Client", lambda *_: Connected())
    monkeypatch.setattr(tier_sweep, "running_restore", running)
    monkeypatch.setattr(tier_sweep, "plan_sweep", plan)
    with pytest.raises(SweepRefused, match="a restore is running"):
        await tier_sweep.sweep(settings=tmp_path / "backup.yaml")
