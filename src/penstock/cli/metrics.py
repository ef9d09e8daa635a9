"""Where a command serves its metrics: one flag, read in one way, and one server behind it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.registry import Collector

Metrics = Annotated[
    str | None, Parameter(help="Serve metrics for Prometheus at this host:port.", show_default="none")
]


@contextmanager
def metrics_at(address: str | None, collector: Collector) -> Iterator[None]:
    """What it collects is served meanwhile."""
    if address is None:
        yield
        return
    host, colon, port = address.rpartition(":")
    with ExitStack() as stack:
        try:
            if not (host and colon and port.isdecimal()):
                raise ValueError("expected host:port")
            stack.enter_context(serving(collector, host, int(port)))
        except (OSError, OverflowError, ValueError) as error:
            raise SettingInvalid(
                where="flags", key="--metrics", value=address, expected=str(error)
            ) from error
        yield


@contextmanager
def serving(collector: Collector, host: str, port: int) -> Iterator[int]:
    """Plain HTTP, on the port that is told. Raises OSError if it cannot be had."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(collector)
    served: tuple[WSGIServer, threading.Thread] = start_http_server(port, host, registry=registry)
    server, thread = served
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
