"""Views in Valkey or Redis: a cache with a position and a short history.

A table of a partition is one hash: field → the offset at which the row starts, and the row as JSON, or `-` if
it was removed. Replaced versions are in a sorted set for each row, by that offset. One script compares epoch
and positions, writes rows and moves positions, so a commit is atomic. A server that lost its data, or came
back with older data, has lost the position with it: the runner continues from what the server has.

Every read is as of a position; a plain read uses the position at its start. Set
`maxmemory-policy noeviction`: if the server evicted rows, the view would no longer match its position.
"""

from __future__ import annotations

import base64
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import fault_points
from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.views import ViewFailed
from penstock.olep.position import Position
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    INTERNAL_TABLES,
    KEEP_SECONDS,
    check_rows,
    fingerprint,
)
from penstock.olep.view.stores.stored_view import StoredView, as_view_failed, check_exists

try:
    import redis
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="a view in Valkey or Redis", module="redis", extra="olep-redis") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.olep.table import Key, Table
    from penstock.olep.view import ViewBatch
    from penstock.olep.view.projection import Projection

CALL_SECONDS: Final = 10.0
SWEEP_MAX: Final = 2000  # rows whose history is deleted in one commit
TRIM_EVERY: Final = 64  # versions after which the history of a frequently changed row is trimmed
_NONE: Final = "-"

# KEYS: meta. ARGV: epoch, number of batches; for each batch: partition, start, position, horizon ('' for
# none); for each change: hash, field, offset ('' for an internal row, which has no history), row ('-' for
# none), partition.
_COMMIT: Final = """
local meta, count, at, horizons = KEYS[1], tonumber(ARGV[2]), 3, {}
-- Everything is compared before anything is written: a script that returns early undoes nothing.
local same = redis.call('HGET', meta, 'epoch') == ARGV[1]
for i = 0, count - 1 do
  local partition, start = ARGV[3 + 4 * i], ARGV[4 + 4 * i]
  same = same and redis.call('HGET', meta, 'position:' .. partition) == start
end
if not same then return redis.call('HGETALL', meta) end
for i = 1, count do
  local partition = ARGV[at]
  redis.call('HSET', meta, 'position:' .. partition, ARGV[at + 2])
  if ARGV[at + 3] ~= '' then redis.call('HSET', meta, 'horizon:' .. partition, ARGV[at + 3]) end
  horizons[partition] = tonumber(redis.call('HGET', meta, 'horizon:' .. partition))
  at = at + 4
end
while at <= #ARGV do
  local hash, field, offset, row, partition = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  at = at + 5
  if offset == '' then
    if row == '-' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, row) end
  else
    local before = redis.call('HGET', hash, field)
    if before then
      local start = string.match(before, '^%d+')
      if start ~= offset then
        local history = hash .. ':history:' .. field
        redis.call('ZADD', history, start, before)
        if redis.call('ZCARD', history) % TRIM == 0 then
          local below = '(' .. horizons[partition]
          local oldest = redis.call('ZREVRANGEBYSCORE', history, below, '-inf', 'LIMIT', 0, 1)
          if oldest[1] then
            redis.call('ZREMRANGEBYSCORE', history, '-inf', '(' .. string.match(oldest[1], '^%d+'))
          end
        end
        redis.call('ZADD', meta .. ':ended:' .. partition, offset, hash .. '\\n' .. field)
      end
    end
    redis.call('HSET', hash, field, offset .. ' ' .. row)
    if row == '-' then redis.call('ZADD', meta .. ':ended:' .. partition, offset, hash .. '\\n' .. field) end
  end
end
for partition, horizon in pairs(horizons) do
  local ended = meta .. ':ended:' .. partition
  for _, row_id in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', '(' .. horizon, 'LIMIT', 0, SWEEP)) do
    local split = string.find(row_id, '\\n', 1, true)
    local hash, field = string.sub(row_id, 1, split - 1), string.sub(row_id, split + 1)
    redis.call('DEL', hash .. ':history:' .. field)
    local now = redis.call('HGET', hash, field)
    if now and string.sub(now, -2) == ' -' then redis.call('HDEL', hash, field) end
    redis.call('ZREM', ended, row_id)
  end
end
return false
""".replace("SWEEP", str(SWEEP_MAX)).replace("TRIM", str(TRIM_EVERY))


# KEYS: meta. ARGV: 1 to claim, -1 to retire.
_CLAIM: Final = """
local epoch = ARGV[1] * (math.abs(redis.call('HGET', KEYS[1], 'epoch')) + 1)
redis.call('HSET', KEYS[1], 'epoch', epoch)
return redis.call('HGETALL', KEYS[1])
"""


