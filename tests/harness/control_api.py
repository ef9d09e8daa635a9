"""The control plane's HTTP API on a real socket, before a control plane that lives in memory."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import uvicorn

from penstock.control.api.app import make_api
from tests.control.in_memory_plane import InMemoryPlane
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """A thread has none."""


@dataclass(frozen=True, slots=True)
class ControlApi:
    server: uvicorn.Server
    url: str

    def new_plane(self) -> InMemoryPlane:
        """A fresh control plane behind the API."""
        plane = InMemoryPlane()
        cast("FastAPI", self.server.config.app).state.plane = plane  # the server knows it as any application
        return plane


@contextmanager
def serve_control_api() -> Iterator[ControlApi]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(make_api(), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_for(lambda: server.started, what="the API")
    yield ControlApi(server, f"http://127.0.0.1:{listener.getsockname()[1]}")
    server.should_exit = True
    thread.join(30)
    listener.close()
