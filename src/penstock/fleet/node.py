"""One local node: format its storage, start and stop its process.

The node's process holds the file lock `lock` for its whole life: the JVM inherits the descriptor, so
the lock outlives the supervisor and is released when the node ends, however either dies. The child
writes `process.json`, which identifies the holder, before it becomes the node.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.atomic_files import write_atomically
from penstock.fleet.credentials.passwords import (
    ANCHOR_USER,
    NODE_USER,
    PLATFORM_USER,
    SCRAM_ITERATIONS,
    SCRAM_MECHANISM,
)
from penstock.fleet.generation import generation_of
from penstock.fleet.jars import KAFKA_VERSION, cache_directory
from penstock.fleet.java import argument_file, command, jvm_flags, log_flags, metrics_flag
from penstock.fleet.kafka_properties import as_text, node_properties
from penstock.fleet.launcher import MAIN_CLASS
from penstock.fleet.layout import SECRET_FILE_MODE, START_FACTS, make_directory
from penstock.fleet.spec import Jit, Listener, Role, TierStore
from penstock.fleet.tier_properties import TierPlace
from penstock.model.errors.fleet import (
    DataInUse,
    DataOfAnotherCluster,
    DirectoryNotWritable,
    FormatFailed,
    MetadataLost,
)
from penstock.model.fault_points import declare, reach
from penstock.process_identity import Identity, identify, read_alive, read_identity, try_lock
from penstock.tier.s3_jars import s3_class_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.fleet.cluster_record import Cluster
    from penstock.fleet.generation import Generation
    from penstock.fleet.jars import Jars
    from penstock.fleet.java import Java
    from penstock.fleet.kafka_properties import Credentials
    from penstock.fleet.layout import NodeLayout
    from penstock.fleet.spec import NodeSpec

STOP_SECONDS_MAX = 30.0
LOCK_SECONDS_MAX = 5.0
FORMAT_LOCK_SECONDS_MAX = 20.0  # a formatter whose supervisor died ends by itself
FORMAT_SECONDS_MAX = 60.0
ERROR_TAIL_BYTES = 65536

_SCRATCH = "format-"  # temporary directories with the formatter's arguments, which contain passwords

FORMATTING: Final = declare("fleet.format.running", "the formatter runs, and its arguments are on disk")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is needed to start a node."""

    java: Java
    jars: Jars
    archive: Path | None
    extra_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What the platform needs to log in to a node."""

    credentials: Credentials
    ca: Path


@dataclass(slots=True)
class Node:
    """A node on this machine. All lasting state is on disk, none in this object."""

    cluster: Cluster
    spec: NodeSpec
    layout: NodeLayout
    access: Access
    runtime: Runtime | None = None  # without it the node can be watched and stopped, but not started
    environment: Mapping[str, str] | None = None
    request: str = ""  # the order that its next process is started for
    document: str = ""  # digest of the fleet document that `cluster` and `spec` come from
    _child: subprocess.Popen[bytes] | None = None
    _child_identity: Identity | None = None  # known at once, before its record is written
    _log_bytes_before: int = 0  # the size of the log when this run started

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def full_name(self) -> str:
        """The name with its cluster, unique in the fleet."""
        return f"{self.cluster.spec.name}/{self.spec.name}"

    def running(self) -> Identity | None:
        """The live process of this node, even if another supervisor started it."""
        if self._child is not None and self._child.poll() is None:
            return self._child_identity
        return read_alive(self.layout.record)

    def last_exit(self) -> int | None:
        """The exit code of our child; None while it runs, or if another supervisor started it."""
        return None if self._child is None else self._child.poll()

    def properties(self) -> dict[str, str]:
        credentials, ca = self.access.credentials, self.access.ca
        is_s3 = self.cluster.spec.tier.store is TierStore.S3
        class_path = s3_class_path(cache_directory()) if is_s3 else ""
        tier = TierPlace(self.cluster.kafka_id, self.layout.home / "tier", class_path)
        return node_properties(self.cluster.spec, self.spec, self.layout, credentials, ca, tier)

    def generation(self) -> Generation:
        """What its next process would run with. Needs no runtime."""
        flags = jvm_flags(heap_mb=self.spec.heap_mb, jit=self.cluster.spec.jit, archive=None)
        ca = self.access.ca.read_bytes() if self.cluster.spec.tls else b""
        return generation_of(self.cluster.spec.kafka or KAFKA_VERSION, tuple(flags), self.properties(), ca)

    def configure(self) -> None:
        """Write the properties; they depend only on the spec, not on an earlier file."""
        properties = self.properties()
        try:
            make_directory(self.layout.logs)
            write_atomically(self.layout.properties, as_text(properties), mode=SECRET_FILE_MODE)
        except OSError as error:
            raise DirectoryNotWritable(directory=self.layout.root, reason=error.strerror or error) from error

    async def format(self) -> None:
        """Format the data directory once; refuse one that belongs to another node or cluster."""
        if not self.layout.meta.exists():
            descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if await self._lock(descriptor, patience=FORMAT_LOCK_SECONDS_MAX):
                    await self._format(descriptor)
            finally:
                os.close(descriptor)
        self._check_identity()

    async def _format(self, lock: int) -> None:
        """Run Kafka's formatter, which holds the lock while it runs, like a node."""
        if self.layout.meta.exists():  # a formatter whose supervisor died has done it
            return
        runtime = self._runtime()
        with tempfile.TemporaryDirectory(dir=self.layout.root, prefix=_SCRATCH) as scratch:
            arguments = Path(scratch) / "arguments"  # contains passwords, so not on the command line
            write_atomically(arguments, argument_file(self._format_arguments(runtime)), mode=SECRET_FILE_MODE)
            process = await asyncio.create_subprocess_exec(
                runtime.java.executable, f"@{arguments}",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                pass_fds=(lock,),
            )  # fmt: skip
            reach(FORMATTING)
            try:
                async with asyncio.timeout(FORMAT_SECONDS_MAX):
                    output, _ = await process.communicate()
            except TimeoutError:
                output = f"no result within {FORMAT_SECONDS_MAX:.0f} s".encode()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0 or not self.layout.meta.exists():
            lines = output.decode(errors="replace").strip().splitlines() or [f"exit {process.returncode}"]
            reason = next((line for line in lines if re.search("rror|Exception", line)), lines[-1])
            raise FormatFailed(node=self.name, reason=reason.strip(), directory=self.layout.data)

    async def start(self) -> None:
        """Start the process unless it is already running."""
        descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not await self._lock(descriptor):
                return
            self.layout.record.unlink(missing_ok=True)
            for scratch in self.layout.root.glob(f"{_SCRATCH}*"):  # left by a formatter that was killed
                shutil.rmtree(scratch)
            self._log_bytes_before = _size(self.layout.log)
            if _size(self.layout.console):
                self.layout.console.replace(self.layout.console_before)
            facts = {"request": self.request, "document": self.document}
            write_atomically(
                self.layout.start_facts, json.dumps(facts | {"generation": dict(self.generation().parts)})
            )
            with self.layout.console.open("ab") as console:
                self._child = subprocess.Popen(  # noqa: ASYNC220 - does not wait for the child
                    [*_spawn(self.layout), *self._command()],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    pass_fds=(descriptor,),
                    start_new_session=True,
                    env=dict(os.environ) | dict(self.environment or {}),
                )
            self._child_identity = identify(self._child.pid)
        finally:
            os.close(descriptor)

    async def stop(self, *, deadline: float = STOP_SECONDS_MAX) -> bool:
        """Controlled shutdown, then SIGKILL after the deadline; false if it had to be killed."""
        identity = self.running()
        if identity is None:
            return True
        identity.signal(signal.SIGTERM)
        identity.signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM
        if await self._wait_for_exit(identity, deadline):
            return True
        identity.signal(signal.SIGKILL)
        await self._wait_for_exit(identity, deadline)
        return False

    def last_error(self) -> str:
        """The line that explains why this run ended: from the JVM's output, else from the log."""
        for path, start in ((self.layout.console, 0), (self.layout.log, self._log_bytes_before)):
            if line := _error_line(_tail(path, start).splitlines()):
                return line
        return ""

    async def _wait_for_exit(self, identity: Identity, seconds: float) -> bool:
        waited = 0.0
        while self.running() == identity:
            if waited >= seconds:
                return False
            await asyncio.sleep(0.05)
            waited += 0.05
        return True

    async def _lock(self, descriptor: int, *, patience: float = LOCK_SECONDS_MAX) -> bool:
        """Lock the node; false if its own process holds the lock, an error if another one does.

        It waits, because a killed process keeps its locks for some milliseconds after it is a zombie."""
        give_up = time.monotonic() + patience
        while not try_lock(descriptor):
            if self.running() is not None:
                return False
            if time.monotonic() > give_up:
                break
            await asyncio.sleep(0.02)
        else:
            return True
        owner = read_identity(self.layout.record)
        known = f" (its record names process {owner.pid}, which is not this node any more)" if owner else ""
        raise DataInUse(node=self.name, directory=self.layout.root, owner=known)

    def _check_identity(self) -> None:
        lines = self.layout.meta.read_text().splitlines()
        actual = dict(line.split("=", 1) for line in lines if "=" in line)
        expected = {"cluster.id": self.cluster.kafka_id, "node.id": str(self.spec.id)}
        if any(actual.get(key) != value for key, value in expected.items()):
            raise DataOfAnotherCluster(
                directory=self.layout.data,
                actual=f"node {actual.get('node.id')} of cluster {actual.get('cluster.id')}",
                expected=f"node {self.spec.id} of cluster {self.cluster.kafka_id}",
            )

    def _runtime(self) -> Runtime:
        assert self.runtime is not None, f"{self.name} was loaded without a runtime and cannot be started"
        return self.runtime

    def _format_arguments(self, runtime: Runtime) -> list[str]:
        flags = jvm_flags(heap_mb=256, jit=Jit.QUICK, archive=runtime.archive)
        arguments = [*flags, *log_flags(self.layout.logs), "-cp", runtime.jars.classpath]
        arguments += ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
        arguments += ["-t", self.cluster.kafka_id, "-c", str(self.layout.properties)]
        if self.spec.role is Role.BROKER or self._joins():
            return [*arguments, "--no-initial-controllers"]
        ids = self.cluster.directory_ids
        initial = [c for c in self.cluster.spec.controllers if ids[c.id]]
        if len(initial) == 1:
            arguments.append("--standalone")
        else:
            voters = (f"{c.id}@{c.address(Listener.CONTROLLER)}:{ids[c.id]}" for c in initial)
            arguments += ["--initial-controllers", ",".join(voters)]
        credentials = self.access.credentials
        passwords = {
            ANCHOR_USER: secrets.token_urlsafe(),  # the first of all, and known to nothing
            NODE_USER: credentials.node,
            PLATFORM_USER: credentials.platform,
        }
        for user, password in passwords.items():
            user_line = f"name={user},iterations={SCRAM_ITERATIONS},password={password}"
            arguments += ["--add-scram", f"{SCRAM_MECHANISM}=[{user_line}]"]
        return arguments

    def _joins(self) -> bool:
        """Whether this controller joins a quorum that exists, as an observer until it is added (KIP-853).

        One whose disk was lost must: as the voter it was, with an empty log, it could help to elect a leader
        that lacks committed records."""
        nodes = self.cluster.spec.nodes
        if not self.cluster.directory_ids[self.spec.id]:
            return True
        if not any((self.layout.root.parent / node.name / START_FACTS).exists() for node in nodes):
            return False
        if len(self.cluster.spec.controllers) == 1:
            raise MetadataLost(cluster=self.cluster.spec.name, node=self.name, directory=self.layout.data)
        return True

    def _command(self) -> list[str]:
        spec, runtime = self.spec, self._runtime()
        flags = jvm_flags(heap_mb=spec.heap_mb, jit=self.cluster.spec.jit, archive=runtime.archive)
        flags += log_flags(self.layout.logs)
        # Plain HTTP, so on loopback only.
        flags.append(metrics_flag(f"127.0.0.1:{spec.ports[Listener.METRICS]}"))
        flags += runtime.extra_flags
        return command(runtime.java, runtime.jars, flags, MAIN_CLASS, str(self.layout.properties))


def _spawn(layout: NodeLayout) -> list[str]:
    facts = ["--facts", str(layout.start_facts)]
    return [sys.executable, "-m", "penstock.fleet.spawn", str(layout.record), *facts]


def _error_line(lines: Sequence[str]) -> str:
    """The first error line, with the exception below it, which is the cause."""
    for line, below in zip(lines, [*lines[1:], ""]):
        if re.search(r"ERROR|FATAL|Exception|rror:", line) and not re.match(r"\s+at ", line):
            cause = re.match(r"[\w.$]+(Exception|Error)\b.*", below)
            return f"{line.strip()}: {cause[0].strip()}" if cause else line.strip()
    return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tail(path: Path, start: int) -> str:
    """The end of a file, from `start`; if the file is shorter, it was rotated and counts from its start."""
    size = _size(path)
    if not size:
        return ""
    begin = start if start <= size else 0
    cut = size - ERROR_TAIL_BYTES
    with path.open("rb") as file:
        file.seek(max(begin, cut))
        text = file.read().decode(errors="replace")
    return text.partition("\n")[2] if cut > begin else text  # without the first line, which may be cut
