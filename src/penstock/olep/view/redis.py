"""Views in Valkey or Redis: a cache that knows its position, and keeps a short past.

A table of a partition is one hash: field → the offset the row began at, and the row as JSON or `-` where
there is none. Versions that were replaced lie in a sorted set for each row, by that offset. One script
checks the epoch, writes rows and moves positions, so a commit is whole or is not. A server that lost its
memory has lost the position with it, and the view is built again from the log.

Every read is as of a position, also the plain ones: they take the position of when they begin.
Set `maxmemory-policy noeviction`: a cache that forgets rows by itself cannot say what it shows.
"""

from __future__ import annotations

import base64
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import faults
from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.views import SnapshotGone, ViewFailed, ViewMissing, ViewTaken
from penstock.olep.position import Position
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    KEEP_SECONDS,
    LAYER_TABLES,
    Horizon,
    check_kept,
    check_made_for,
    check_rows,
    fingerprint,
)

try:
    import redis
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="a view in Valkey or Redis", module="redis", extra="olep-redis") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.olep.table import Key, Table
    from penstock.olep.view import Stretch
    from penstock.olep.view.projection import Projection

CALL_SECONDS: Final = 10.0
SWEEP_MAX: Final = 2000  # rows whose past is forgotten in one commit
TRIM_EVERY: Final = 64  # versions after which the past of a row that keeps changing is trimmed
_NONE: Final = "-"

# KEYS: meta. ARGV: epoch, number of stretches, then for each of them partition, position, horizon
# ('' for none); then for each change hash, field, offset ('' for a row without a past), row ('-' for none).
_COMMIT: Final = """
local meta = KEYS[1]
local epoch = redis.call('HGET', meta, 'epoch')
if not epoch then return {'lost'} end
if epoch ~= ARGV[1] then return {'taken', epoch} end
local at, count, horizons = 3, tonumber(ARGV[2]), {}
for i = 1, count do
  local partition, position = ARGV[at], tonumber(ARGV[at + 1])
  local known = tonumber(redis.call('HGET', meta, 'position:' .. partition))
  if position < known then return {'taken', 'position ' .. known} end
  redis.call('HSET', meta, 'position:' .. partition, ARGV[at + 1])
  if ARGV[at + 2] ~= '' then redis.call('HSET', meta, 'horizon:' .. partition, ARGV[at + 2]) end
  horizons[partition] = tonumber(redis.call('HGET', meta, 'horizon:' .. partition))
  at = at + 3
end
while at <= #ARGV do
  local hash, field, offset, row, partition = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  at = at + 5
  if offset == '' then
    if row == '-' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, row) end
  else
    local before = redis.call('HGET', hash, field)
    if before then
      local began = string.match(before, '^%d+')
      if began ~= offset then
        local past = hash .. ':past:' .. field
        redis.call('ZADD', past, began, before)
        if redis.call('ZCARD', past) % TRIM == 0 then
          local below = '(' .. horizons[partition]
          local oldest = redis.call('ZREVRANGEBYSCORE', past, below, '-inf', 'LIMIT', 0, 1)
          if oldest[1] then
            redis.call('ZREMRANGEBYSCORE', past, '-inf', '(' .. string.match(oldest[1], '^%d+'))
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
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', '(' .. horizon, 'LIMIT', 0, SWEEP)) do
    local cut = string.find(place, '\\n', 1, true)
    local hash, field = string.sub(place, 1, cut - 1), string.sub(place, cut + 1)
    redis.call('DEL', hash .. ':past:' .. field)
    local now = redis.call('HGET', hash, field)
    if now and string.sub(now, -2) == ' -' then redis.call('HDEL', hash, field) end
    redis.call('ZREM', ended, place)
  end
end
return {'done'}
""".replace("SWEEP", str(SWEEP_MAX)).replace("TRIM", str(TRIM_EVERY))


