"""The metrics server: what a scraper and a prober see of any process."""

from __future__ import annotations

import gzip
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.core import GaugeMetricFamily

from penstock.metrics_server import MetricsServer, page_of

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
    assert gzip.decompress(packed) == page


def test_a_process_that_is_not_ready_is_alive_all_the_same() -> None:
    ready = False
    with closing(MetricsServer(bytes, "127.0.0.1", 0, ready=lambda: ready)) as server:
        before = (read(server.port, "/livez")[0], read(server.port, "/readyz")[0])
        ready = True
        after = (read(server.port, "/livez")[0], read(server.port, "/readyz")[0])

    assert (before, after) == ((200, 503), (200, 200))


def test_another_path_is_not_found() -> None:
    with closing(MetricsServer(bytes, "localhost", 0)) as server:
        assert read(server.port, "/")[0] == 404


def test_a_port_that_is_taken_raises_and_a_closed_one_is_free_again() -> None:
    with closing(MetricsServer(bytes, "127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        MetricsServer(bytes, "127.0.0.1", server.port)

    MetricsServer(bytes, "127.0.0.1", server.port).close()