@dataclass(frozen=True, slots=True)
class RedisViews:
    """`url` in redis-py's form. Keys start with `penstock:{<view>}`, so a view is in one cluster slot."""

    url: str
    keep_seconds: float = KEEP_SECONDS

    def open(self, projection: Projection, topic_id: str, partitions: int, *, generation: int) -> RedisView:
        return RedisView(self, projection, topic_id, partitions, generation)

    def client(self) -> Any:
        # Any: redis-py types its methods for blocking and asyncio use at once.
        return redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=CALL_SECONDS)

    @contextmanager
    def _connected(self, view: str) -> Iterator[Any]:
        with as_view_failed(view, redis.RedisError), self.client() as client:
            yield client

    def generations(self, view: str) -> list[int]:
        with self._connected(view) as client:
            return sorted(int(each) for each in client.smembers(f"penstock:{{{view}}}:generations"))

    def serving(self, view: str) -> int | None:
        with self._connected(view) as client:
            serving = client.get(f"penstock:{{{view}}}:serving")
        return None if serving is None else int(serving)

    def serve(self, view: str, generation: int) -> None:
        check_exists(self, view, generation)
        with self._connected(view) as client:
            client.set(f"penstock:{{{view}}}:serving", generation)

    def retire(self, view: str, generation: int) -> Position:
        check_exists(self, view, generation)
        meta_key = f"penstock:{{{view}}}:{generation}:meta"
        with self._connected(view) as client:
            meta = _claim(client, meta_key, -1)
        offsets = {int(k.removeprefix("position:")): int(v) for k, v in meta.items() if k[:9] == "position:"}
        return Position({meta["topic_id"]: offsets})

    def drop(self, view: str, generation: int) -> None:
        with self._connected(view) as client:
            client.srem(f"penstock:{{{view}}}:generations", generation)
            for key in client.scan_iter(f"penstock:{{{view}}}:{generation}:*", count=1000):
                client.unlink(key)


