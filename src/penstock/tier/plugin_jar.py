"""Compile the brokers' plugin into a jar, reproducibly, and place it where brokers load it.

A checkout compiles the jar at set-up, next to this module; a wheel contains it. The jar names the sources it
was compiled from, so that a change of any of them is noticed. Brokers load a copy in the cache, whose name
has its digest: the class path, and with it the class-data archive, change with the plugin.
"""

from __future__ import annotations

import calendar
import hashlib
import io
import os
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors.tier import PluginNotCompiled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMPILE_SECONDS_MAX: Final = 120
JAVA_RELEASE: Final = 17
SOURCES_ENTRY: Final = "META-INF/penstock.sources"  # the digest of what the jar was compiled from

_HERE: Final = Path(__file__).parent
_WRITTEN: Final = (1980, 1, 1, 0, 0, 0)  # the oldest time a jar can store
_WRITTEN_AT: Final = calendar.timegm(_WRITTEN)


@dataclass(frozen=True, slots=True)
class PluginJar:
    name: str
    sources: Path  # the directory of its Java files
    file: Path  # where set-up puts the jar, and where it is in a wheel

    def source_files(self) -> list[Path]:
        return sorted(self.sources.glob("*.java"))

    def source_digest(self) -> str:
        digest = hashlib.sha256()
        for path in self.source_files():
            digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def is_current(self) -> bool:
        """Whether the jar exists and was compiled from these sources."""
        try:
            with zipfile.ZipFile(self.file) as jar:
                return jar.read(SOURCES_ENTRY).decode() == self.source_digest()
        except (OSError, KeyError, zipfile.BadZipFile):
            return False


TIER: Final = PluginJar("tier", _HERE / "plugin", _HERE / "penstock-tier.jar")


def compiler(java: Path) -> Path | None:
    """The Java compiler next to a Java runtime, else the one on the PATH."""
    beside = java.parent / "javac"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("javac")
    return Path(on_path) if on_path else None


def compile_jar(plugin: PluginJar, javac: Path, libraries: Iterable[Path]) -> bytes:
    """The jar's bytes: the same for the same sources and compiler."""
    class_path = os.pathsep.join(str(path) for path in libraries)
    with tempfile.TemporaryDirectory(prefix="penstock-tier-") as scratch:
        command = [
            str(javac), "--release", str(JAVA_RELEASE), "-Xlint:all", "-Werror", "-proc:none",
            "-g:source,lines", "-encoding", "UTF-8", "-d", scratch, "-cp", class_path,
            *map(str, plugin.source_files()),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PluginNotCompiled(reason=str(error)) from error
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"{javac} failed"]
            raise PluginNotCompiled(reason=errors[0])
        return _jar_of(Path(scratch), plugin.source_digest())


def ensure_compiled(plugin: PluginJar, java: Path, libraries: Sequence[Path]) -> bool:
    """Compile the jar if it is missing or older than its sources; false if there is no compiler for that."""
    if plugin.is_current():
        return True
    javac = compiler(java)
    if javac is None:
        return False
    _write(plugin.file, compile_jar(plugin, javac, libraries))
    return True


def place(plugin: PluginJar, directory: Path) -> Path:
    """Copy the jar into a directory of the cache, under a name that changes with its content."""
    content = plugin.file.read_bytes()
    path = directory / f"{plugin.name}-{hashlib.sha256(content).hexdigest()[:8]}.jar"
    if not path.exists() or path.read_bytes() != content:
        _write(path, content)
    return path


def _write(path: Path, content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        fresh = Path(scratch) / path.name
        fresh.write_bytes(content)
        # A class-data archive checks the modification time of every jar, so it is always the same.
        os.utime(fresh, (_WRITTEN_AT, _WRITTEN_AT))
        fresh.replace(path)


def _jar_of(classes: Path, digest: str) -> bytes:
    buffer = io.BytesIO()
    entries = {str(path.relative_to(classes)): path.read_bytes() for path in classes.rglob("*.class")}
    entries[SOURCES_ENTRY] = digest.encode()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as jar:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, _WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            jar.writestr(entry, entries[name])
    return buffer.getvalue()
