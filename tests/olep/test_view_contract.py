"""Every store passes the contract that ships with the package; each way to break it is caught."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from penstock.model.errors.views import SnapshotGone, ViewFailed, ViewReplaced
from penstock.olep.view.memory import MemoryViews
from penstock.olep.view.postgres import PostgresViews
from penstock.olep.view.redis import RedisViews
from penstock.olep.view.sqlite import SqliteViews
from penstock.olep.view.testing import ITEMS, OTHER_TOPIC, TOPIC, ViewContract, at, item, projection, put
from penstock.olep.view.warehouse import WarehouseViews
from tests.ground.valkey import ValkeyServer, without_valkey

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.view import ViewStores
    from tests.ground.postgres import PostgresServer


def test_what_a_view_cannot_do_is_said_by_name(tmp_path: Path) -> None:
    views = SqliteViews(tmp_path)
    store = views.open(projection(), TOPIC, 2, generation=1)
    store.claim()
    with pytest.raises(SnapshotGone, match="0 to 0 of partition 0, asked for 5"), store.reading(at(5, 0)):
        pass
    store.close()
    with pytest.raises(ViewReplaced, match=f"follows topic id {TOPIC}"):
        views.open(projection(), OTHER_TOPIC, 2, generation=1)
    (tmp_path / "contract.2.sqlite").mkdir()
    with pytest.raises(ViewFailed, match=r"contract\.2\.sqlite"):
        views.open(projection(), TOPIC, 2, generation=2)


class TestMemory(ViewContract):
    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        made = _MEMORIES.get(directory)
        if made is None:
            made = _MEMORIES[directory] = MemoryViews(keep_seconds)
        return made


_MEMORIES: dict[Path, MemoryViews] = {}


class TestSqlite(ViewContract):
    searches = True

    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        return SqliteViews(directory, keep_seconds)


class TestPostgres(ViewContract):
    searches = True

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server = postgres
        views = PostgresViews(postgres.dsn)
        for generation in views.generations("contract"):
            views.drop("contract", generation)
        with psycopg.connect(postgres.dsn, autocommit=True) as db:
            db.execute("drop table if exists olep_views")

    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        return PostgresViews(self.server.dsn, keep_seconds)


class TestValkey(ViewContract):
    @pytest.fixture(autouse=True)
    def _server(self, valkey: ValkeyServer) -> None:
        self.server = valkey
        with redis.Redis.from_url(valkey.url) as client:
            client.flushall()

    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        return RedisViews(self.server.url, keep_seconds)


class TestWarehouse(ViewContract):
    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        return WarehouseViews(directory)


def test_the_past_of_a_row_that_keeps_changing_is_trimmed_in_a_cache(valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        store = RedisViews(valkey.url, 0.0).open(projection(), TOPIC, 2, generation=1)
        store.claim()
        for number in range(1, 400):
            store.commit([put(0, number, item("a", 1, f"title {number}"))])
        kept: list[Any] = [client.zcard(key) for key in client.scan_iter("*:past:*")]
        store.close()
    assert sum(kept) < 150


@pytest.mark.skipif(without_valkey() is not None, reason=without_valkey() or "")
def test_a_cache_that_forgets_by_itself_is_refused_and_a_full_one_keeps_what_it_has() -> None:
    with ValkeyServer.start("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as server:
        store = RedisViews(server.url).open(projection(), TOPIC, 2, generation=1)
        with pytest.raises(ViewFailed, match="allkeys-lru"):
            store.claim()
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "noeviction")
        store.claim()
        store.commit([put(0, 1, item("a", 1))])
        many = (put(0, number, item("b", number, "x" * 100_000)) for number in range(2, 1000))
        with pytest.raises(ViewFailed, match="maxmemory"):
            [store.commit([each]) for each in many]
        with store.reading() as reader:
            kept, position = [*reader.rows(ITEMS)], reader.position.of(TOPIC, 0)
        store.close()
    assert len(kept) == position
