"""Whether something listens at an address, found out within `CONNECT_SECONDS`.

Commands check this first, so that they fail at once when nothing runs. Calls that follow have longer time
limits and retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.kafka.routing import addresses
from penstock.model.errors.control import AdvertisedUnreachable, GatewayUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.kafka.client import Client
    from penstock.kafka.routing import Address

CONNECT_SECONDS: Final = 1.0
METADATA_SECONDS: Final = 5.0  # for the first metadata: TLS, login and one request


def why_closed(url: str) -> str:
    """Why the host of an HTTP URL cannot be connected to; empty if it can."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS):
            return ""
    except (OSError, ValueError) as failure:
        return _reason(failure)


async def unreachable(servers: Iterable[Address]) -> dict[Address, str]:
    """The addresses that cannot be connected to, with the reason; all are tried at once."""

    async def reason(server: Address) -> str:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(server.host, server.port)
        except OSError as failure:  # TimeoutError is one
            return _reason(failure)
        writer.close()
        with contextlib.suppress(OSError):  # the other side has closed it, too
            await writer.wait_closed()
        return ""

    tried = list(dict.fromkeys(servers))
    reasons = await asyncio.gather(*map(reason, tried))
    return {server: why for server, why in zip(tried, reasons) if why}


async def check_bootstrap(bootstrap: str) -> None:
    """Raises GatewayUnreachable if no bootstrap address can be connected to."""
    servers = addresses(bootstrap)
    closed = await unreachable(servers)
    if len(closed) == len(set(servers)):
        reasons = ", ".join(dict.fromkeys(closed.values()))
        raise GatewayUnreachable(bootstrap=bootstrap, reason=reasons)


async def check_advertised(client: Client, bootstrap: str) -> None:
    """Raises AdvertisedUnreachable if the bootstrap address responds, but no address that it advertises."""
    cluster = await client.cluster(timeout=METADATA_SECONDS)
    closed = await unreachable(node.address for node in cluster.nodes.values())
    if closed and len(closed) == len({node.address for node in cluster.nodes.values()}):
        address, reason = next(iter(closed.items()))
        raise AdvertisedUnreachable(address=address, bootstrap=bootstrap, reason=reason)


def _reason(failure: Exception) -> str:
    if isinstance(failure, TimeoutError):
        return f"no response within {CONNECT_SECONDS:g} s"
    return getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
