"""A control plane as a process: the plane, the HTTP server, and how both begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from penstock.control.addresses import TOKEN_FILE
from penstock.control.api import make_api
from penstock.control.local import fleet_reaches
from penstock.control.provisioning import Provisioners
from penstock.control.reach import Clusters
from penstock.control.service import ControlPlane, Home, Watch
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory, write_atomically
from penstock.model import faults
from penstock.model.errors.gateway import ListenFailed
from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.fleet.layout import Layout

TOKEN_BYTES: Final = 32
BACKLOG: Final = 1024
GOODBYE_SECONDS: Final = 3  # for calls that are being answered when we end


@dataclass(frozen=True, slots=True)
class Running:
    layout: Layout
    listen: str
    session_seconds: float
    cell_brokers: int = 0
    until_stdin_ends: bool = False
    relieves: bool = True  # whether tenants leave full cells by themselves


async def run_control(running: Running, *, told: Callable[[str], None]) -> None:
    faults.check_armed()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if running.until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    listener = _bound(running.listen)
    host, port = listener.getsockname()[:2]
    url = f"http://{host}:{port}"
    reaches = fleet_reaches(running.layout, cell_brokers=running.cell_brokers)
    root = hashlib.sha256(root_token(running.layout).encode()).hexdigest()
    clusters = Clusters(reaches)
    provisioner = Provisioners(running.layout)
    plane = ControlPlane(
        Home(reaches[0].id, url, reaches, root),
        clusters,
        provisioner=provisioner,
        session_seconds=running.session_seconds,
        watch=Watch(relieves=running.relieves),
    )
    config = uvicorn.Config(
        make_api(plane), log_level="warning", lifespan="off", timeout_graceful_shutdown=GOODBYE_SECONDS
    )
    server = _Server(config)
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]))
            told(f"control plane at {url}")
            await plane.run(stop)
            server.should_exit = True
            await serving
    finally:
        await provisioner.close()
        await clusters.close()
        listener.close()


def root_token(layout: Layout) -> str:
    """The operator that whoever may read the home's secrets is; made at the first start."""
    path = make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE) / TOKEN_FILE
    if not path.exists():
        write_atomically(path, secrets.token_urlsafe(TOKEN_BYTES), mode=SECRET_FILE_MODE)
    return path.read_text().strip()


class _Server(uvicorn.Server):
    """Signals are ours: the plane has to leave its group first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield


def _bound(listen: str) -> socket.socket:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not host or int(port) > 65535:
        raise SettingInvalid(
            where="penstock control run", key="--listen", value=listen, expected="expected host:port"
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(BACKLOG)
    except OSError as failure:
        listener.close()
        raise ListenFailed(host=host, port=port, reason=failure.strerror or failure) from failure
    return listener
