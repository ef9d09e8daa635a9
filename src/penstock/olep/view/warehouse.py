"""Views as Parquet files, read with DuckDB or anything else that reads Parquet.

Every version of every row is a line of a file, with the partition, the offset it began at and
whether it says that the row is gone. So the whole past can be asked for, at any position. A commit
writes new files and then one small file, `current.json`, which names all files that count and the
position they stand at; it is replaced atomically, so a reader finds one commit or the next. Small
files are merged in tiers, sixteen into one.

Made for append-only tables: rows that a projection reads back (`state.get`) are looked up in the
files when they are not in memory, which is slow.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import faults
from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.views import ViewFailed, ViewMissing, ViewTaken
from penstock.olep.position import Position
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    LAYER_TABLES,
    check_kept,
    check_made_for,
    check_rows,
    fingerprint,
)
from penstock.olep.view.pool import Pool

try:
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:  # the store is an extra
    module = error.name or "duckdb"
    raise ExtraMissing(what="a view as Parquet files", module=module, extra="olep-warehouse") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.olep.table import Key, Table
    from penstock.olep.view import Stretch
    from penstock.olep.view.projection import Projection

MERGED: Final = 16  # files of a tier that become one of the next
GRACE_SECONDS: Final = 60.0  # how long merged files stay for readers that have begun
_TYPES: Final = {int: pa.int64(), str: pa.string(), bytes: pa.binary(), float: pa.float64()}
_SQL_TYPES: Final = {int: "BIGINT", str: "VARCHAR", bytes: "BLOB", float: "DOUBLE"}


@dataclass(frozen=True, slots=True)
class WarehouseViews:
    """Directories `<view>.<generation>` below `directory`; `<view>.serving` names the one to read."""

    directory: Path

    def open(
        self, projection: Projection, topic_id: str, partitions: int, *, generation: int
    ) -> WarehouseView:
        return WarehouseView(
            self.path(projection.name, generation), projection, topic_id, partitions, generation
        )

    def path(self, view: str, generation: int) -> Path:
        return self.directory / f"{view}.{generation}"

    def generations(self, view: str) -> list[int]:
        names = [each.name.rpartition(".") for each in self.directory.glob(f"{view}.*") if each.is_dir()]
        return sorted(int(number) for name, _, number in names if name == view and number.isdecimal())

    def serving(self, view: str) -> int | None:
        try:
            return int((self.directory / f"{view}.serving").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def serve(self, view: str, generation: int) -> None:
        if generation not in self.generations(view):
            raise ViewMissing(view=view, generation=generation)
        _replace(self.directory / f"{view}.serving", str(generation))

    def drop(self, view: str, generation: int) -> None:
        shutil.rmtree(self.path(view, generation), ignore_errors=True)


class WarehouseView:
    def __init__(
        self, path: Path, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        self.path = path
        self.name = str(path)
        self.generation = generation
        self.projection = projection
        self._topic_id = topic_id
        self._tables = {table.name: table for table in projection.tables}
        self._epoch = 0
        self._retired: list[tuple[float, str]] = []
        self._pool: Pool[Any] = Pool(lambda _: duckdb.connect(":memory:", config={"threads": 1}))
        layer: dict[str, Any] = {table.name: {} for table in LAYER_TABLES}
        first = {
            "topic_id": topic_id,
            "made": fingerprint(projection),
            "epoch": 0,
            "positions": dict.fromkeys(map(str, range(partitions)), 0),
            "files": {name: [] for name in self._tables},
            "layer": {str(p): layer for p in range(partitions)},
        }
        with _named(self.name):
            path.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if not (path / "current.json").exists():
                    _replace(path / "current.json", json.dumps(first))
            found = self._current()
        check_made_for(self.name, (found["topic_id"], found["made"]), projection, topic_id)

    def claim(self) -> dict[int, int]:
        with _named(self.name), self._locked():
            current = self._current()
            self._epoch = current["epoch"] = current["epoch"] + 1
            _replace(self.path / "current.json", json.dumps(current))
            named = {name for names in current["files"].values() for name in names}
            for file in self.path.glob("*.parquet"):
                if file.name not in named and time.time() - file.stat().st_mtime > GRACE_SECONDS:
                    file.unlink(missing_ok=True)
        return {int(p): at for p, at in current["positions"].items()}

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        if table.name not in self._tables:
            found = self._current()["layer"][str(partition)][table.name].get(_field(key))
            return None if found is None else tuple(found)
        with self.reading() as reader:
            return next((row for p, row in reader.get(table, key) if p == partition), None)

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        if table.name not in self._tables:
            return [tuple(row) for row in self._current()["layer"][str(partition)][table.name].values()]
        with self.reading() as reader:
            return [row for p, row in reader.rows(table) if p == partition]

    def commit(self, stretches: Sequence[Stretch]) -> None:
        faults.reach(COMMIT_BEFORE)
        check_rows(stretches, self._tables)
        with _named(self.name), self._locked():
            current = self._current()
            self._check(current, stretches)
            for name, table in self._tables.items():
                if lines := _lines(table, name, stretches):
                    current["files"][name] = self._written(table, current["files"][name], lines)
            for stretch in stretches:
                current["positions"][str(stretch.partition)] = stretch.position
                for name, changes in stretch.layer.items():
                    layer = current["layer"][str(stretch.partition)][name]
                    for key, row in changes.items():
                        if row is None:
                            layer.pop(_field(key), None)
                        else:
                            layer[_field(key)] = list(row)
            faults.reach(COMMIT_INSIDE)
            _replace(self.path / "current.json", json.dumps(current))
            self._tidy()

    def position(self) -> Position:
        with _named(self.name):
            positions = self._current()["positions"]
        return Position({self._topic_id: {int(p): at for p, at in positions.items()}})

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[WarehouseReader]:
        with _named(self.name):
            current = self._current()
            shown = {int(p): at for p, at in current["positions"].items()}
            if cut is not None:
                asked = cut.of_topic(self.name, self._topic_id)
                check_kept(self.name, asked, shown, {})
                shown = {p: asked.get(p, 0) for p in shown}
            with self._pool.connection("") as db:
                for name, table in self._tables.items():
                    files = [str(self.path / file) for file in current["files"][name]]
                    db.execute(_relation(table, files, shown))
                yield WarehouseReader(db, Position({self._topic_id: shown}))

    def close(self) -> None:
        self._pool.close()

    def _check(self, current: Mapping[str, Any], stretches: Sequence[Stretch]) -> None:
        if current["epoch"] != self._epoch:
            raise ViewTaken(view=self.name, epoch=self._epoch, actual=current["epoch"])
        for stretch in stretches:
            known = current["positions"][str(stretch.partition)]
            if stretch.position < known:
                raise ViewTaken(view=self.name, epoch=self._epoch, actual=f"position {known}")

    def _written(self, table: Table[Any], files: list[str], lines: list[tuple[Any, ...]]) -> list[str]:
        """Writes lines as a new file, and merges tiers that are full. The names that count now."""
        columns = [*zip(*lines, strict=True)]
        fresh = pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, _schema(table))],
            schema=_schema(table),
        )
        files = [*files, self._file(table, 0, fresh)]
        tier = 0
        while len(full := [name for name in files if _tier(name) == tier]) >= MERGED:
            merged = pa.concat_tables([pq.read_table(self.path / name) for name in full])
            files = [name for name in files if name not in full]
            files.append(self._file(table, tier + 1, merged))
            self._retired += [(time.monotonic(), name) for name in full]
            tier += 1
        return files

    def _file(self, table: Table[Any], tier: int, content: Any) -> str:
        name = f"{table.name}-{tier}-{uuid.uuid4().hex}.parquet"
        pq.write_table(content, self.path / name, compression="zstd")
        return name

    def _tidy(self) -> None:
        now = time.monotonic()
        while self._retired and now - self._retired[0][0] > GRACE_SECONDS:
            (self.path / self._retired.pop(0)[1]).unlink(missing_ok=True)

    def _current(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "current.json").read_text(encoding="utf-8"))
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Held for the moment of a commit; who may commit is a matter of epochs."""
        with (self.path / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class WarehouseReader:
    """Rows as of a position. `query` takes DuckDB's SQL on the tables of the projection."""

    def __init__(self, db: Any, position: Position) -> None:
        self.position = position
        self._db = db

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        where = " and ".join(f'"{name}" = ?' for name in table.key)
        bound = key if len(table.key) > 1 else (key,)
        return self._found(table, f"where {where}", bound)

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        return self._found(table, "", ())

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._db.execute(sql, [*values]).fetchall()
        return found

    def _found(
        self, table: Table[Any], where: str, values: Sequence[Any]
    ) -> list[tuple[int, tuple[Any, ...]]]:
        columns = ", ".join(f'"{column.name}"' for column in table.columns)
        rows = self.query(f'select olep_partition, {columns} from "{table.name}" {where}', values)
        return [(row[0], row[1:]) for row in rows]


def _schema(table: Table[Any]) -> Any:
    own = [("olep_partition", pa.int32()), ("olep_from", pa.int64()), ("olep_removed", pa.bool_())]
    return pa.schema([*((column.name, _TYPES[column.type]) for column in table.columns), *own])


def _lines(table: Table[Any], name: str, stretches: Sequence[Stretch]) -> list[tuple[Any, ...]]:
    lines: dict[Any, tuple[Any, ...]] = {}
    nulls = (None,) * (len(table.columns) - len(table.key))
    for stretch in stretches:
        for offset, key, row in stretch.versions.get(name, ()):
            shown = row if row is not None else (*(key if len(table.key) > 1 else (key,)), *nulls)
            # Of several versions that one event made, the last one counts.
            lines[stretch.partition, key, offset] = (*shown, stretch.partition, offset, row is None)
    return [*lines.values()]


def _relation(table: Table[Any], files: Sequence[str], shown: Mapping[int, int]) -> str:
    """A view on the files that shows a table as of a position."""
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    keys = ", ".join(f'"{name}"' for name in table.key)
    head = f'create or replace temp view "{table.name}" as'
    if not files:
        nothing = ", ".join(f'null::{_SQL_TYPES[c.type]} as "{c.name}"' for c in table.columns)
        return (
            f"{head} select {nothing}, null::INTEGER as olep_partition, null::BIGINT as olep_from where false"
        )
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
    within = " or ".join(f"(olep_partition = {p} and olep_from < {at})" for p, at in shown.items())
    own = "olep_partition, olep_from, olep_removed"
    source = f"select {columns}, {own} from read_parquet([{names}]) where {within}"
    if not table.append_only:
        source += (
            f" qualify row_number() over (partition by {keys}, olep_partition order by olep_from desc) = 1"
        )
    return f"{head} select {columns}, olep_partition, olep_from from ({source}) where not olep_removed"


def _tier(name: str) -> int:
    return int(name.rsplit("-", 2)[1])


def _field(key: Key) -> str:
    return json.dumps(key)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    half = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with half.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


@contextmanager
def _named(view: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, duckdb.Error, ValueError) as error:
        raise ViewFailed(view=view, reason=error) from error