@dataclass(frozen=True, slots=True)
class RedisViews:
    """`url` as redis-py takes it. Keys begin with `penstock:{<view>}`: a cluster keeps a view together."""

    url: str
    keep_seconds: float = KEEP_SECONDS

    def open(self, projection: Projection, topic_id: str, partitions: int, *, generation: int) -> RedisView:
        return RedisView(self, projection, topic_id, partitions, generation)

    def client(self) -> Any:
        # Untyped: its methods are declared for waiting and for asyncio at once.
        return redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=CALL_SECONDS)

    def generations(self, view: str) -> list[int]:
        with _named(view), self.client() as client:
            return sorted(int(each) for each in client.smembers(f"penstock:{{{view}}}:generations"))

    def serving(self, view: str) -> int | None:
        with _named(view), self.client() as client:
            found = client.get(f"penstock:{{{view}}}:serving")
        return None if found is None else int(found)

    def serve(self, view: str, generation: int) -> None:
        if generation not in self.generations(view):
            raise ViewMissing(view=view, generation=generation)
        with _named(view), self.client() as client:
            client.set(f"penstock:{{{view}}}:serving", generation)

    def drop(self, view: str, generation: int) -> None:
        with _named(view), self.client() as client:
            client.srem(f"penstock:{{{view}}}:generations", generation)
            for key in client.scan_iter(f"penstock:{{{view}}}:{generation}:*", count=1000):
                client.unlink(key)


