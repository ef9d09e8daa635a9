"""What clients can do to a gateway before they log in, as processes and sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.harness.gateway import new_access
from tests.harness.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Iterator
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