class RedisView(StoredView):
    errors = (redis.RedisError,)

    def __init__(
        self, views: RedisViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        name = f"view {projection.name} {generation} in Redis"
        super().__init__(name, projection, topic_id, partitions, generation, views.keep_seconds)
        self._tables = {table.name: table for table in (*projection.tables, *INTERNAL_TABLES)}
        self._prefix = f"penstock:{{{projection.name}}}:{generation}"
        self._meta = f"{self._prefix}:meta"
        self._client = views.client()
        self._script = self._client.register_script(_COMMIT)
        with self._as_view_failed():
            self._create()

    def claim(self) -> dict[int, int]:
        with self._as_view_failed():
            self._check_eviction()
            self._create()  # if the server lost its data since the view was opened
            meta = _claim(self._client, self._meta, 1)
        self._epoch = int(meta["epoch"])
        return self._positions(meta)

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        with self._as_view_failed():
            value = self._client.hget(self._hash(table.name, partition), _field(key))
        if value is None:
            return None
        return _row(table, value.split(" ", 1)[1] if self._has_history(table.name) else value)

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        with self._as_view_failed():
            values = self._client.hvals(self._hash(table.name, partition))
        has_history = self._has_history(table.name)
        rows = [_row(table, value.split(" ", 1)[1] if has_history else value) for value in values]
        return [row for row in rows if row is not None]

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        fault_points.reach(COMMIT_BEFORE)
        check_rows(batches, self._tables)
        expired = self._mark(time.monotonic())
        arguments: list[Any] = [self._epoch, len(batches)]
        for batch in batches:
            horizon = "" if expired is None else expired.get(batch.partition, "")
            arguments += (batch.partition, batch.start, batch.position, horizon)
        for batch in batches:
            self._add_changes(batch, arguments)
        fault_points.reach(COMMIT_INSIDE)
        with self._as_view_failed():
            differs: list[str] | None = self._script(keys=[self._meta], args=arguments)
        if differs is not None:
            meta = _pairs(differs)
            self._check_writer(int(meta.get("epoch", 0)), self._positions(meta), batches)
            raise AssertionError("unreachable")

    def position(self) -> Position:
        with self._as_view_failed():
            return self._at(self._positions())

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[RedisReader]:
        with self._as_view_failed():
            meta = self._client.hgetall(self._meta)
        horizons = {p: int(meta.get(f"horizon:{p}", 0)) for p in range(self._partitions)}
        shown = self._shown(as_of, self._positions(meta), horizons)
        yield RedisReader(self, self._at(shown), shown)

    def close(self) -> None:
        self._client.close()

    def fetch(
        self, table: Table[Any], key: Key, shown: Mapping[int, int]
    ) -> list[tuple[int, tuple[Any, ...]]]:
        """A row of each partition as of a position. Raises SnapshotUnavailable."""
        field = _field(key)
        with self._as_view_failed(), self._client.pipeline(transaction=True) as pipe:
            for partition, position in shown.items():
                table_key = self._hash(table.name, partition)
                pipe.hget(table_key, field)
                pipe.zrevrangebyscore(f"{table_key}:history:{field}", f"({position}", "-inf", start=0, num=1)
            pipe.hgetall(self._meta)
            *values, meta = pipe.execute()
        self._check_retained(meta, shown)
        rows = []
        for number, (partition, position) in enumerate(shown.items()):
            current, history = values[2 * number : 2 * number + 2]
            row = _as_of(table, current, history, position)
            if row is not None:
                rows.append((partition, row))
        return rows

    def fetch_all(self, table: Table[Any], partition: int, position: int) -> list[tuple[Any, ...]]:
        """All rows of a partition as of a position. Raises SnapshotUnavailable."""
        key = self._hash(table.name, partition)
        with self._as_view_failed():
            current: dict[str, str] = self._client.hgetall(key)
            later = [field for field, value in current.items() if int(value.split(" ", 1)[0]) >= position]
            with self._client.pipeline(transaction=True) as pipe:
                for field in later:
                    pipe.zrevrangebyscore(f"{key}:history:{field}", f"({position}", "-inf", start=0, num=1)
                pipe.hgetall(self._meta)
                *values, meta = pipe.execute()
            history = dict(zip(later, values, strict=True))
        self._check_retained(meta, {partition: position})
        rows = [_as_of(table, value, history.get(field, []), position) for field, value in current.items()]
        return [row for row in rows if row is not None]

    def _check_retained(self, meta: Mapping[str, str], shown: Mapping[int, int]) -> None:
        """The history may have been deleted, and the server's data lost, while it was read."""
        horizons = {p: int(meta.get(f"horizon:{p}", 0)) for p in shown}
        self._shown(self._at(shown), {p: self._positions(meta)[p] for p in shown}, horizons)

    def _add_changes(self, batch: ViewBatch, arguments: list[Any]) -> None:
        partition = batch.partition
        for name, versions in batch.versions.items():
            table_key = self._hash(name, partition)
            for offset, key, row in versions:
                arguments += (table_key, _field(key), offset, _encoded(row), partition)
        for name, changes in batch.internal.items():
            table_key = self._hash(name, partition)
            for key, row in changes.items():
                arguments += (table_key, _field(key), "", _encoded(row), partition)

    def _mark(self, now: float) -> Mapping[int, int] | None:
        if not self._horizon.due(now):
            return None
        with self._as_view_failed():
            return self._horizon.mark(now, self._positions())

    def _create(self) -> None:
        """Sets what is missing, in one transaction: if two processes race, the first one wins."""
        first = {"topic_id": self._topic_id, "fingerprint": fingerprint(self.projection), "epoch": 0}
        for partition in range(self._partitions):
            first |= {f"position:{partition}": 0, f"horizon:{partition}": 0}
        with self._client.pipeline(transaction=True) as pipe:
            for name, value in first.items():
                pipe.hsetnx(self._meta, name, value)
            pipe.sadd(f"penstock:{{{self.projection.name}}}:generations", self.generation)
            pipe.hmget(self._meta, "topic_id", "fingerprint")
            topic_id, stored = pipe.execute()[-1]
        self._check_compatible(topic_id, stored)

    def _check_eviction(self) -> None:
        try:
            memory = self._client.config_get("maxmemory*")
        except redis.ResponseError:
            return  # a hosted server that does not allow CONFIG
        if int(memory.get("maxmemory", 0)) and memory.get("maxmemory-policy") != "noeviction":
            policy = memory.get("maxmemory-policy")
            raise ViewFailed(view=self.name, reason=f"the server evicts keys ({policy}); set noeviction")

    def _positions(self, meta: Mapping[str, str] | None = None) -> dict[int, int]:
        meta = self._client.hgetall(self._meta) if meta is None else meta
        return {p: int(meta.get(f"position:{p}", 0)) for p in range(self._partitions)}

    def _hash(self, table: str, partition: int) -> str:
        return f"{self._prefix}:{table}:{partition}"

    def _has_history(self, table: str) -> bool:
        return not table.startswith("olep_")


class RedisReader:
    def __init__(self, view: RedisView, position: Position, shown: Mapping[int, int]) -> None:
        self.position = position
        self._view = view
        self._shown = shown

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        return self._view.fetch(table, key, self._shown)

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for partition, position in self._shown.items():
            for row in self._view.fetch_all(table, partition, position):
                yield partition, row


def _claim(client: Any, meta_key: str, sign: int) -> dict[str, str]:
    """Sets a new epoch; returns all that is known of the generation."""
    return _pairs(client.eval(_CLAIM, 1, meta_key, sign))


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _field(key: Key) -> str:
    values = key if isinstance(key, tuple) else (key,)
    return json.dumps([each.hex() if isinstance(each, bytes) else each for each in values])


def _encoded(row: tuple[Any, ...] | None) -> str:
    if row is None:
        return _NONE
    return json.dumps(
        [base64.b64encode(value).decode() if isinstance(value, bytes) else value for value in row],
        separators=(",", ":"),
    )


def _row(table: Table[Any], text: str) -> tuple[Any, ...] | None:
    if text == _NONE:
        return None
    values = json.loads(text)
    return tuple(
        base64.b64decode(value) if column.type is bytes and value is not None else value
        for column, value in zip(table.columns, values)
    )


def _as_of(
    table: Table[Any], current: str | None, history: Sequence[str], position: int
) -> tuple[Any, ...] | None:
    for version in (current, *history):
        if version is not None:
            start, row = version.split(" ", 1)
            if int(start) < position:
                return _row(table, row)
    return None
