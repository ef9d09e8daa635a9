"""Platform calls of a gateway without the platform key: which control plane, and what failures become."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.credentials.gateway_credentials import GatewayCredentials, gateway_token
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.gateway.config import ServiceAccount, Tenant
from penstock.gateway.process.control_plane_calls import ControlPlaneCalls
from penstock.gateway.settings import ControlPlanes, GatewaySettings
from penstock.kafka.admin.acls import Acl, Operation, ResourceType, acl_entry
from penstock.model.errors.gateway import PlatformCallRefused, PlatformCallUnavailable
from penstock.model.ids import LogicalClusterId, PhysicalClusterId, ServiceAccountId
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CREDENTIALS = GatewayCredentials(PhysicalClusterId("pkc-000001"), "kafka-a", PlatformKey(b"t" * 32))
ACCOUNT = ServiceAccountId("sa-000001")
TENANT = Tenant(LogicalClusterId("lkc-000001"), {ACCOUNT: ServiceAccount(ACCOUNT)})
READ = Acl("User:lkc-000001_sa-000001", Operation.READ, ResourceType.TOPIC, "lkc-000001_orders")
WRITE = replace(READ, operation=Operation.WRITE)


DIES = 0  # instead of a status: the connection ends without a response, or within it if there is a reply


class ControlPlane:
    """Responds to each call with the next status and body, and keeps what it was sent."""

    def __init__(self, *replies: tuple[int, Any]) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        plane, left = self, list(replies)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                plane.received.append((self.headers["Authorization"], body))
                status, reply = left.pop(0)
                if status == DIES:
                    self.close_connection = True
                    if reply is not None:
                        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                    return
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def planes() -> Iterator[list[ControlPlane]]:
    started: list[ControlPlane] = []
    yield started
    for plane in started:
        plane.stop()


def calls_to(*urls: str) -> ControlPlaneCalls:
    control = ControlPlanes(urls) if urls else None
    no_key: Path = None  # type: ignore[assignment]  # it has none
    return ControlPlaneCalls(
        GatewaySettings("gw-1", "127.0.0.1", "gw", no_key, credentials=CREDENTIALS, control=control)
    )


async def test_another_control_plane_is_tried_when_one_is_down_or_fails(planes: list[ControlPlane]) -> None:
    failing = ControlPlane((503, {"detail": "not caught up"}))
    serving = ControlPlane((200, {"result": []}), (200, {"result": [acl_entry_of(READ)]}))
    planes += [failing, serving]
    calls = calls_to("http://127.0.0.1:1", failing.url, serving.url)

    assert await calls.acls_of(TENANT, [ACCOUNT]) == []
    assert await calls.acls_of(TENANT, [ACCOUNT]) == [READ]

    assert len(failing.received) == 1  # the one that responded is tried first from now on
    authorization, body = serving.received[0]
    assert authorization == f"Bearer {gateway_token('pkc-000001', 'gw-1', CREDENTIALS.key)}"
    assert body == {"tenant": "lkc-000001", "call": "acls_of", "arguments": {"accounts": ["sa-000001"]}}
    await calls.close()


@pytest.mark.parametrize("reply", [None, "half of one"])
async def test_a_control_plane_that_dies_during_a_call_is_replaced_by_another(
    planes: list[ControlPlane], reply: str | None
) -> None:
    """It may have executed the call: every call can be executed twice."""
    dying, other = ControlPlane((DIES, reply)), ControlPlane((200, {"result": [None]}))
    planes += [dying, other]
    calls = calls_to(dying.url, other.url)

    assert await calls.create(TENANT, [READ]) == {READ: None}

    assert [len(plane.received) for plane in planes] == [1, 1]
    assert dying.received == other.received
    await calls.close()


async def test_while_none_responds_the_error_is_retriable_and_a_refusal_is_not(
    planes: list[ControlPlane],
) -> None:
    planes.append(ControlPlane((403, {"detail": "not one of its tenants"}), (200, ["nothing"])))
    nowhere, none, refusing = calls_to("http://127.0.0.1:1"), calls_to(), calls_to(planes[0].url)

    with pytest.raises(PlatformCallUnavailable) as unavailable:
        await nowhere.groups_with_configs(TENANT)
    assert unavailable.value.retriable
    with pytest.raises(PlatformCallUnavailable, match=r"control\.urls"):
        await none.broker_configs(TENANT, 1, ["a"])
    with pytest.raises(PlatformCallRefused, match="not one of its tenants"):
        await refusing.groups_with_configs(TENANT)
    with pytest.raises(PlatformCallUnavailable):
        await refusing.log_dirs(TENANT, 1, {"lkc-000001_orders": [0]})
    for calls in (nowhere, none, refusing):
        await calls.close()


async def test_what_one_control_plane_refuses_another_may_execute(planes: list[ControlPlane]) -> None:
    """A standby that is cut off from its home does not know of new tenants and accounts."""
    behind = ControlPlane((403, {"detail": "not one of its tenants"}), (403, {"detail": "the same"}))
    current = ControlPlane((200, {"result": ["g"]}), (503, {"detail": "not caught up"}))
    planes += [behind, current]
    calls = calls_to(behind.url, current.url)

    assert await calls.groups_with_configs(TENANT) == ["g"]
    with pytest.raises(PlatformCallUnavailable, match="not caught up"):  # it may be right, so retry
        await calls.groups_with_configs(TENANT)

    assert [len(plane.received) for plane in planes] == [2, 2]
    await calls.close()


GARBAGE: tuple[Any, ...] = (None, 7, "x", ["x"], [["x"]], {"x": 1}, {"x": [1]}, {"x": ["y", "z"]}, [{}])


async def test_a_result_of_another_form_is_retriable(planes: list[ControlPlane]) -> None:
    replies = [(200, {"result": result}) for result in GARBAGE for _ in range(4)]
    planes.append(ControlPlane(*replies))
    calls = calls_to(planes[0].url)

    for result in GARBAGE:
        for call in (
            calls.acls_of(TENANT, [ACCOUNT]),
            calls.create(TENANT, [READ, WRITE]),
            calls.partitions_of(1, TENANT),
        ):
            with pytest.raises(PlatformCallUnavailable):
                await call
        if not isinstance(result, str | list | dict):
            with pytest.raises(PlatformCallUnavailable):
                await calls.groups_with_configs(TENANT)
    await calls.close()


async def test_each_acl_has_its_outcome(planes: list[ControlPlane]) -> None:
    planes.append(ControlPlane((200, {"result": [None, int(Code.POLICY_VIOLATION)]})))
    calls = calls_to(planes[0].url)

    outcomes = await calls.create(TENANT, [READ, WRITE])

    assert outcomes[READ] is None
    failure = outcomes[WRITE]
    assert failure is not None
    assert failure.facts["error_code"] == Code.POLICY_VIOLATION
    assert await calls.delete(TENANT, []) == {}
    await calls.close()


def acl_entry_of(acl: Acl) -> dict[str, str]:
    entry = acl_entry(acl)
    names = ("user", "resource", "name", "pattern", "operation", "permission", "host")
    return {name: getattr(entry, name) for name in names}
