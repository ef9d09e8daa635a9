"""Broker logins that expire are renewed in order with client requests, without an error."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.connection import Connection
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from tests.harness.gateway import Access, new_access, raw_login, read_frame, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet

# A fifth of it is left at renewal, and the gateway checks only once a second.
LIFETIME_SECONDS = 15.0
IN_FLIGHT = 5


@pytest.mark.kafka
def test_a_client_that_never_reauthenticates_outlives_the_broker_login(
    make_fleet: Callable[..., Fleet],
) -> None:
    lifetime_ms = str(int(LIFETIME_SECONDS * 1000))
    fleet = make_fleet(
        combined=True, brokers=1, zones=["a"], config={"connections.max.reauth.ms": lifetime_ms}
    )
    running = start_gateway(fleet, [new_access()])
    access = running.accesses[0]

    async def work() -> tuple[int, int]:
        reader, writer = await raw_login(access)
        try:
            return await ask(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int]:
        (session,) = (s for s in running.gateway.sessions.values() if s.upstream is not None)
        renewed, before, number = 0, session.connection.renew_at, 0
        end = time.monotonic() + LIFETIME_SECONDS  # of the first login
        while not renewed or time.monotonic() < end:
            body = {"Topics": [{"Name": "none"}]}
            frames = [encode_request(Request("Metadata", 9, number + n, "c", body)) for n in range(IN_FLIGHT)]
            writer.write(b"".join(frames))
            for n in range(IN_FLIGHT):
                response = decode_response("Metadata", 9, await read_frame(reader))
                assert response.correlation_id == number + n
                assert response.body["Topics"][0]["ErrorCode"] == Code.UNKNOWN_TOPIC_OR_PARTITION
            number += IN_FLIGHT
            if session.connection.renew_at != before:
                renewed, before = renewed + 1, session.connection.renew_at
        return renewed, number

    try:
        renewed, sent = asyncio.run(asyncio.wait_for(work(), 60))
        lifetime = asyncio.run(client_login_lifetime(access))
    finally:
        running.stop()

    assert renewed
    assert sent > 0
    assert lifetime == 0


async def client_login_lifetime(access: Access) -> float:
    host, port = access.bootstrap.split(":")
    async with await Connection.open(host, int(port), access.security()) as connection:
        return connection.expires_at or 0
