"""Logins at the broker that end: renewed in line with everything else, and nobody notices."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.connection import Connection
from penstock.wire.codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from tests.ground.gateway import Access, new_access, raw_login, read_frame, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet

# A fifth of it is left when it is renewed, and the gateway looks only once a second.
LIFETIME_SECONDS = 15.0
IN_FLIGHT = 5


@pytest.mark.kafka
def test_a_client_that_never_logs_in_again_outlives_the_brokers_login(
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
        assert session.upstream is not None
        renewed, before, number = 0, session.upstream.renew_at, 0
        end = time.monotonic() + LIFETIME_SECONDS  # of the first login
        while not renewed or time.monotonic() < end:
            body = {"Topics": [{"Name": "none"}]}
            frames = [encode_request(Request("Metadata", 9, number + n, "c", body)) for n in range(IN_FLIGHT)]
            writer.write(b"".join(frames))
            for n in range(IN_FLIGHT):
                answer = decode_response("Metadata", 9, await read_frame(reader))
                assert answer.correlation_id == number + n
                assert answer.body["Topics"][0]["ErrorCode"] == Code.UNKNOWN_TOPIC_OR_PARTITION
            number += IN_FLIGHT
            if session.upstream.renew_at != before:
                renewed, before = renewed + 1, session.upstream.renew_at
        return renewed, number

    try:
        renewed, asked = asyncio.run(asyncio.wait_for(work(), 60))
        told = asyncio.run(lifetime_told(*access.bootstrap.split(":"), access))
    finally:
        running.stop()

    assert renewed
    assert asked > 0
    assert told == 0


async def lifetime_told(host: str, port: str, access: Access) -> float:
    async with await Connection.open(host, int(port), access.security()) as connection:
        return connection.expires_at or 0
