"""What a link does when a step is not possible, or no process carries out a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.kafka.admin import acls, brokers, reassignments, topics
from penstock.kafka.admin.log_dirs import LogDir
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import commands, mirror_topics, promotion
from penstock.link.limits import RateLimit, full_disk
from penstock.link.metrics import LinkMetrics
from penstock.link.runner import FRESH, LinkRunner
from penstock.link.settings import read_link_settings
from penstock.link.states import Action, State
from penstock.link.store import LinkStore
from penstock.metrics_server import page_of
from penstock.model.errors.link import (
    AuthorizerMissing,
    LeadersMissing,
    LinkNotRunning,
    LinkRecordInvalid,
    LinkStateLost,
    MirrorNotReleased,
    ShadowIdUsed,
    SourceNotFenced,
)
from penstock.model.errors.wire import ProducerFenced
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.producer_ids import ProducerIds

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kafka.client import Client

NO_CLIENT = cast("Client", None)


def refused() -> AuthorizerMissing:
    return AuthorizerMissing(reason="SECURITY_DISABLED")


async def test_a_cluster_without_an_authorizer_has_no_closed_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(_: Client, new: list[Any]) -> dict[Any, Any]:
        return {acl: refused() for acl in new}

    monkeypatch.setattr(acls, "create", create)
    with pytest.raises(AuthorizerMissing, match="SECURITY_DISABLED"):
        await mirror_topics.close(NO_CLIENT, ["orders"])
    with pytest.raises(SourceNotFenced):
        await promotion.fence_source(NO_CLIENT, ["orders"])


async def test_a_shadow_that_stays_in_replica_lists_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(*_: object) -> dict[str, Any]:
        partition = SimpleNamespace(index=0, replicas=(SHADOW_IDS[0], 1))
        return {"orders": SimpleNamespace(name="orders", partitions=[partition])}

    async def alter(*_: object) -> None:
        return None

    monkeypatch.setattr(promotion, "REMOVE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(reassignments, "alter", alter)
    with pytest.raises(MirrorNotReleased):
        await promotion.remove_shadow(NO_CLIENT, ["orders"], SHADOW_IDS[0])


async def test_a_request_without_a_running_link_is_recorded_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[str] = []

    async def put(_: LinkStore, key: str, document: dict[str, Any]) -> None:
        recorded.append(f"{key} {document['action']}")

    async def refresh(_: LinkStore) -> None:
        return None

    async def show(*_: object) -> dict[str, Any]:
        return {"state": State.MIRRORING, "request": 0, "error": ""}

    monkeypatch.setattr(LinkStore, "put", put)
    monkeypatch.setattr(LinkStore, "refresh", refresh)
    monkeypatch.setattr(commands, "show", show)
    with pytest.raises(LinkNotRunning, match="pause"):
        await commands.request(NO_CLIENT, "east", Action.PAUSE, seconds=0.01)
    assert recorded == ["request/east pause"]


def test_a_record_of_another_program_is_an_error() -> None:
    store = LinkStore(NO_CLIENT)
    store._apply(b"status/east", b'{"state": "paused"}')
    assert store.named("status") == {"east": {"state": "paused"}}
    store._apply(b"status/east", None)
    assert store.documents == {}
    with pytest.raises(LinkRecordInvalid):
        store._apply(b"status/east", b"{")


def test_a_settings_file_names_both_clusters_and_the_shadow(tmp_path: Path) -> None:
    file = tmp_path / "link.yaml"
    file.write_text(
        "source: {bootstrap: 'a:1'}\n"
        "destination: {bootstrap: 'b:1', controllers: 'c:1', login: {user: u, password: p}}\n"
        "shadow: {directory: state, host: h, admitted: [u]}\n"
    )
    settings = read_link_settings(file)
    assert settings.shadow.broker_id == SHADOW_IDS[0]
    assert settings.controllers.security.protocol == "SASL_PLAINTEXT"
    assert settings.shadow.directory == tmp_path / "state"


async def test_state_that_cannot_be_written_ends_the_process() -> None:
    """A successor may have fenced this one; what it would do next could harm."""

    async def commit(_: object) -> None:
        raise ProducerFenced(transactional_id="_penstock.link.east", api="EndTxn")

    store = LinkStore(NO_CLIENT)
    store._link, store._producer = "east", cast("Any", SimpleNamespace(commit=commit))
    with pytest.raises(LinkStateLost, match="fenced"):
        await store.put("status/east", {})
    assert store.documents == {}


async def test_a_failover_waits_for_real_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = [SHADOW_IDS[0], -1, 2]

    async def describe(*_: object) -> dict[str, Any]:
        partition = SimpleNamespace(leader=leaders.pop(0) if len(leaders) > 1 else leaders[0])
        return {"orders": SimpleNamespace(partitions=[partition]), "deleted": refused()}

    monkeypatch.setattr(topics, "describe", describe)
    await promotion.wait_for_leaders(NO_CLIENT, ["orders", "deleted"])
    assert leaders == [2]
    leaders[0] = SHADOW_IDS[0]
    monkeypatch.setattr(promotion, "LEADERS_SECONDS_MAX", 0.0)
    with pytest.raises(LeadersMissing, match="1 mirror partitions"):
        await promotion.wait_for_leaders(NO_CLIENT, ["orders"])


async def test_each_link_gets_a_shadow_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(*_: object, **__: object) -> Any:
        return SimpleNamespace(brokers={SHADOW_IDS[1]: None, 1: None})

    monkeypatch.setattr(brokers, "describe", describe)
    store = LinkStore(NO_CLIENT)
    store.documents["definition/east"] = {"shadow_id": SHADOW_IDS[0]}
    assert await commands._free_shadow_id(NO_CLIENT, store, None) == SHADOW_IDS[2]
    assert await commands._free_shadow_id(NO_CLIENT, store, SHADOW_IDS[7]) == SHADOW_IDS[7]
    with pytest.raises(ShadowIdUsed, match="east"):
        await commands._free_shadow_id(NO_CLIENT, store, SHADOW_IDS[0])


async def test_brokers_give_no_mirrored_producer_id_to_a_new_producer() -> None:
    """Ids are burned at the controller, and used up in the blocks that brokers already have."""
    next_block, blocks = [5_000], {1: [0, 1_000], 2: [3_000, 4_000]}

    async def allocate(*_: object, **__: object) -> dict[str, int]:
        next_block[0] += 1_000
        return {"ErrorCode": 0, "ProducerIdStart": next_block[0] - 1_000, "ProducerIdLen": 1_000}

    async def init(_api: str, _body: object, *, to: Any, lane: str) -> dict[str, int]:
        block = blocks[to.id]
        if block[0] == block[1]:
            block[:] = [next_block[0], next_block[0] + 1_000]
            next_block[0] += 1_000
        block[0] += 1
        return {"ErrorCode": 0, "ProducerId": block[0] - 1}

    image = SimpleNamespace(brokers={b: SimpleNamespace(fenced=b == 3) for b in (1, 2, 3, SHADOW_IDS[0])})
    shadow = SimpleNamespace(id=SHADOW_IDS[0], session=SimpleNamespace(broker_epoch=4), image=image)
    ids = ProducerIds(
        cast("Any", shadow),
        cast("Any", SimpleNamespace(call=init)),
        cast("Any", SimpleNamespace(call=allocate)),
    )
    await ids.burn()
    assert blocks[1][0] == 0, "nothing is mirrored"
    ids.saw(7_500)
    assert list(ids.below) == [1, 2]
    await ids.burn()
    assert not list(ids.below)
    assert all(block[0] > 7_500 for block in blocks.values())


def test_metrics_show_state_lag_and_shadow() -> None:
    runner = LinkRunner("east", NO_CLIENT, NO_CLIENT, NO_CLIENT, cast("Any", None))
    metrics = LinkMetrics(runner)
    assert metrics.not_ready() == "the link has not started"
    runner.status = FRESH | {"state": State.PAUSED}
    led = SimpleNamespace(leadership=None, window=SimpleNamespace(size=7), guarded=0)
    one = SimpleNamespace(lag=5, failed="damaged", unverified="", led=led)
    session = SimpleNamespace(fenced=True)
    runner.mirror = cast("Any", SimpleNamespace(
        partitions={TopicPartition("orders", 0): one}, truncations=2, guarded_refusals=0,
        unattached={TopicPartition("orders", 1): "created again"}, shadow=SimpleNamespace(session=session),
    ))  # fmt: skip
    page = page_of(metrics)().decode()
    assert 'penstock_link_lag_offsets{link="east",topic="orders"} 5.0' in page
    assert 'penstock_link_state{link="east",state="paused"} 1.0' in page
    assert 'penstock_link_truncations_total{link="east"} 2.0' in page
    assert 'penstock_link_failed_partitions{link="east"} 2.0' in page, "also one that was never attached"
    assert "penstock_shadow_guarded_refusals_total 0.0" in page
    assert metrics.not_ready() == "the link is paused"


def test_a_rate_limit_makes_the_next_fetch_wait_for_what_was_overdrawn() -> None:
    limit = RateLimit(1_000.0)
    assert limit.wait_seconds(10.0) == 0.0
    limit.spend(4_000, 10.0)
    assert limit.wait_seconds(10.0) == pytest.approx(3.0)
    assert limit.wait_seconds(12.5) == pytest.approx(0.5)
    assert limit.wait_seconds(100.0) == 0.0
    limit.spend(1_000, 100.0)
    assert limit.wait_seconds(100.0) == 0.0, "no more than a second's bytes are saved up"
    unlimited = RateLimit()
    unlimited.spend(1 << 40, 1.0)
    assert unlimited.wait_seconds(1.0) == 0.0


def test_a_full_disk_stops_the_mirroring_until_there_is_space_again() -> None:
    def at(ratio: float) -> dict[int, list[LogDir]]:
        unknown = LogDir("/b", None, -1, -1, False, {})
        return {1: [unknown, LogDir("/a", None, 1_000, int(1_000 - ratio * 1_000), False, {})]}

    assert full_disk(at(0.84), stopped=False) == ""
    assert full_disk(at(0.90), stopped=False) == "/a of broker 1 is 90% full"
    assert full_disk(at(0.84), stopped=True)
    assert full_disk(at(0.79), stopped=True) == ""
    assert full_disk({}, stopped=False) == ""
