"""A temporary PostgreSQL server, from the binaries on this machine.

    with PostgresServer.start() as server:
        psycopg.connect(server.dsn)

Debian's package `postgresql` contains them; `without_postgres` returns why there is no server.
PostgreSQL refuses to run as root, so a root user's server runs as `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import psycopg

if TYPE_CHECKING:
    from collections.abc import Mapping

START_SECONDS_MAX = 60.0


def binaries() -> Path | None:
    """The directory with `initdb` and `postgres`, newest version first."""
    candidates = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if directory_of_binaries := shutil.which("initdb"):
        candidates.append(Path(directory_of_binaries).resolve().parent)
    return next(
        (each for each in candidates if (each / "initdb").exists() and (each / "postgres").exists()), None
    )


def without_postgres() -> str | None:
    """Why this machine cannot run a server; None if it can."""
    if binaries() is None:
        return "PostgreSQL's initdb and postgres are not installed (Debian: apt install postgresql)"
    if os.geteuid() == 0 and _other_user() is None:
        return "PostgreSQL does not run as root, and there is no user `postgres` or `nobody`"
    return None


@dataclass
class PostgresServer:
    directory: Path
    port: int
    settings: Mapping[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    @classmethod
    def start(cls, settings: Mapping[str, str] | None = None) -> Self:
        """Start a new database cluster in a temporary directory, on a loopback port."""
        directory_of_binaries = binaries()
        assert directory_of_binaries is not None, without_postgres()
        # Not below pytest's directory, which the server's user cannot access.
        directory = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        directory.chmod(0o755)
        data = directory / "data"
        data.mkdir()
        as_user = _as_other_user()
        if as_user:
            os.chown(data, as_user["user"], as_user["group"])
        command: list[str | Path] = [
            directory_of_binaries / "initdb",
            "-D",
            data,
            "-U",
            "penstock",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(command, check=True, capture_output=True, cwd=data, **as_user)
        server = cls(directory, _free_port(), settings or {})
        try:
            server.run()
        except BaseException:
            server.stop()
            raise
        return server

    def run(self) -> None:
        """Start the server; after `end` it comes back with all committed data."""
        directory_of_binaries = binaries()
        assert directory_of_binaries is not None, without_postgres()
        data = self.directory / "data"
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **self.settings,
        }
        flags = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        with (self.directory / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(
                [directory_of_binaries / "postgres", "-D", data, *flags],
                stdout=log,
                stderr=log,
                cwd=data,
                **_as_other_user(),
            )
        self._wait()

    def end(self) -> None:
        """Kill the server and its worker processes."""
        server = psutil.Process(self.process.pid)
        server.suspend()  # so that it starts no further workers
        workers = server.children()
        for each in (*workers, server):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(30)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not all(_is_gone(each) for each in workers):
            assert time.monotonic() < deadline, workers
            time.sleep(0.02)
        # It has the pid of a dead process; if that pid is reused, the server would refuse to start.
        (self.directory / "data" / "postmaster.pid").unlink(missing_ok=True)

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=penstock dbname=postgres"

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return


def _is_gone(process: psutil.Process) -> bool:
    """True also for a zombie, whose exit status may never be collected."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _as_other_user() -> dict[str, Any]:
    """Options for `subprocess` to run as another user if this is root."""
    user = _other_user() if os.geteuid() == 0 else None
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _other_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
