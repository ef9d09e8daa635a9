"""A PostgreSQL server of one's own, from the binaries that the machine has.

    with PostgresServer.start() as server:
        psycopg.connect(server.dsn)

Debian's package `postgresql` has them; `without_postgres` says why a test or a bench goes without.
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
    if found := shutil.which("initdb"):
        candidates.append(Path(found).resolve().parent)
    return next(
        (each for each in candidates if (each / "initdb").exists() and (each / "postgres").exists()), None
    )


def without_postgres() -> str | None:
    """Why this machine cannot have a server; None if it can."""
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
        """A fresh cluster in a directory of its own, on a port of the loopback."""
        found = binaries()
        assert found is not None, without_postgres()
        # Not below pytest's own directory, which is closed to the user that the server runs as.
        directory = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        directory.chmod(0o755)
        data = directory / "data"
        data.mkdir()
        as_user = _as_other_user()
        if as_user:
            os.chown(data, as_user["user"], as_user["group"])
        command: list[str | Path] = [
            found / "initdb",
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
        """Starts it, also again after `end`: with what had been committed."""
        found = binaries()
        assert found is not None, without_postgres()
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
                [found / "postgres", "-D", data, *flags], stdout=log, stderr=log, cwd=data, **_as_other_user()
            )
        self._wait()

    def end(self) -> None:
        """kill -9 of the server and of all that work for it."""
        server = psutil.Process(self.process.pid)
        server.suspend()  # so that it starts nobody who would be missed below
        workers = server.children()
        for each in (*workers, server):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(30)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not all(_is_gone(each) for each in workers):
            assert time.monotonic() < deadline, workers
            time.sleep(0.02)
        # It names a process that is gone; whoever has its number next would keep the server from starting.
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
    """Also if nobody has asked for its exit status yet, which may be never."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _as_other_user() -> dict[str, Any]:
    """For `subprocess`, where this user may not run a server."""
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
