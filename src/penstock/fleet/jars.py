"""Download Kafka's jars with Maven from the pinned POM, and verify them before every use.

They are in a cache shared by all homes of this user. The directory is named after the checksums of its
content, so jars of different versions never mix and each version is downloaded once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.fleet.launcher import launcher_path
from penstock.fleet.layout import make_directory
from penstock.model.errors.fleet import JarDamaged, JarsUnresolved, MavenMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KAFKA_VERSION = "4.3.1"
MAVEN_SECONDS_MAX = 600

POM_FILE = Path(__file__).with_name("pom.xml")
CHECKSUM_FILE = Path(__file__).with_name("jars.sha256")


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned set of jars: the POM to resolve, and the checksums to expect."""

    name: str
    version: str
    pom: Path
    lock: Path


@dataclass(frozen=True)
class Jars:
    """A directory with exactly the jars of the lock file, all verified."""

    directory: Path
    plugin: Path | None = None  # of tiered storage

    @cached_property
    def classpath(self) -> str:
        # Explicit and sorted: the class-data archive is valid only for exactly this string.
        listed = [*sorted(self.directory.glob("*.jar")), launcher_path(self.directory.parent)]
        listed += [self.plugin] if self.plugin else []
        return os.pathsep.join(str(path) for path in listed)


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """PENSTOCK_CACHE, or the operating system's cache directory."""
    if chosen := environment.get("PENSTOCK_CACHE"):
        return Path(chosen).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def jar_checksums(text: str | None = None) -> dict[str, str]:
    """File name → SHA-256, from the committed lock file."""
    lines = (text or CHECKSUM_FILE.read_text()).splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line)}


def jars_directory(cache: Path, pin: Pin | None = None) -> Path:
    pin = pin or Pin("kafka", KAFKA_VERSION, POM_FILE, CHECKSUM_FILE)
    digest = hashlib.sha256(pin.lock.read_bytes()).hexdigest()
    return cache / f"{pin.name}-{pin.version}-{digest[:8]}" / "jars"


def load_jars(cache: Path, pin: Pin | None = None) -> Jars:
    """The verified jars; downloads them if they are not in the cache."""
    directory = jars_directory(cache, pin)
    if not directory.exists():
        fetch_jars(cache, pin=pin)
    verify(directory, _expected(pin))
    return Jars(directory)


def _expected(pin: Pin | None) -> Mapping[str, str]:
    return jar_checksums() if pin is None else jar_checksums(pin.lock.read_text())


def verify(directory: Path, checksums: Mapping[str, str]) -> None:
    present = {path.name for path in directory.glob("*.jar")}
    for name, digest in checksums.items():
        if name not in present:
            raise JarDamaged(jar=name, state="missing", directory=directory)
        if _digest(directory / name) != digest:
            raise JarDamaged(jar=name, state="damaged", directory=directory)
    for name in sorted(present - checksums.keys()):
        raise JarDamaged(jar=name, state="unexpected", directory=directory)


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # a directory of that name, or a broken link
        return None


def fetch_jars(cache: Path, *, force: bool = False, pin: Pin | None = None) -> Path:
    """Resolve the jars with Maven into the cache, which changes only after all are verified."""
    directory = jars_directory(cache, pin)
    make_directory(directory.parent)
    with _only_one(directory.parent / "fetch.lock"):
        if directory.exists() and not force:
            return directory
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            fresh = resolve_jars(Path(scratch), pin)
            verify(fresh, _expected(pin))
            if directory.exists():
                shutil.rmtree(directory)
            fresh.rename(directory)
    return directory


def resolve_jars(scratch: Path, pin: Pin | None = None) -> Path:
    """Resolve the POM with Maven into a directory below `scratch`, without verification."""
    target = scratch / "jars"
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenMissing
    shutil.copy(POM_FILE if pin is None else pin.pom, scratch / "pom.xml")
    command = [maven, "-q", "-B", "-f", str(scratch / "pom.xml"), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={target}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MAVEN_SECONDS_MAX, check=False, cwd=scratch
        )
    except subprocess.TimeoutExpired as error:
        raise JarsUnresolved(reason=f"Maven did not finish within {MAVEN_SECONDS_MAX} s") from error
    except OSError as error:
        raise JarsUnresolved(reason=f"{maven}: {error.strerror}") from error
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        reason = errors[0].removeprefix("[ERROR] ") if errors else f"exit code {done.returncode}"
        raise JarsUnresolved(reason=reason)
    return target


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
