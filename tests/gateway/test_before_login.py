"""What clients can do to a gateway before they log in, as processes and sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from penstock.gateway.limits.admission import Denial
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.wire import LoginRefused
from tests.gateway.test_server import place
from tests.harness.gateway import RunningGateway, new_access
from tests.harness.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka
SECONDS = 30.0


@pytest.fixture
def file(fleet: Fleet, tmp_path: Path) -> Iterator[GatewayFile]:
    file = GatewayFile(fleet, tmp_path / "gateway.yaml")
    yield file
    file.stop()


def test_metrics_are_not_served_on_the_tenants_address(file: GatewayFile) -> None:
    file.settings["listen"] = "127.0.0.2"
    file.write(new_access())

    (process,) = file.start().processes

    address = urlsplit(process.metrics)
    assert address.hostname == "127.0.0.1"
    with urlopen(process.metrics, timeout=SECONDS) as response:
        assert b"penstock_gateway_denials" in response.read()
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.2:{address.port}/metrics", timeout=SECONDS)


async def test_a_client_with_a_wrong_secret_does_not_lock_out_others_at_its_address(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = await asyncio.to_thread(make_gateway, new_access(), new_access())
    ada, bob = running.accesses
    secret = "w" * 64
    wrong = Security(Login(ada.key, secret, Mechanism.PLAIN))

    with capture_logs() as lines:
        outcomes = await asyncio.gather(
            *(Connection.open(*place(ada), wrong) for _ in range(40)), return_exceptions=True
        )
        for access in (ada, bob):
            async with await Connection.open(*place(access), access.security()) as connection:
                await connection.call("DescribeCluster", {})

    assert {type(outcome) for outcome in outcomes} == {LoginRefused}
    denied = [line for line in lines if line["event"] == "denied"]
    assert {(line["reason"], line["tenant"], line["key"]) for line in denied} == {
        (Denial.BAD_CREDENTIALS, ada.tenant.id, ada.key)
    }
    assert secret not in str(lines)
