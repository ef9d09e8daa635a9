"""Find a Java runtime, check its version, and build its command lines."""

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
    version: str  # as it reports it, such as 17.0.15

    @property
    def major(self) -> int:
        """17 for 17.0.15, and 8 for the old form 1.8.0_392."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]

    @property
    def fingerprint(self) -> str:
        """Different for runtimes that must not share a class-data archive."""
        return hashlib.sha256(f"{self.executable}\0{self.version}".encode()).hexdigest()[:8]


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java of JAVA_HOME if set, else of the PATH; an error if it is missing or too old."""
    home = environment.get("JAVA_HOME")
    path = Path(home) / "bin" / "java" if home else shutil.which("java", path=environment.get("PATH"))
    if path is None or not os.access(path, os.X_OK) or Path(path).is_dir():
        reason = f"JAVA_HOME={home} has no bin/java" if home else "there is no `java` on the PATH"
        raise JavaMissing(reason=reason, minimum=JAVA_VERSION_MIN)
    executable = Path(path).resolve()
    java = Java(executable, _version(executable))
    if java.major < JAVA_VERSION_MIN:
        raise JavaTooOld(java=executable, version=java.version, minimum=JAVA_VERSION_MIN)
    return java


def _version(executable: Path) -> str:
    # Reading the `release` file takes microseconds, starting a JVM a tenth of a second.
    release = executable.parent.parent / "release"
    text = release.read_text() if release.exists() else ""
    if match := re.search(r'^JAVA_VERSION="(\d[^"]*)"', text, re.MULTILINE):
        return match[1]
    try:
        command = [str(executable), "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not respond"
        raise JavaMissing(reason=f"{executable}: {reason}", minimum=JAVA_VERSION_MIN) from error
    match = re.search(r'version "(\d[^"]*)"', done.stderr + done.stdout)
    if match is None:
        raise JavaMissing(reason=f"{executable} does not report its version", minimum=JAVA_VERSION_MIN)
    return match[1]


def jvm_flags(*, heap_mb: int, jit: Jit, archive: Path | None) -> list[str]:
    flags = ["-Xms64m", f"-Xmx{heap_mb}m", "-Xss512k", "-Djava.awt.headless=true"]
    flags += ["-XX:+ExitOnOutOfMemoryError"]
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
    """The address and rule file that the launcher passes to the exporter."""
    return f"-D{METRICS_PROPERTY}={address}:{_HERE / 'jmx.yaml'}"


def command(java: Java, jars: Jars, flags: Sequence[str], main: str, *arguments: str) -> list[str]:
    return [str(java.executable), *flags, "-cp", jars.classpath, main, *arguments]


def argument_file(arguments: Sequence[str]) -> str:
    """The arguments in the syntax of `java @file`, for arguments that `ps` must not show."""
    quoted = ('"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"' for argument in arguments)
    return "\n".join(quoted) + "\n"
