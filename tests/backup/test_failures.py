"""What a restore or a sweep does when it may not, or cannot, continue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.backup import replay as replay_module
from penstock.backup import restorer as restorer_module
from penstock.backup.archive import Archive
from penstock.backup.proof import ReplicaProof
from penstock.backup.replay import Replay
from penstock.backup.restore_plan import Request, RestorePlan
from penstock.backup.restore_store import RestoreStore
from penstock.backup.restorer import Restorer
from penstock.cli.operator import tier_sweep
from penstock.kafka.admin import topics
from penstock.model.errors.backup import (
    RestoreRecordInvalid,
    RestoreRunning,
    RestoreStuck,
    RestoreUnproven,
    SweepRefused,
)
from penstock.tier.sweep import SweepPlan
from tests.tier.segments import CLUSTER, TOPIC_ID

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.backup.catalogue import Catalogue
    from penstock.kafka.client import Client
    from penstock.shadow.broker import ShadowBroker, ShadowSettings

NO_CLIENT = cast("Client", None)
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
    one.document = {"target": "orders", "expected": {"0": [0, 5, "a", -1]}, "report": {}}
    with pytest.raises(RestoreUnproven, match="orders-0 on broker 2"):
        await one._prove()


async def test_producer_ids_that_cannot_be_allocated_stop_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(*_: object, **__: object) -> dict[str, int]:
        return {"ProducerIdStart": 0, "ProducerIdLen": 1000}

    monkeypatch.setattr(replay_module, "PRODUCER_ID_BLOCKS_MAX", 2)
    controllers = cast("Client", SimpleNamespace(call=call))
    shadow = cast("ShadowBroker", SimpleNamespace(id=1, session=SimpleNamespace(broker_epoch=1)))
    nothing = cast("Any", None)
    replay = Replay("first", shadow, Archive(CLUSTER, []), controllers, nothing, nothing, nothing)
    await replay.burn_producer_ids(999)
    with pytest.raises(RestoreStuck, match="1000"):
        await replay.burn_producer_ids(1000)


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
