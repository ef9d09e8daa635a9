"""A running gateway follows the brokers of its cluster: new ones are served, others are left."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from penstock.gateway.config import Broker, BrokerMetrics
from penstock.gateway.limits.calibration import Calibration
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.gateway.process import broker_source
from penstock.gateway.process.broker_source import BrokerSource
from penstock.gateway.process.tenant_source import StateSource
from penstock.gateway.settings import read_gateway_file
from penstock.kafka.security import PLAINTEXT
from penstock.model.ids import BrokerId, Zone
from tests.gateway.test_settings import DOCUMENT
from tests.gateway.wires import quiet_gateway

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.process.server import Gateway


def broker(number: int, port: int = 0, **more: Any) -> Broker:
    return Broker(BrokerId(number), Zone("a"), "127.0.0.1", 1, port, **more)


async def serving(*brokers: Broker) -> Gateway:
    gateway = quiet_gateway()
    gateway.config = replace(gateway.config, brokers=brokers)
    gateway._listen()
    return gateway


def connects(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def test_a_new_broker_is_listened_for_before_clients_are_shown_it_and_a_gone_one_is_not() -> None:
    gateway = await serving(broker(1), broker(2))
    try:
        kept = gateway.ports[1]
        gone = gateway.ports[2]

        gateway.apply_config(replace(gateway.config, brokers=(broker(1), broker(3))))

        assert gateway.ports.keys() == {1, 3}
        assert gateway.ports[1] == kept
        assert [connects(port) for port in (kept, gone, gateway.ports[3])] == [True, False, True]
        assert len(gateway.bootstrap.split(",")) == 2
        assert gateway._watches.keys() == {3}
    finally:
        await gateway.close()


async def test_a_broker_whose_port_is_taken_is_served_later() -> None:
    gateway = await serving(broker(1))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        new = broker(2, other.getsockname()[1])
        gateway.apply_config(replace(gateway.config, brokers=(broker(1), new)))
        assert gateway.ports.keys() == {1}
    try:
        gateway.apply_config(replace(gateway.config, brokers=(broker(1), new)))
        assert gateway.ports[2] == new.listen_port
    finally:
        await gateway.close()


def test_calibration_keeps_the_factors_of_brokers_that_stay() -> None:
    metrics = BrokerMetrics("127.0.0.1", 1, 8)
    one, two, three = (broker(number, metrics=metrics) for number in (1, 2, 3))
    calibration = Calibration([one, two], SharedCounters())
    before = calibration.of(one)

    calibration.follow([one, three])

    assert calibration.of(one) is before
    assert (calibration.of(two), calibration.of(three) is None) == (None, False)


async def test_the_settings_file_is_followed_for_its_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "FILE_SECONDS", 0.01)
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    settings, config = read_gateway_file(path)
    seen: list[GatewayConfig] = []
    source = StateSource("127.0.0.1:1", PLAINTEXT, config)
    monkeypatch.setattr(source, "rebase", seen.append)
    following = asyncio.create_task(BrokerSource(path, settings, config, source).run(None))  # type: ignore[arg-type]  # unused
    try:
        more = {"id": 99, "zone": "z", "address": "127.0.0.1:99", "port": 1099}
        path.write_text("not: [yaml")
        await asyncio.sleep(0.05)
        path.write_text(yaml.safe_dump({**DOCUMENT, "brokers": [*DOCUMENT["brokers"], more]}))
        async with asyncio.timeout(30):
            while not seen:
                await asyncio.sleep(0.01)
    finally:
        following.cancel()

    assert [int(one.id) for one in seen[-1].brokers] == [*(int(b.id) for b in config.brokers), 99]
