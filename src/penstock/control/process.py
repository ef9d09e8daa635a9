"""Runs a control plane as a process: the plane, its HTTP server, and their start and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from penstock.atomic_files import write_atomically
from penstock.control.api.app import make_api
from penstock.control.physical.addresses import TOKEN_FILE
from penstock.control.physical.cluster_access import Clusters
from penstock.control.physical.local import fleet_clusters
from penstock.control.physical.provider import Provisioners
from penstock.control.service import CellWatch, ControlPlane, Home
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory
from penstock.model import fault_points
from penstock.model.api_keys import hashed
from penstock.model.errors.gateway import ListenFailed
from penstock.model.errors.settings import SettingInvalid
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.fleet.layout import Layout

TOKEN_BYTES: Final = 32
BACKLOG: Final = 1024
SHUTDOWN_SECONDS: Final = 3  # for requests in progress at shutdown


@dataclass(frozen=True, slots=True)
class ControlOptions:
    layout: Layout
    listen: str
    session_seconds: float
    cell_brokers: int = 0
    until_stdin_ends: bool = False
    relieves: bool = True  # whether full cells are relieved automatically


async def run_control(options: ControlOptions, *, report: Callable[[str], None]) -> None:
    fault_points.check_armed()
    stop = stop_event(until_stdin_ends=options.until_stdin_ends)
    listener = _bind(options.listen)
    host, port = listener.getsockname()[:2]
    url = f"http://{host}:{port}"
    provided_clusters = fleet_clusters(options.layout, cell_brokers=options.cell_brokers)
    root = hashed(root_token(options.layout))
    clusters = Clusters(provided_clusters)
    provisioner = Provisioners(options.layout)
    plane = ControlPlane(
        Home(provided_clusters[0].id, url, provided_clusters, root),
        clusters,
        provisioner=provisioner,
        session_seconds=options.session_seconds,
        watch=CellWatch(relieves=options.relieves),
    )
    config = uvicorn.Config(
        make_api(plane), log_level="warning", lifespan="off", timeout_graceful_shutdown=SHUTDOWN_SECONDS
    )
    server = _Server(config)
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]))
            report(f"control plane at {url}")
            await plane.run(stop)
            server.should_exit = True
            await serving
    finally:
        await provisioner.close()
        await clusters.close()
        listener.close()


def root_token(layout: Layout) -> str:
    """The root operator's token, readable with the home's secrets; created at the first start."""
    path = make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE) / TOKEN_FILE
    if not path.exists():
        write_atomically(path, secrets.token_urlsafe(TOKEN_BYTES), mode=SECRET_FILE_MODE)
    return path.read_text().strip()


class _Server(uvicorn.Server):
    """Leaves signals to `run_control`: the plane must leave its group first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield


def _bind(listen: str) -> socket.socket:
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