class RedisView:
    def __init__(
        self, views: RedisViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        self.name = f"view {projection.name} {generation} in Redis"
        self.generation = generation
        self.projection = projection
        self._topic_id = topic_id
        self._partitions = partitions
        self._epoch = 0
        self._horizon = Horizon(views.keep_seconds)
        self._tables = {table.name: table for table in (*projection.tables, *LAYER_TABLES)}
        self._at = f"penstock:{{{projection.name}}}:{generation}"
        self._meta = f"{self._at}:meta"
        self._client = views.client()
        self._script = self._client.register_script(_COMMIT)
        with _named(self.name):
            self._create()

    def claim(self) -> dict[int, int]:
        with _named(self.name):
            self._check_eviction()
            self._create()  # a server that lost its memory since the view was opened
            self._epoch = self._client.hincrby(self._meta, "epoch", 1)
            return self._positions(self._client.hgetall(self._meta))

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        with _named(self.name):
            found = self._client.hget(self._hash(table.name, partition), _field(key))
        if found is None:
            return None
        return _row(table, found.split(" ", 1)[1] if self._has_past(table.name) else found)

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        with _named(self.name):
            values = self._client.hvals(self._hash(table.name, partition))
        past = self._has_past(table.name)
        found = [_row(table, value.split(" ", 1)[1] if past else value) for value in values]
        return [row for row in found if row is not None]

    def commit(self, stretches: Sequence[Stretch]) -> None:
        faults.reach(COMMIT_BEFORE)
        check_rows(stretches, self._tables)
        gone = self._mark(stretches, time.monotonic())
        words: list[Any] = [self._epoch, len(stretches)]
        for stretch in stretches:
            horizon = "" if gone is None else gone.get(stretch.partition, "")
            words += (stretch.partition, stretch.position, horizon)
        for stretch in stretches:
            self._changes(stretch, words)
        faults.reach(COMMIT_INSIDE)
        with _named(self.name):
            told, *detail = self._script(keys=[self._meta], args=words)
        if told == "lost":
            raise ViewFailed(view=self.name, reason="the server has lost the view; it is built again")
        if told == "taken":
            raise ViewTaken(view=self.name, epoch=self._epoch, actual=detail[0])

    def position(self) -> Position:
        with _named(self.name):
            return Position({self._topic_id: self._positions(self._client.hgetall(self._meta))})

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[RedisReader]:
        with _named(self.name):
            meta = self._client.hgetall(self._meta)
        positions = self._positions(meta)
        if cut is not None:
            asked = cut.of_topic(self.name, self._topic_id)
            horizons = {p: int(meta.get(f"horizon:{p}", 0)) for p in positions}
            check_kept(self.name, asked, positions, horizons)
            positions = {p: asked.get(p, 0) for p in positions}
        yield RedisReader(self, Position({self._topic_id: positions}), positions)

    def close(self) -> None:
        self._client.close()

    def fetch(
        self, table: Table[Any], key: Key, shown: Mapping[int, int]
    ) -> list[tuple[int, tuple[Any, ...]]]:
        """A row of each partition as of a position, and a look at how far back rows are kept."""
        field = _field(key)
        with _named(self.name), self._client.pipeline(transaction=True) as pipe:
            for partition, cut in shown.items():
                place = self._hash(table.name, partition)
                pipe.hget(place, field)
                pipe.zrevrangebyscore(f"{place}:past:{field}", f"({cut}", "-inf", start=0, num=1)
            pipe.hgetall(self._meta)
            *found, meta = pipe.execute()
        self._check_kept(meta, shown)
        rows = []
        for number, (partition, cut) in enumerate(shown.items()):
            now, past = found[2 * number : 2 * number + 2]
            row = _as_of(table, now, past, cut)
            if row is not None:
                rows.append((partition, row))
        return rows

    def fetch_all(self, table: Table[Any], partition: int, cut: int) -> list[tuple[Any, ...]]:
        """All rows of a partition as of a position."""
        place = self._hash(table.name, partition)
        with _named(self.name):
            current: dict[str, str] = self._client.hgetall(place)
            later = [field for field, value in current.items() if int(value.split(" ", 1)[0]) >= cut]
            past: dict[str, list[str]] = {}
            with self._client.pipeline(transaction=True) as pipe:
                for field in later:
                    pipe.zrevrangebyscore(f"{place}:past:{field}", f"({cut}", "-inf", start=0, num=1)
                pipe.hgetall(self._meta)
                *found, meta = pipe.execute()
            past = dict(zip(later, found, strict=True))
        self._check_kept(meta, {partition: cut})
        rows = [_as_of(table, value, past.get(field, []), cut) for field, value in current.items()]
        return [row for row in rows if row is not None]

    def _check_kept(self, meta: Mapping[str, str], shown: Mapping[int, int]) -> None:
        """The past may have been forgotten while it was read."""
        for partition, cut in shown.items():
            if (horizon := int(meta.get(f"horizon:{partition}", 0))) > cut:
                kept = f"{horizon} and later of partition {partition}, asked for {cut}"
                raise SnapshotGone(view=self.name, kept=kept)

    def _changes(self, stretch: Stretch, words: list[Any]) -> None:
        partition = stretch.partition
        for name, versions in stretch.versions.items():
            place, table = self._hash(name, partition), self._tables[name]
            for offset, key, row in versions:
                words += (place, _field(key), offset, _encoded(table, row), partition)
        for name, changes in stretch.layer.items():
            place, table = self._hash(name, partition), self._tables[name]
            for key, row in changes.items():
                words += (place, _field(key), "", _encoded(table, row), partition)

    def _mark(self, stretches: Sequence[Stretch], now: float) -> Mapping[int, int] | None:
        if not self._horizon.due(now):
            return None
        with _named(self.name):
            positions = self._positions(self._client.hgetall(self._meta))
        return self._horizon.mark(now, positions)

    def _create(self) -> None:
        """The topic id is written first and last of all decides: who loses the race finds the other's."""
        first = {"topic_id": self._topic_id, "made": fingerprint(self.projection), "epoch": 0}
        for partition in range(self._partitions):
            first |= {f"position:{partition}": 0, f"horizon:{partition}": 0}
        with self._client.pipeline(transaction=True) as pipe:
            for name, value in first.items():
                pipe.hsetnx(self._meta, name, value)
            pipe.sadd(f"penstock:{{{self.projection.name}}}:generations", self.generation)
            pipe.hmget(self._meta, "topic_id", "made")
            topic_id, made = pipe.execute()[-1]
        check_made_for(self.name, (topic_id, made), self.projection, self._topic_id)

    def _check_eviction(self) -> None:
        try:
            memory = self._client.config_get("maxmemory*")
        except redis.ResponseError:
            return  # a hosted server that does not tell
        if int(memory.get("maxmemory", 0)) and memory.get("maxmemory-policy") != "noeviction":
            policy = memory.get("maxmemory-policy")
            raise ViewFailed(view=self.name, reason=f"the server evicts keys ({policy}); set noeviction")

    def _positions(self, meta: Mapping[str, str]) -> dict[int, int]:
        return {p: int(meta.get(f"position:{p}", 0)) for p in range(self._partitions)}

    def _hash(self, table: str, partition: int) -> str:
        return f"{self._at}:{table}:{partition}"

    def _has_past(self, table: str) -> bool:
        return not table.startswith("olep_")


class RedisReader:
    def __init__(self, view: RedisView, position: Position, shown: Mapping[int, int]) -> None:
        self.position = position
        self._view = view
        self._shown = shown

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        return self._view.fetch(table, key, self._shown)

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for partition, cut in self._shown.items():
            for row in self._view.fetch_all(table, partition, cut):
                yield partition, row


@contextmanager
def _named(view: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise ViewFailed(view=view, reason=error) from error


def _field(key: Key) -> str:
    return json.dumps([each.hex() if isinstance(each, bytes) else each for each in _tuple(key)])


def _tuple(key: Key) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _encoded(table: Table[Any], row: tuple[Any, ...] | None) -> str:
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


def _as_of(table: Table[Any], now: str | None, past: Sequence[str], cut: int) -> tuple[Any, ...] | None:
    for version in (now, *past):
        if version is not None:
            began, row = version.split(" ", 1)
            if int(began) < cut:
                return _row(table, row)
    return None
