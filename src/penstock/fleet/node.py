"""One node: its storage, its process, its end.

A process holds `lock` for as long as it lives: the descriptor is inherited by the JVM, so the
lock outlives the supervisor that took it and ends with the node itself, however either dies.
`process.json`, written by the child before it becomes the node, tells who holds it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.fleet.identity import Identity, identify, read_identity
from penstock.fleet.java import argument_file, command, jvm_flags, log_flags, metrics_flag
from penstock.fleet.launcher import MAIN_CLASS
from penstock.fleet.layout import SECRET_FILE_MODE, make_directory, write_atomically
from penstock.fleet.passwords import NODE_USER, PLATFORM_USER, SCRAM_ITERATIONS, SCRAM_MECHANISM
from penstock.fleet.render import as_text, node_properties
from penstock.fleet.spec import Jit, Listener, Role
from penstock.model.errors.fleet import DataInUse, DataOfAnotherCluster, DirectoryNotWritable, FormatFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.fleet.cluster import Cluster
    from penstock.fleet.jars import Jars
    from penstock.fleet.java import Java
    from penstock.fleet.layout import NodeLayout
    from penstock.fleet.render import Credentials
    from penstock.fleet.spec import NodeSpec

STOP_SECONDS_MAX = 30.0
LOCK_SECONDS_MAX = 5.0
FORMAT_LOCK_SECONDS_MAX = 20.0  # a formatter that outlived its supervisor ends by itself
FORMAT_SECONDS_MAX = 60.0
LAST_WORDS_BYTES = 65536

_SCRATCH = "format-"  # directories with the formatter's arguments, which hold passwords


@dataclass(frozen=True, slots=True)
class Runtime:
    """What it takes to start a node."""

    java: Java
    jars: Jars
    archive: Path | None
    extra_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to be the platform towards a node."""

    credentials: Credentials
    ca: Path


