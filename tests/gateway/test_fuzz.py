"""Frames that are nearly right: the connection is closed or refused, the process steady, others unharmed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from penstock.gateway.config import TenantLimits
from penstock.gateway.dialogue import decoded
from penstock.gateway.settings import Bounds
from penstock.gateway.states import State
from penstock.model.errors import PenstockError
from penstock.wire.frames import Request, encode_request
from tests.gateway.slots import NAMES, Chosen, body_of, names_in, served
from tests.gateway.test_attacks import Victim, snapshot, victim
from tests.gateway.test_endurance import serves
from tests.gateway.test_slots import CHOICES, FOREIGN_ID, OWN
from tests.gateway.wires import quiet_gateway, serving_session
from tests.ground.fleet import wait_for
from tests.ground.gateway import raw_login

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet
    from tests.ground.gateway import Access, RunningGateway

__all__ = ["victim"]

WIDE_OPEN = Bounds(attempts_per_address_per_second=1e6, failed_logins_per_address=10**9, half_open_max=10**6)
UNLIMITED = TenantLimits(connections_max=10**6, connection_attempts_per_second=1e6)
FRAMES_A_CONNECTION = 8
CONNECTIONS_AT_ONCE = 8
# A bit more in a count of partitions would keep a real cluster busy for minutes.
COSTLY = frozenset(("CreateTopics", "CreatePartitions"))
GROWTH_BYTES_MAX = 64 << 20


def mutated(luck: random.Random, frame: bytes) -> bytes:
    """A frame with a few bytes changed, cut out or put in; its size is right, mostly."""
    data = bytearray(frame)
    for _ in range(luck.choice((1, 1, 2, 5))):
        place = luck.randrange(4, len(data)) if len(data) > 4 else 0
        match luck.randrange(5):
            case 0:
                data[place : place + 1] = bytes([luck.randrange(256)])
            case 1:
                data[place : place + 1] = luck.choice(
                    (b"\xff", b"\x7f", b"\x80", b"\0", b"\xff\xff\xff\xff\x0f")
                )
            case 2:
                del data[place : place + luck.randrange(1, 9)]
            case 3:
                data[place:place] = luck.randbytes(luck.randrange(1, 9))
            case _:
                other = luck.randrange(4, len(data)) if len(data) > 4 else 0
                data[place:place] = data[other : other + 16]
    if luck.random() < 0.95:
        data[:4] = (len(data) - 4).to_bytes(4)
    return bytes(data)


def frames(luck: random.Random, chosen: Chosen, *, costly: bool) -> bytes:
    """Some frames, each nearly right, of APIs and versions by chance."""
    found = []
    for number in range(luck.randrange(1, FRAMES_A_CONNECTION + 1)):
        api, version = luck.choice(served())
        if costly or api not in COSTLY:
            whole = encode_request(Request(api, version, number, "c", body_of(api, version, chosen)))
            found.append(mutated(luck, whole) if luck.random() < 0.8 else whole)
    return b"".join(found)


async def test_no_nearly_right_frame_takes_a_foreign_name_to_the_broker() -> None:
    luck = random.Random(7)
    read = closed = 0
    for _ in range(250):
        session, client, broker = serving_session(quiet_gateway(Bounds()))
        session.data_received(frames(luck, CHOICES["another tenant's"], costly=True))
        await asyncio.sleep(0)
        session.dialogue.stop()

        closed += session.life.state is State.CLOSED
        assert (session.life.state is State.CLOSED) == client.closed
        for frame in broker.frames():
            try:
                sent = decoded(frame)
            except PenstockError:  # a broker could not read it either
                continue
            read += 1
            for kind, value in names_in(sent.api, sent.version, sent.body):
                if kind in NAMES and value is not None:
                    assert value.encode().startswith(OWN), sent

    assert read > 40
    assert closed > 40


async def fuzz(access: Access, seed: int, count: int) -> int:
    """So many connections of such frames, a few at once; how many of them there were."""
    chosen = Chosen(*[access.prefix + "orders"] * 3, FOREIGN_ID, ".*")

    async def one(luck: random.Random) -> None:
        reader, writer = await raw_login(access)
        try:
            writer.write(frames(luck, chosen, costly=False))
            writer.write_eof()
            async with asyncio.timeout(0.5):
                while await reader.read(1 << 16):
                    pass
        except (TimeoutError, ConnectionError):
            pass  # it waits for the rest of a frame, or was cut off
        finally:
            writer.transport.abort()

    async def some(number: int) -> None:
        luck = random.Random(seed + number)
        for _ in range(count // CONNECTIONS_AT_ONCE):
            await one(luck)

    await asyncio.gather(*(some(number) for number in range(CONNECTIONS_AT_ONCE)))
    return count // CONNECTIONS_AT_ONCE * CONNECTIONS_AT_ONCE


async def attack(
    fleet: Fleet, victim: Victim, eve: Access, make_gateway: Callable[..., RunningGateway], connections: int
) -> None:
    attacker = replace(eve, tenant=replace(eve.tenant, limits=UNLIMITED))
    running = make_gateway(attacker, victim.access, bounds=WIDE_OPEN)
    before = await snapshot(fleet, victim)
    await fuzz(running.accesses[0], 1, CONNECTIONS_AT_ONCE)
    memory = psutil.Process().memory_info().rss

    made = await fuzz(running.accesses[0], random.randrange(10**9), connections)

    assert made >= connections - CONNECTIONS_AT_ONCE
    assert await serves(running.accesses[1])
    assert await serves(running.accesses[0])
    assert await snapshot(fleet, victim) == before
    await asyncio.to_thread(wait_for, lambda: not running.gateway.sessions, what="the connections to be gone")
    assert psutil.Process().memory_info().rss - memory < GROWTH_BYTES_MAX


@pytest.mark.kafka
async def test_a_live_gateway_stays_steady_under_frames_that_are_nearly_right(
    fleet: Fleet, victim: Victim, eve: Access, make_gateway: Callable[..., RunningGateway]
) -> None:
    await attack(fleet, victim, eve, make_gateway, 160)


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(3600)
async def test_a_million_frames_that_are_nearly_right(
    fleet: Fleet, victim: Victim, eve: Access, make_gateway: Callable[..., RunningGateway]
) -> None:
    await attack(fleet, victim, eve, make_gateway, 2 * 1_000_000 // FRAMES_A_CONNECTION)
