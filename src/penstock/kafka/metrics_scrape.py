"""Scrape the metrics of a node over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from penstock.kafka.broker_metrics import NodeMetrics, parse_metrics
from penstock.model.errors.fleet import MetricsUnreachable

SCRAPE_SECONDS_MAX: Final = 5.0
SCRAPE_BYTES_MAX: Final = 32 << 20


async def scrape(host: str, port: int, *, timeout: float = SCRAPE_SECONDS_MAX) -> NodeMetrics:
    """The current metrics of the node at this address."""
    text = await scrape_text(host, port, timeout=timeout)
    try:
        return parse_metrics(text)
    except (ValueError, LookupError, TypeError) as error:  # any program may listen there
        raise MetricsUnreachable(address=f"{host}:{port}", reason=str(error)) from error


async def scrape_text(host: str, port: int, *, timeout: float = SCRAPE_SECONDS_MAX) -> str:
    """The same as text, in Prometheus' format."""
    try:
        async with asyncio.timeout(timeout):
            return await _get(host, port)
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error) or f"no response within {timeout:.0f} s"
        raise MetricsUnreachable(address=f"{host}:{port}", reason=reason) from error


async def _get(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # HTTP/1.0: the response is not chunked and ends with the connection.
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n".encode())
        await writer.drain()
        response = await reader.read(SCRAPE_BYTES_MAX)
        while chunk := await reader.read(SCRAPE_BYTES_MAX - len(response)):
            response += chunk
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # the other side has closed it, too
            await writer.wait_closed()
    head, _, body = response.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0]
    if b" 200 " not in status:
        raise ValueError(f"the response is {status.decode(errors='replace')}")
    return body.decode()
