"""A request without data to a broker's own listener, on a connection that is kept open.

It does not use the cluster's metadata: a broker that the controller has fenced is in none, and may respond.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.kafka.connection import Connection
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.kafka.routing import Address
    from penstock.kafka.security import Security


class InnerProbe:
    def __init__(self, security: Security) -> None:
        self._security = security
        self._connections: dict[Address, Connection] = {}

    async def call(self, address: Address, seconds: float) -> str:
        """The error's name; empty if the broker responded in time."""
        try:
            async with asyncio.timeout(seconds):
                connection = self._connections.get(address)
                if connection is None or connection.closed:
                    if connection is not None:
                        await connection.close()
                    connection = self._connections[address] = await Connection.open(
                        address.host, address.port, self._security, timeout=seconds
                    )
                await connection.call("Metadata", {"Topics": []}, timeout=seconds)
        except TimeoutError:
            await self._drop(address)
            return "TIMED_OUT"
        except PenstockError as failure:
            return type(failure).code
        return ""

    async def close(self) -> None:
        for address in list(self._connections):
            await self._drop(address)

    async def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            await connection.close()
