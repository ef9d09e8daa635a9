"""Run the data path of the gateway and of OLEP as machine code where `make setup` has compiled it.

`tools.compile_data_path` compiles the modules listed here with mypyc into a folder inside the package.
A package with such modules calls `prefer_compiled` before anything is imported from it. Its imports then
pick the compiled module over the source. Compiled code is used only if it matches the current sources;
otherwise the sources run, with the same behaviour.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence

# The modules every frame of a connection, or every event of a log, passes through. mypyc turns their classes
# into structs, so a class declares all of its attributes and has no base class from another package.
MODULES: Final = (
    "penstock.wire.fetch_fast_path",
    "penstock.wire.splice",
    "penstock.gateway.limits.ack_ranges",
    "penstock.gateway.limits.metering",
    "penstock.gateway.connection.connection",
    "penstock.gateway.connection.fast_path",
    "penstock.gateway.connection.in_flight",
    "penstock.gateway.connection.stages",
    "penstock.gateway.connection.throttle",
    "penstock.gateway.process.session",
    "penstock.gateway.tenancy.topic_ids",
    "penstock.olep.deduplication",
    "penstock.olep.encoding",
    "penstock.olep.fold",
    "penstock.olep.outbox",
    "penstock.olep.partitioner",
    "penstock.olep.rows",
)
VARIABLE: Final = "PENSTOCK_DATA_PATH"  # "python" runs the sources even if compiled code is there
SOURCES_FILE: Final = "sources"  # size, modification time, digest and path of each compiled source
FAILED_FILE: Final = "failed"  # the compiler's output if it failed
PACKAGE: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = PACKAGE / ".compiled" / (sys.implementation.cache_tag or "unknown")


class DataPath(StrEnum):
    """Which variant of the data path's modules runs."""

    COMPILED = "compiled"
    PYTHON = "plain Python"
    STALE = "plain Python: the compiled code does not match its sources"


def data_path_in(folder: Path, package: Path = PACKAGE) -> DataPath:
    """Whether a folder holds code compiled from the current sources of `package`."""
    try:
        lines = (folder / SOURCES_FILE).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):  # the latter if the package is imported from an archive
        return DataPath.PYTHON
    return DataPath.COMPILED if all(_is_unchanged(line, package) for line in lines) else DataPath.STALE


@cache
def active_data_path() -> DataPath:
    """The variant this process runs."""
    return DataPath.PYTHON if os.environ.get(VARIABLE) == "python" else data_path_in(FOLDER)


def prefer_compiled(package: str, path: MutableSequence[str]) -> None:
    """Put the folder of compiled modules first in a package's `__path__`."""
    if active_data_path() is DataPath.COMPILED:
        path.insert(0, str(FOLDER.joinpath(*package.split("."))))


def source_listing(sources: Iterable[Path], package: Path = PACKAGE) -> str:
    """The text of `SOURCES_FILE`."""
    lines = []
    for source in sources:
        status = source.stat()
        lines.append(f"{status.st_size} {status.st_mtime_ns} {_digest(source)} {source.relative_to(package)}")
    return "".join(line + "\n" for line in lines)


def _is_unchanged(line: str, package: Path) -> bool:
    size, time_ns, digest, name = line.split(" ", 3)
    source = package / name
    try:
        status = source.stat()
    except OSError:
        return False
    # Every process checks this at start, so a file with the same size and time is not read.
    return status.st_size == int(size) and (status.st_mtime_ns == int(time_ns) or _digest(source) == digest)


def _digest(source: Path) -> str:
    return blake2b(source.read_bytes(), digest_size=16).hexdigest()
