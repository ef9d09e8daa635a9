"""The metrics server: what a scraper and a prober see of any process."""

from __future__ import annotations

import asyncio
import gzip
import threading
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from penstock import metrics_server
from penstock.metrics_server import MetricsServer, page_of
from penstock.model.metric_catalogue import PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric


class Temperature:
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("temperature", "How warm it is.", value=21.5)


def read(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    request = Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_collector_is_read_at_each_scrape() -> None:
    with closing(MetricsServer(page_of(Temperature()), "127.0.0.1", 0)) as server:
        status, page = read(server.port, "/metrics")
        _, packed = read(server.port, "/metrics", **{"Accept-Encoding": "gzip"})

    assert (status, page.splitlines()[-1]) == (200, b"temperature 21.5")
    assert gzip.decompress(packed).endswith(b"\ntemperature 21.5\n")


def test_a_process_that_is_not_ready_is_alive_all_the_same() -> None:
    problem = "no broker is reached"
    with closing(MetricsServer(bytes, "127.0.0.1", 0, not_ready=lambda: problem)) as server:
        before = (read(server.port, "/livez")[0], read(server.port, "/readyz")[0])
        reason = read(server.port, "/readyz")[1]
        problem = ""
        after = (read(server.port, "/livez")[0], read(server.port, "/readyz")[0])

    assert (before, after) == ((200, 503), (200, 200))
    assert reason == b"no broker is reached\n"


def test_another_path_is_not_found() -> None:
    with closing(MetricsServer(bytes, "localhost", 0)) as server:
        assert read(server.port, "/")[0] == 404


def test_a_port_that_is_taken_raises_and_a_closed_one_is_free_again() -> None:
    with closing(MetricsServer(bytes, "127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        MetricsServer(bytes, "127.0.0.1", server.port)

    MetricsServer(bytes, "127.0.0.1", server.port).close()


def test_every_process_exports_its_memory_release_and_readiness() -> None:
    problem = "the registry is not read"
    with closing(MetricsServer(bytes, "127.0.0.1", 0, not_ready=lambda: problem)) as server:
        before = read(server.port, "/metrics")[1].decode()
        problem = ""
        after = read(server.port, "/metrics")[1].decode()

    families = {family.name for family in text_string_to_metric_families(after)}
    assert families == {metric.name for metric in PROCESS.metrics.values()}
    assert ("penstock_ready 0.0" in before, "penstock_ready 1.0" in after) == (True, True)


def test_a_process_whose_event_loop_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "LOOP_SECONDS_MAX", 0.05)
    loop = asyncio.new_event_loop()
    with closing(MetricsServer(bytes, "127.0.0.1", 0, loop=loop)) as server:
        hung = read(server.port, "/livez")
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        monkeypatch.setattr(metrics_server, "LOOP_SECONDS_MAX", 30.0)
        alive = read(server.port, "/livez")
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        ended = read(server.port, "/livez")

    assert (hung[0], alive[0], ended) == (503, 200, (503, b"the event loop has ended\n"))


def test_a_page_that_fails_is_an_error_of_that_scrape_alone() -> None:
    def page() -> bytes:
        raise RuntimeError("broken")

    with closing(MetricsServer(page, "127.0.0.1", 0)) as server:
        assert read(server.port, "/metrics") == (500, b"RuntimeError('broken')\n")
        assert read(server.port, "/livez")[0] == 200
