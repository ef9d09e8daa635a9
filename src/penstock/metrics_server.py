"""A process's management address: its metrics and health over plain HTTP, without a login.

/metrics  the metrics, in Prometheus' text format: those of the component, and of the process itself
/livez    200 while the process responds; 503 if its event loop has not run for `LOOP_SECONDS_MAX`
/readyz   200, or 503 with the reason why it does not serve
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from penstock import __version__
from penstock.metric_families import Samples
from penstock.model.errors.settings import SettingInvalid
from penstock.model.metric_catalogue import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

SOCKET_SECONDS_MAX: Final = 60.0  # a client that sends or reads nothing for so long is disconnected
LOOP_SECONDS_MAX: Final = 10.0  # without a turn of the event loop, the process counts as hung
PAGE_SECONDS_MAX: Final = 25.0  # for a page that the event loop makes

_log = logging.getLogger("penstock.metrics")


def always_ready() -> str:
    return ""


class _ProcessMetrics:
    """Memory, processor time and descriptors of this process, its release, and whether it is ready."""

    def __init__(self, not_ready: Callable[[], str]) -> None:
        self._not_ready = not_ready
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        samples = Samples(PROCESS)
        samples.add("penstock_build_info", 1, __version__)
        samples.add("penstock_ready", float(not self._not_ready()))
        for family in self._process.collect():
            for sample in family.samples:
                samples.add(family.name, sample.value)
        return iter(samples)


def page_of(*collectors: Collector) -> Callable[[], bytes]:
    """What collectors report, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return lambda: bytes(generate_latest(registry))


def on_loop(loop: asyncio.AbstractEventLoop, page: Callable[[], bytes]) -> Callable[[], bytes]:
    """The page, made by the event loop that changes what it shows."""

    async def made() -> bytes:
        return page()

    return lambda: asyncio.run_coroutine_threadsafe(made(), loop).result(PAGE_SECONDS_MAX)


class MetricsServer:
    """Serves from its own threads until closed. Raises OSError if it cannot bind the address.

    `not_ready` returns why the process does not serve; empty if it does. With a `loop`, the process is
    alive as long as this event loop runs.
    """

    def __init__(
        self,
        page: Callable[[], bytes],
        host: str,
        port: int,
        *,
        not_ready: Callable[[], str] = always_ready,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        process_page = page_of(_ProcessMetrics(not_ready))

        class Handler(BaseHTTPRequestHandler):
            timeout = SOCKET_SECONDS_MAX

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                try:
                    if path == "/metrics":
                        self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, process_page() + page())
                    elif path == "/readyz":
                        self._health(not_ready())
                    elif path == "/livez":
                        self._health(_hung(loop))
                    else:
                        self._send(HTTPStatus.NOT_FOUND, "text/plain", b"see /metrics, /livez and /readyz\n")
                except (OSError, CancelledError) as failure:
                    if not isinstance(failure, ConnectionError):
                        self._fail(failure)
                except Exception as failure:  # noqa: BLE001 - a defect is logged, and the server stays
                    self._fail(failure)

            def _health(self, problem: str) -> None:
                status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                self._send(status, "text/plain", f"{problem or 'ok'}\n".encode())

            def _fail(self, failure: BaseException) -> None:
                _log.warning("%s failed: %r", self.path, failure)
                with suppress(OSError):
                    self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{failure!r}\n".encode())

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
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/metrics"

    def close(self) -> None:
        """Blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _hung(loop: asyncio.AbstractEventLoop | None) -> str:
    if loop is None:
        return ""
    turned = threading.Event()
    try:
        loop.call_soon_threadsafe(turned.set)
    except RuntimeError:  # closed
        return "the event loop has ended"
    return "" if turned.wait(LOOP_SECONDS_MAX) else f"the event loop has not run for {LOOP_SECONDS_MAX:g} s"


@contextmanager
def metrics_at(
    address: str | None,
    page: Callable[[], bytes],
    *,
    not_ready: Callable[[], str] = always_ready,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Iterator[str]:
    """Serve at the host:port of a `metrics` setting; None serves nothing. Yields the metrics' URL, or ""."""
    if not address:
        yield ""
        return
    host, colon, port = address.rpartition(":")
    try:
        if not (host and colon and port.isdecimal()):
            raise ValueError("expected host:port")
        server = MetricsServer(page, host.strip("[]"), int(port), not_ready=not_ready, loop=loop)
    except (OSError, OverflowError, ValueError) as error:
        raise SettingInvalid(where="settings", key="metrics", value=address, expected=str(error)) from error
    with closing(server):
        yield server.url
