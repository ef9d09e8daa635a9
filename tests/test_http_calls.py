"""Where the secret of an HTTP call goes: to the host it was meant for, and nowhere else."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from penstock.http_calls import is_this_host, leaves_tls, open_url

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 10.0


@contextmanager
def server(location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Redirects to `location`, if that is set; yields its URL, and the tokens that it was sent."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Authorization", ""))
            self.send_response(302 if location else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Not to standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}", received
        finally:
            listening.shutdown()
            thread.join()


def with_token(url: str, body: bytes | None = None) -> Request:
    return Request(url, body, {"Authorization": "Bearer t"})


@pytest.mark.parametrize("body", [None, b"{}"])
def test_a_token_does_not_follow_a_redirect(body: bytes | None) -> None:
    with server() as (elsewhere, received), server(elsewhere) as (url, _):
        with pytest.raises(HTTPError) as caught:
            open_url(with_token(url, body), timeout=SECONDS)
        caught.value.close()

    assert (caught.value.code, received) == (302, [])


def test_a_call_to_this_host_does_not_go_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    with server() as (url, received), server() as (proxy, intercepted):
        monkeypatch.setenv("http_proxy", proxy)
        with open_url(with_token(url), timeout=SECONDS) as response:
            assert response.status == 200
        with open_url(with_token("http://control.invalid/"), timeout=SECONDS) as response:
            assert response.status == 200

    assert (received, intercepted) == (["Bearer t"], ["Bearer t"])


def test_what_counts_as_this_host_and_as_without_tls() -> None:
    hosts = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "10.0.0.1", "localhost.example.com", "")
    assert [is_this_host(host) for host in hosts] == [True] * 4 + [False] * 3
    assert leaves_tls("https://a", "http://b")
    assert not leaves_tls("https://a", "https://b")
    assert not leaves_tls("http://a", "http://b")
