"""Reads Spark's checkpoint directory: which query it belongs to, and how far it got.

The layout is Spark's, unchanged since 2.0: a JSON file for the query, a text file for each planned and each
finished batch, and one for the offsets where the source started. Only the needed parts are read; nothing is
written. The directory may be on any file system that Spark reaches.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from penstock.model.errors.pipeline import CheckpointDamaged
from penstock.pipeline.lake.ledger import Checkpoint
from penstock.pipeline.spark.java import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class LocalDirectory:
    """A directory of this host. Reading raises OSError; a directory inside that is missing has no names."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")

    def names(self, name: str = "") -> list[str]:
        path = self.path / name
        return [each.name for each in path.iterdir()] if path.is_dir() else []

    def remove(self) -> None:
        shutil.rmtree(self.path)


@dataclass(frozen=True, slots=True)
class HadoopDirectory:
    """The same, reached through Hadoop: `hdfs://`, `s3a://`, `abfs://`."""

    session: SparkSession
    uri: str

    def __str__(self) -> str:
        return self.uri

    def _open(self, name: str) -> tuple[Any, Any]:
        path_of = java_class(self.session, "org.apache.hadoop.fs.Path")
        path = path_of(f"{self.uri}/{name}" if name else self.uri)
        context: Any = self.session._jsparkSession
        return path.getFileSystem(context.sessionState().newHadoopConf()), path

    def read(self, name: str) -> str:
        utils = java_class(self.session, "org.apache.commons.io.IOUtils")
        try:
            files, path = self._open(name)
            stream = files.open(path)
            try:
                return bytes(utils.toByteArray(stream)).decode()
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise OSError(str(error.java_exception)) from error

    def names(self, name: str = "") -> list[str]:
        files, path = self._open(name)
        return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def remove(self) -> None:
        files, path = self._open("")
        files.delete(path, True)


Directory = LocalDirectory | HadoopDirectory


def checkpoint_directory(session: SparkSession, location: str | Path) -> Directory:
    """A checkpoint's directory: a local path, or a URI that Spark can resolve."""
    if isinstance(location, str) and "://" in location:
        return HadoopDirectory(session, location)
    return LocalDirectory(Path(location))


def read_checkpoint(job: str, directory: Directory, topic: str) -> Checkpoint | None:
    """The checkpoint, or None if there is none yet. Raises CheckpointDamaged.

    Spark stores the query's id before it plans a batch. A directory with neither is what a crash or a full
    disk left of a first start, and counts as none."""
    names = directory.names()
    if not names:
        return None
    try:
        finished, planned = _newest(directory, "commits"), _newest(directory, "offsets")
        if "metadata" not in names and finished < 0 and planned < 0:
            return None
        query = query_of(directory)
        end = planned_offsets(directory, finished, topic) if finished >= 0 else {}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointDamaged(job=job, checkpoint=directory, reason=reason) from error
    if finished > planned:
        reason = f"batch {finished} is finished but was never planned"
        raise CheckpointDamaged(job=job, checkpoint=directory, reason=reason)
    return Checkpoint(query, finished, planned, end)


def query_of(directory: Directory) -> str:
    return str(json.loads(directory.read("metadata"))["id"])


def planned_offsets(directory: Directory, batch: int, topic: str) -> dict[int, int]:
    """The end offsets of a batch per partition; before the first batch, where the source started."""
    # Format version, batch metadata, then one line per source. The source's own file starts with a zero byte
    # and has no metadata.
    line = (
        directory.read("sources/0/0").splitlines()[1]
        if batch < 0
        else directory.read(f"offsets/{batch}").splitlines()[2]
    )
    return {int(partition): int(offset) for partition, offset in json.loads(line)[topic].items()}


def _newest(directory: Directory, name: str) -> int:
    return max((int(each) for each in directory.names(name) if each.isdecimal()), default=-1)
