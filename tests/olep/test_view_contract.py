"""Every store passes the contract tests."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from penstock.model.errors.views import SnapshotUnavailable, ViewFailed, ViewMoved, ViewReplaced, ViewRetired
from penstock.olep.view.stores.memory import MemoryViews
from penstock.olep.view.stores.postgres import PostgresViews
from penstock.olep.view.stores.redis import RedisViews
from penstock.olep.view.stores.sqlite import SqliteViews
from penstock.olep.view.testing import ITEMS, OTHER_TOPIC, TOPIC, ViewContract, at, item, projection, put
from tests.harness.valkey import ValkeyServer, without_valkey

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.view import ViewStores
    from tests.harness.postgres import PostgresServer


def test_a_read_that_a_view_cannot_serve_is_an_error(tmp_path: Path) -> None:
    views = SqliteViews(tmp_path)
    store = views.open(projection(), TOPIC, 2, generation=1)
    store.claim()
    with (
        pytest.raises(SnapshotUnavailable, match="0 to 0 of partition 0, requested 5"),
        store.reading(at(5, 0)),
    ):
        pass
    store.close()
    with pytest.raises(ViewReplaced, match=f"follows topic id {TOPIC}"):
        views.open(projection(), OTHER_TOPIC, 2, generation=1)
    (tmp_path / "contract.2.sqlite").mkdir()
    with pytest.raises(ViewFailed, match=r"contract\.2\.sqlite"):
        views.open(projection(), TOPIC, 2, generation=2)


def test_a_refused_write_names_its_reason(tmp_path: Path) -> None:
    views = SqliteViews(tmp_path)
    store = views.open(projection(), TOPIC, 2, generation=1)
    store.claim()
    with pytest.raises(ViewMoved, match="is at offset 0 of partition 0, and the batch continues from 3"):
        store.commit([put(0, 3, 4)])
    views.retire("contract", 1)
    with pytest.raises(ViewRetired, match=r"contract\.1\.sqlite takes no more writes"):
        store.commit([put(0, 0, 4)])
    store.close()


class TestMemory(ViewContract):
    def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
        return _MEMORIES.setdefault(directory, MemoryViews(keep_seconds))


_MEMORIES: dict[Path, MemoryViews] = {}


class TestSqlite(ViewContract):
    searches = True

    def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
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

    def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
        return PostgresViews(self.server.dsn, keep_seconds)


class TestValkey(ViewContract):
    @pytest.fixture(autouse=True)
    def _server(self, valkey: ValkeyServer) -> None:
        self.server = valkey
        with redis.Redis.from_url(valkey.url) as client:
            client.flushall()

    def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
        return RedisViews(self.server.url, keep_seconds)


def test_the_history_of_a_frequently_changed_row_is_trimmed_in_a_cache(valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        store = RedisViews(valkey.url, 0.0).open(projection(), TOPIC, 2, generation=1)
        store.claim()
        for number in range(1, 400):
            store.commit([put(0, number - 1, number, item("a", 1, f"title {number}"))])
        sizes: list[Any] = [client.zcard(key) for key in client.scan_iter("*:history:*")]
        store.close()
    assert sum(sizes) < 150


@pytest.mark.skipif(without_valkey() is not None, reason=without_valkey() or "")
def test_a_cache_that_evicts_is_refused_and_a_full_one_keeps_its_rows() -> None:
    with ValkeyServer.start("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as server:
        store = RedisViews(server.url).open(projection(), TOPIC, 2, generation=1)
        with pytest.raises(ViewFailed, match="allkeys-lru"):
            store.claim()
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "noeviction")
        store.claim()
        store.commit([put(0, 0, 1, item("a", 1))])
        many = ([put(0, n - 1, n, item("b", n, "x" * 100_000))] for n in range(2, 1000))
        with pytest.raises(ViewFailed, match="maxmemory"):
            deque(map(store.commit, many), maxlen=0)
        with store.reading() as reader:
            rows, position = [*reader.rows(ITEMS)], reader.position.of(TOPIC, 0)
        store.close()
    assert len(rows) == position
