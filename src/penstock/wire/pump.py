"""The compiled pump: the data path's modules as machine code, where set-up has made it.

One source: `tools.pump` compiles the modules named here with mypyc, into a folder beside the packages. A
package that holds such modules calls `prefer` before anything is imported from it; from then on the
compiled module is found before its source. Code that was compiled from other sources than those at
hand is never run: then, and where nothing was compiled, the sources are, and behave the same.
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

# What a frame passes through. Classes here have no attributes but those they declare, and no base from
# outside: mypyc makes structs of them.
MODULES: Final = (
    "penstock.wire.passing",
    "penstock.wire.splice",
    "penstock.gateway.metering",
    "penstock.gateway.repeats",
    "penstock.gateway.session",
    "penstock.gateway.throttled",
    "penstock.gateway.topics",
)
VARIABLE: Final = "PENSTOCK_PUMP"  # "python": run the sources, whatever was compiled
SOURCES_FILE: Final = "sources"  # what it was compiled from: size, time, digest and path of each
FAILED_FILE: Final = "failed"  # what the compiler said, if it did not succeed
PACKAGE: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = PACKAGE / ".compiled" / (sys.implementation.cache_tag or "unknown")


class Pump(StrEnum):
    COMPILED = "compiled"
    PYTHON = "plain Python"
    STALE = "plain Python: what was compiled is of other sources"


def state_of(folder: Path, package: Path = PACKAGE) -> Pump:
    """Whether the code in a folder is of the sources of this package."""
    try:
        lines = (folder / SOURCES_FILE).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):  # the latter where the package is read from an archive
        return Pump.PYTHON
    return Pump.COMPILED if all(_is_same(line, package) for line in lines) else Pump.STALE


@cache
def state() -> Pump:
    """What this process runs."""
    return Pump.PYTHON if os.environ.get(VARIABLE) == "python" else state_of(FOLDER)


def prefer(package: str, path: MutableSequence[str]) -> None:
    """For a package's own `__path__`: compiled modules first."""
    if state() is Pump.COMPILED:
        path.insert(0, str(FOLDER.joinpath(*package.split("."))))


def described(sources: Iterable[Path], package: Path = PACKAGE) -> str:
    """The text of `SOURCES_FILE`."""
    lines = []
    for source in sources:
        found = source.stat()
        lines.append(f"{found.st_size} {found.st_mtime_ns} {_digest(source)} {source.relative_to(package)}")
    return "".join(line + "\n" for line in lines)


def _is_same(line: str, package: Path) -> bool:
    size, time_ns, digest, name = line.split(" ", 3)
    source = package / name
    try:
        found = source.stat()
    except OSError:
        return False
    # Every process asks, so a file that nobody touched is not read again.
    return found.st_size == int(size) and (found.st_mtime_ns == int(time_ns) or _digest(source) == digest)


def _digest(source: Path) -> str:
    return blake2b(source.read_bytes(), digest_size=16).hexdigest()
