"""The Java runtime: finding it, checking it, and the command lines for it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.fleet.launcher import METRICS_PROPERTY
from penstock.fleet.spec import Jit
from penstock.model.errors.fleet import JavaMissing, JavaTooOld

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.fleet.jars import Jars

JAVA_VERSION_MIN = 17
G1_HEAP_MB_MIN = 2048  # below this the serial collector is smaller and not slower

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Java:
    executable: Path
    version: str  # as it calls itself, such as 17.0.15

    @property
    def major(self) -> int:
        """17 of 17.0.15, and 8 of 1.8.0_392, as it was called then."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]

    @property
    def fingerprint(self) -> str:
        """Differs for any two runtimes that must not share a class-data archive."""
        return hashlib.sha256(f"{self.executable}\0{self.version}".encode()).hexdigest()[:8]


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """JAVA_HOME first, then the PATH; too old is as bad as missing, but another error."""
    home = environment.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else shutil.which("java", path=environment.get("PATH"))
    if found is None or not os.access(found, os.X_OK) or Path(found).is_dir():
        looked = f"JAVA_HOME={home}" if home else "the PATH"
        raise JavaMissing(looked=looked, minimum=JAVA_VERSION_MIN)
    executable = Path(found).resolve()
    java = Java(executable, _version(executable))
    if java.major < JAVA_VERSION_MIN:
        raise JavaTooOld(java=executable, version=java.version, minimum=JAVA_VERSION_MIN)
    return java


def _version(executable: Path) -> str:
    # The `release` file answers in microseconds what starting a JVM answers in a tenth of a second.
    release = executable.parent.parent / "release"
    told = release.read_text() if release.exists() else ""
    if match := re.search(r'^JAVA_VERSION="(\d[^"]*)"', told, re.MULTILINE):
        return match[1]
    try:
        said = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "which does not answer"
        raise JavaMissing(looked=f"{executable} ({reason})", minimum=JAVA_VERSION_MIN) from error
    match = re.search(r'version "(\d[^"]*)"', said.stderr + said.stdout)
    if match is None:
        raise JavaMissing(looked=f"{executable} (which does not tell its version)", minimum=JAVA_VERSION_MIN)
    return match[1]


def jvm_flags(*, heap_mb: int, jit: Jit, archive: Path | None) -> list[str]:
    flags = [
        "-Xms64m",
        f"-Xmx{heap_mb}m",
        "-Xss512k",
        "-Djava.awt.headless=true",
        "-XX:+ExitOnOutOfMemoryError",
    ]
    flags += ["-XX:+UseSerialGC"] if heap_mb < G1_HEAP_MB_MIN else ["-XX:+UseG1GC"]
    if jit is Jit.QUICK:
        flags += ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=64m"]
    if archive is not None:
        flags += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return flags


def log_flags(directory: Path) -> list[str]:
    return [
        f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}",
        f"-Dpenstock.log.directory={directory}",
    ]


def metrics_flag(address: str) -> str:
    """Where the exporter listens, for the launcher to tell it."""
    return f"-D{METRICS_PROPERTY}={address}:{_HERE / 'jmx.yaml'}"


def command(java: Java, jars: Jars, flags: Sequence[str], main: str, *arguments: str) -> list[str]:
    return [str(java.executable), *flags, "-cp", jars.classpath, main, *arguments]


def argument_file(words: Sequence[str]) -> str:
    """The same words in the syntax of `java @file`, for arguments that `ps` must not show."""
    quoted = ('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words)
    return "\n".join(quoted) + "\n"
