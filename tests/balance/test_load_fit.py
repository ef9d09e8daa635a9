"""Fitting a profile: on queues whose load is known, and driving a real broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.audit.intents import IntentLog
from penstock.balance.broker_load import DEFAULT, Measurement
from penstock.balance.load_calibration import TOPIC, Driver, Workload, measured_level, scraped
from penstock.balance.load_fit import Point, fit, quality
from penstock.fleet.spec import Listener
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.model.durability import Intent
from penstock.model.errors.balance import CalibrationFailed

if TYPE_CHECKING:
    from tests.harness.fleet import Fleet

LEVELS = [number / 20 for number in range(2, 20)]


def queue(offered: float, *, factor: float, busy: float, service_ms: float = 0.5) -> Point:
    """A broker with this variability whose handlers are so busy at saturation."""
    handlers = offered * busy
    requests = 1000 * handlers / service_ms
    wait = factor * service_ms * offered / (1 - offered)
    return Point(offered, Measurement(wait, handlers, handlers / 3, requests))


@settings(max_examples=10)
@given(st.floats(0.1, 10), st.floats(0.05, 1))
def test_a_fit_on_half_of_the_levels_holds_for_the_others(factor: float, busy: float) -> None:
    points = [queue(level, factor=factor, busy=busy) for level in LEVELS]

    result = quality(points[1::2], fit(points[::2]))

    assert result.r_squared >= 0.95
    assert result.worst_error <= 0.12


def test_the_default_underestimates_threads_that_are_never_all_busy() -> None:
    points = [queue(level, factor=1.0, busy=0.1) for level in LEVELS]

    assert quality(points, DEFAULT).worst_error > 0.5
    assert fit(points).handlers_full == pytest.approx(0.1)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="3 points"):
        fit([queue(0.9, factor=1, busy=1)] * 5)


async def test_the_topic_of_a_calibration_is_deleted_only_after_its_intent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next calibration creates it again: without the intent, the audit would report that."""
    calls: list[object] = []

    async def record(_log: IntentLog, planned: list[object]) -> None:
        calls.extend(planned)

    async def delete(_client: object, *, names: list[str]) -> dict[str, None]:
        calls.extend(names)
        return dict.fromkeys(names)

    monkeypatch.setattr(IntentLog, "record", record)
    monkeypatch.setattr(topics, "delete", delete)
    await Driver(cast("Client", None), 1, Workload()).clean_up()

    assert calls == [(f"named/{TOPIC}", Intent("topic-delete", "calibration")), TOPIC]


async def test_an_agent_without_the_beans_of_load_cannot_be_calibrated_with() -> None:
    page = b'HTTP/1.0 200 OK\r\n\r\nkafka_server_app_info_starttimems{id="7"} 1.7E12\n'

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        with pytest.raises(CalibrationFailed, match=r"broker 7.*RequestHandlerAvgIdlePercent"):
            await scraped(("127.0.0.1", server.sockets[0].getsockname()[1]))


@pytest.mark.kafka
async def test_a_real_broker_is_driven_at_a_rate(fleet: Fleet) -> None:
    node = fleet.brokers[0]
    agent = ("127.0.0.1", node.spec.ports[Listener.METRICS])
    async with Client(fleet.bootstrap, fleet.security()) as client:
        driver = Driver(client, node.spec.id, Workload(partitions=2, connections=4))
        await driver.prepare()
        try:
            measured = await measured_level(driver, agent, rate=20, seconds=2)
        finally:
            await driver.clean_up()

    assert driver.failures == 0
    assert measured.requests > 0
    assert measured.bytes_in > 0
    assert len(driver.latencies) > 0
