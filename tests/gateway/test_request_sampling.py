"""Sampled log lines of requests and connections: which, with which fields, and at no cost when off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client.core import CounterMetricFamily
from structlog.testing import capture_logs

from penstock.gateway.connection.request_sampling import LINES_PER_SECOND_MAX, TenantSample
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.settings import Bounds
from penstock.wire.error_codes import Code
from tests.gateway.test_fast_path import batch, produce, response, topic
from tests.gateway.test_session import beat, heartbeat, request, versions_request
from tests.gateway.wires import TENANT, quiet_gateway, serving_session

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from penstock.gateway.process.session import Session
    from tests.gateway.wires import Wire

NAMES = ("orders", "lkc-7hq2mz_", "client", "xxxx")


@pytest.fixture(autouse=True)
def _every_line() -> None:
    """Log everything again: a command run by another test in this process may have left only warnings."""
    structlog.reset_defaults()


def serving(rate: float | None, *, gateways: float = 0.0) -> tuple[Session, Wire, Wire]:
    """A session of a tenant with this rate, on a gateway with another."""
    gateway = quiet_gateway(Bounds())
    gateway.services.sampling.rate = gateways
    assert gateway.admission.admit_connection("127.0.0.1", gateway.now()) is None
    assert gateway.admission.admit_login(TENANT, "127.0.0.1", gateway.now()) is None
    session, client, broker = serving_session(gateway, replace(TENANT, log_sample=rate))
    gateway.sessions[1] = session
    return session, client, broker


def logged(work: Callable[[], object], event: str = "request") -> list[MutableMapping[str, Any]]:
    with capture_logs() as lines:
        work()
    return [line for line in lines if line["event"] == event]


def receive(session: Session, *frames: bytes) -> None:
    for frame in frames:
        session.data_received(frame)


async def test_every_third_request_is_logged_starting_with_the_first() -> None:
    session, client, _ = serving(0.33)

    def ask() -> None:
        for number in range(7):
            session.data_received(heartbeat(number))
            session.from_broker(beat(number))

    lines = logged(ask)

    assert len(lines) == 3
    assert len(client.frames()) == 7
    assert {line["api"] for line in lines} == {"Heartbeat"}
    assert lines[0]["tenant"] == TENANT.id
    assert lines[0]["connection"] == session.connection.number
    assert (lines[0]["bytes_in"], lines[0]["bytes_out"]) == (len(heartbeat(0)), len(beat(0)))
    assert lines[0]["broker_ms"] >= 0


async def test_requests_on_the_fast_path_are_logged_like_others() -> None:
    session, client, broker = serving(1.0)
    frames = [produce(9, n, [topic(9, "orders", (0, batch(1, 90)))]) for n in range(4)]
    responses: list[bytes] = []

    def ask() -> None:
        for frame in frames:
            session.data_received(frame)
            (sent,) = broker.frames()
            responses.append(response(sent) or b"")
            session.from_broker(responses[-1])

    lines = logged(ask)

    assert session.connection.fast_path.known is not None  # the later ones took the fast path
    assert [line["bytes_in"] for line in lines] == [len(frame) for frame in frames]
    assert [line["bytes_out"] for line in lines] == [len(frame) for frame in responses]
    assert len(client.frames()) == 4
    assert not any(name in str(lines) for name in NAMES if name != "client")


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_request_without_a_response_is_logged_at_once(acks: int) -> None:
    session, _, _ = serving(1.0)
    frames = [produce(9, n, [topic(9, "orders", (0, batch(1, 90)))], Acks=acks) for n in range(3)]

    lines = logged(lambda: receive(session, *frames))

    assert len(lines) == (0 if acks else 3)
    assert all(line["bytes_out"] == 0 for line in lines)


async def test_local_and_refused_requests_are_logged_without_broker_time() -> None:
    session, client, _ = serving(1.0)
    created = request("DeleteTopics", 1, 5, TopicNames=["x" * 300], TimeoutMs=9)  # too long for the prefix

    lines = logged(lambda: receive(session, versions_request(4), created))

    assert [line["api"] for line in lines] == ["ApiVersions", "DeleteTopics"]
    assert all("broker_ms" not in line for line in lines)
    assert [line["bytes_out"] for line in lines] == [4 + len(frame) for frame in client.frames()]
    assert "xxxx" not in str(lines)


async def test_a_broker_error_is_logged_by_name() -> None:
    session, _, broker = serving(1.0)

    def ask() -> None:
        session.data_received(produce(9, 1, [topic(9, "orders", (0, batch(1, 90)))]))
        session.from_broker(response(broker.frames()[0], error=Code.NOT_LEADER_OR_FOLLOWER) or b"")

    (line,) = logged(ask)

    assert line["error"] == "NOT_LEADER_OR_FOLLOWER"


async def test_a_connection_is_logged_at_login_and_when_it_closes() -> None:
    with capture_logs() as lines:
        session, _, _ = serving(None, gateways=1.0)
        session.data_received(heartbeat(1))
        session.from_broker(beat(1))
        session.close("drained")
        session.connection_lost(None)

    first, _, last = (line for line in lines if "connection" in line)  # other gateways may log, too
    assert (first["event"], last["event"]) == ("connection opened", "connection closed")
    assert first["address"] == "127.0.0.1"
    assert (last["reason"], last["requests"]) == ("drained", 1)
    assert (last["bytes_in"], last["bytes_out"]) == (len(heartbeat(1)), len(beat(1)))


@pytest.mark.parametrize(("tenants", "gateways"), [(None, 0.0), (0.0, 1.0)])
async def test_without_a_rate_nothing_is_sampled(tenants: float | None, gateways: float) -> None:
    session, _, _ = serving(tenants, gateways=gateways)

    assert session.connection.sample is None
    assert not session.server.services.sampling.tenants


async def test_log_lines_beyond_the_limit_per_second_are_counted() -> None:
    gateway = quiet_gateway()
    sampled = gateway.services.sampling.tenants[TENANT.id] = TenantSample(TENANT.id, 1.0)

    def say(now: float, count: int) -> None:
        for _ in range(count):
            sampled.log("request", now, {})

    first, second = logged(lambda: say(7.5, LINES_PER_SECOND_MAX + 5)), logged(lambda: say(8.0, 1))

    assert (len(first), len(second), sampled.dropped) == (LINES_PER_SECOND_MAX, 1, 5)
    families = {family.name: family for family in GatewayMetrics(gateway).collect()}
    family = families["penstock_gateway_log_lines_dropped"]
    assert isinstance(family, CounterMetricFamily)
    assert [sample.value for sample in family.samples] == [5.0]


async def test_a_new_rate_applies_to_the_next_connection_and_a_removed_tenant_is_forgotten() -> None:
    session, _, _ = serving(1.0)
    samples = session.server.services.sampling
    samples.tenants[TENANT.id].dropped = 3

    samples.of(replace(TENANT, log_sample=0.5))

    assert (samples.tenants[TENANT.id].every, samples.tenants[TENANT.id].dropped) == (2, 3)
    samples.forget(())
    assert not samples.tenants