@dataclass(slots=True)
class Node:
    """A node of a settled cluster on this machine. Holds no truth of its own: all of it is on disk."""

    cluster: Cluster
    spec: NodeSpec
    layout: NodeLayout
    access: Access
    runtime: Runtime | None = None  # without one a node can be watched and stopped, not started
    environment: Mapping[str, str] | None = None
    _child: subprocess.Popen[bytes] | None = None
    _child_identity: Identity | None = None  # known at once; its record takes a moment
    _log_bytes_before: int = 0  # what earlier runs had logged when ours was started

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def full_name(self) -> str:
        """With its cluster: no other node of the fleet has this name."""
        return f"{self.cluster.spec.name}/{self.spec.name}"

    def running(self) -> Identity | None:
        """The live process of this node, whoever started it."""
        if self._child is not None and self._child.poll() is None:
            return self._child_identity
        identity = read_identity(self.layout.record)
        return identity if identity is not None and identity.is_alive() else None

    def last_exit(self) -> int | None:
        """How our own child ended; None while it lives, or when another supervisor started it."""
        return None if self._child is None else self._child.poll()

    def configure(self) -> None:
        """Write the properties anew: they follow from the spec, never from what was there."""
        properties = node_properties(
            self.cluster.spec, self.spec, self.layout, self.access.credentials, self.access.ca
        )
        try:
            make_directory(self.layout.logs)
            write_atomically(self.layout.properties, as_text(properties), mode=SECRET_FILE_MODE)
        except OSError as error:
            raise DirectoryNotWritable(directory=self.layout.root, reason=error.strerror or error) from error

    async def format(self) -> None:
        """Give the data directory its identity, once; refuse one that belongs to somebody else."""
        if not self.layout.meta.exists():
            descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if await self._take(descriptor, patience=FORMAT_LOCK_SECONDS_MAX):
                    await self._format(descriptor)
            finally:
                os.close(descriptor)
        self._check_identity()

    async def _format(self, lock: int) -> None:
        """Run Kafka's formatter, which holds the lock for as long as it lives, like a node does."""
        if self.layout.meta.exists():  # one that outlived its supervisor was faster
            return
        runtime = self._runtime()
        with tempfile.TemporaryDirectory(dir=self.layout.root, prefix=_SCRATCH) as scratch:
            arguments = Path(scratch) / "arguments"  # holds passwords, so not on the command line
            write_atomically(arguments, argument_file(self._format_words(runtime)), mode=SECRET_FILE_MODE)
            process = await asyncio.create_subprocess_exec(
                runtime.java.executable, f"@{arguments}",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                pass_fds=(lock,),
            )  # fmt: skip
            try:
                async with asyncio.timeout(FORMAT_SECONDS_MAX):
                    said, _ = await process.communicate()
            except TimeoutError:
                said = b"no answer"
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0 or not self.layout.meta.exists():
            lines = said.decode(errors="replace").strip().splitlines() or [f"exit {process.returncode}"]
            reason = next((line for line in lines if re.search("rror|Exception", line)), lines[-1])
            raise FormatFailed(node=self.name, reason=reason.strip(), directory=self.layout.data)

    async def start(self) -> None:
        """Start the process, or leave alone the one that runs."""
        descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not await self._take(descriptor):
                return
            self.layout.record.unlink(missing_ok=True)
            for scratch in self.layout.root.glob(f"{_SCRATCH}*"):  # of a formatter that was killed
                shutil.rmtree(scratch)
            self._log_bytes_before = _size(self.layout.log)
            if _size(self.layout.console):
                self.layout.console.replace(self.layout.console_before)
            with self.layout.console.open("ab") as console:
                self._child = subprocess.Popen(  # noqa: ASYNC220 - fork and exec, nothing is waited for
                    [sys.executable, "-m", "penstock.fleet.spawn", str(self.layout.record), *self._command()],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    pass_fds=(descriptor,),
                    start_new_session=True,
                    env=self._environment(),
                )
            self._child_identity = identify(self._child.pid)
        finally:
            os.close(descriptor)

    async def stop(self, *, deadline: float = STOP_SECONDS_MAX) -> bool:
        """Controlled shutdown, then the hard way; false when the hard way was needed."""
        identity = self.running()
        if identity is None:
            return True
        identity.signal(signal.SIGTERM)
        identity.signal(signal.SIGCONT)  # a stopped process cannot take the hint
        if await self._gone(identity, deadline):
            return True
        identity.signal(signal.SIGKILL)
        await self._gone(identity, deadline)
        return False

    def last_words(self) -> str:
        """The line of this run that explains its end: from the JVM's own output, else from the log."""
        for path, start in ((self.layout.console, 0), (self.layout.log, self._log_bytes_before)):
            if words := _complaint(_tail(path, start).splitlines()):
                return words
        return ""

    async def _gone(self, identity: Identity, seconds: float) -> bool:
        waited = 0.0
        while self.running() == identity:
            if waited >= seconds:
                return False
            await asyncio.sleep(0.05)
            waited += 0.05
        return True

    async def _take(self, descriptor: int, *, patience: float = LOCK_SECONDS_MAX) -> bool:
        """Lock the node; false when its process holds the lock. Somebody else's hold is an error.

        A process that was killed keeps its files for some milliseconds after it is a corpse.
        """
        give_up = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if self.running() is not None:
                    return False
                if time.monotonic() > give_up:
                    break
                await asyncio.sleep(0.02)
        owner = read_identity(self.layout.record)
        known = f" (its record names process {owner.pid}, which is another one now)" if owner else ""
        raise DataInUse(node=self.name, directory=self.layout.root, owner=known)

    def _check_identity(self) -> None:
        lines = self.layout.meta.read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        expected = {"cluster.id": self.cluster.kafka_id, "node.id": str(self.spec.id)}
        if any(found.get(key) != value for key, value in expected.items()):
            raise DataOfAnotherCluster(
                directory=self.layout.data,
                found=f"node {found.get('node.id')} of cluster {found.get('cluster.id')}",
                expected=f"node {self.spec.id} of cluster {self.cluster.kafka_id}",
            )

    def _runtime(self) -> Runtime:
        assert self.runtime is not None, f"{self.name} was opened to be watched, not to be started"
        return self.runtime

    def _format_words(self, runtime: Runtime) -> list[str]:
        flags = jvm_flags(heap_mb=256, jit=Jit.QUICK, archive=runtime.archive)
        words = [*flags, *log_flags(self.layout.logs), "-cp", runtime.jars.classpath]
        words += ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
        words += ["-t", self.cluster.kafka_id, "-c", str(self.layout.properties)]
        if self.spec.role is Role.BROKER:
            return [*words, "--no-initial-controllers"]
        controllers = self.cluster.spec.controllers
        if len(controllers) == 1:
            words.append("--standalone")
        else:
            voters = (
                f"{c.id}@{c.address(Listener.CONTROLLER)}:{self.cluster.directory_ids[c.id]}"
                for c in controllers
            )
            words += ["--initial-controllers", ",".join(voters)]
        for user, password in (
            (NODE_USER, self.access.credentials.node),
            (PLATFORM_USER, self.access.credentials.platform),
        ):
            user_line = f"name={user},iterations={SCRAM_ITERATIONS},password={password}"
            words += ["--add-scram", f"{SCRAM_MECHANISM}=[{user_line}]"]
        return words

    def _command(self) -> list[str]:
        spec, runtime = self.spec, self._runtime()
        flags = jvm_flags(heap_mb=spec.heap_mb, jit=self.cluster.spec.jit, archive=runtime.archive)
        flags += log_flags(self.layout.logs)
        # Plain HTTP, so on this machine only.
        flags.append(metrics_flag(f"127.0.0.1:{spec.ports[Listener.METRICS]}"))
        flags += runtime.extra_flags
        return command(runtime.java, runtime.jars, flags, MAIN_CLASS, str(self.layout.properties))

    def _environment(self) -> dict[str, str]:
        return dict(os.environ) | dict(self.environment or {})


def _complaint(lines: Sequence[str]) -> str:
    """The first line that complains, with the exception below it, which is the cause."""
    for line, below in zip(lines, [*lines[1:], ""]):
        if re.search(r"ERROR|FATAL|Exception|rror:", line) and not re.match(r"\s+at ", line):
            cause = re.match(r"[\w.$]+(Exception|Error)\b.*", below)
            return f"{line.strip()}: {cause[0].strip()}" if cause else line.strip()
    return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tail(path: Path, start: int) -> str:
    """The end of a file, from `start` on; a shorter file was begun anew and counts from its start."""
    size = _size(path)
    if not size:
        return ""
    begin = start if start <= size else 0
    cut = size - LAST_WORDS_BYTES
    with path.open("rb") as file:
        file.seek(max(begin, cut))
        text = file.read().decode(errors="replace")
    return text.partition("\n")[2] if cut > begin else text  # half a line explains nothing
