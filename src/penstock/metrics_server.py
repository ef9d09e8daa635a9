"""Serves a process's metrics and health over plain HTTP.

/metrics  the metrics, in Prometheus' text format
/livez    200 while the process answers
/readyz   200, or 503 while the caller's `ready` returns False
"""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.registry import Collector

SOCKET_SECONDS_MAX: Final = 60.0  # a client that sends or reads nothing for so long is disconnected


def page_of(collector: Collector) -> Callable[[], bytes]:
    """What a collector reports, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda: bytes(generate_latest(registry))


class MetricsServer:
    """Serves from its own threads until closed. Raises OSError if it cannot bind the address."""

    def __init__(
        self, page: Callable[[], bytes], host: str, port: int, *, ready: Callable[[], bool] = lambda: True
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = SOCKET_SECONDS_MAX

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, page())
                elif path == "/livez" or (path == "/readyz" and ready()):
                    self._send(HTTPStatus.OK, "text/plain", b"ok\n")
                elif path == "/readyz":
                    self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"not ready\n")
                else:
                    self._send(HTTPStatus.NOT_FOUND, "text/plain", b"see /metrics, /livez and /readyz\n")

            def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                if "gzip" in self.headers.get("Accept-Encoding", ""):
                    self.send_header("Content-Encoding", "gzip")
                    body = gzip.compress(body, compresslevel=1)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Scrapes are not logged."""

        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

        class Server(ThreadingHTTPServer):
            address_family = family

        self._server = Server((str(address[0]), port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def metrics_at(address: str | None, collector: Collector) -> Iterator[None]:
    """Serve what a collector reports at the host:port of a `--metrics` flag; None serves nothing."""
    if address is None:
        yield
        return
    host, colon, port = address.rpartition(":")
    try:
        if not (host and colon and port.isdecimal()):
            raise ValueError("expected host:port")
        server = MetricsServer(page_of(collector), host, int(port))
    except (OSError, OverflowError, ValueError) as error:
        raise SettingInvalid(where="flags", key="--metrics", value=address, expected=str(error)) from error
    with closing(server):
        yield
