"""The metrics page over HTTP, in a thread of its own, made by the event loop that owns the numbers."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    Page = Callable[[], Coroutine[object, object, bytes]]

PAGE_SECONDS_MAX: Final = 25.0


@asynccontextmanager
async def page_served(address: str, page: Page) -> AsyncIterator[int]:
    """At every path; the port."""
    loop = asyncio.get_running_loop()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = asyncio.run_coroutine_threadsafe(page(), loop).result(PAGE_SECONDS_MAX)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Scrapes are no news."""

    host, _, port = address.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics page")
    thread.start()
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
