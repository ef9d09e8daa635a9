"""Reads the brokers of a cluster that a gateway knows by its bootstrap address.

An unreachable cluster is waited for. A wrong CA, an expired certificate or refused credentials need an
operator, so they end the process.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.gateway.config import Broker
from penstock.gateway.process.tenant_source import gateway_client
from penstock.gateway.settings import Routing
from penstock.kafka.admin import brokers
from penstock.model.backoff import Backoff
from penstock.model.errors import UnavailableError
from penstock.model.errors.gateway import CredentialsOfOtherCluster, CredentialsRefused
from penstock.model.errors.settings import SettingInvalid
from penstock.model.errors.wire import LoginRefused
from penstock.model.ids import BrokerId, Zone
from penstock.model.settings_reader import PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.settings import GatewaySettings
    from penstock.kafka.admin.brokers import Description

REACH_SECONDS_MAX: Final = 5.0  # for the cluster to describe itself
AGAIN: Final = Backoff(0.5, 10.0)
NO_ZONE: Final = Zone("none")  # of brokers without a rack

log = structlog.get_logger("penstock.gateway")


async def with_brokers(
    path: Path, settings: GatewaySettings, config: GatewayConfig, report: Callable[[str], None]
) -> GatewayConfig:
    """The configuration with the brokers that the cluster has, once it is reachable."""
    assert settings.kafka is not None
    attempt = 0
    while True:
        try:
            described = await _describe(path, settings, config)
            return replace(config, brokers=placed(path, settings, config, described))
        except UnavailableError as failure:
            if attempt == 0:
                report(f"waiting for the brokers: {failure}")
            log.warning("brokers not reached", error=str(failure), remedy=failure.advice)
        attempt += 1
        await asyncio.sleep(AGAIN.seconds(attempt))


async def _describe(path: Path, settings: GatewaySettings, config: GatewayConfig) -> Description:
    assert settings.kafka is not None
    assert settings.credentials is not None
    bootstrap = settings.kafka.bootstrap
    try:
        async with gateway_client(settings, config) as client:
            described = await brokers.describe(client, timeout=REACH_SECONDS_MAX)
    except LoginRefused as refused:
        raise CredentialsRefused(bootstrap=bootstrap, path=path, reason=refused.facts["reason"]) from refused
    if described.cluster_id != settings.credentials.kafka_id:
        expected = settings.credentials.kafka_id
        raise CredentialsOfOtherCluster(
            path=path, expected=expected, bootstrap=bootstrap, actual=described.cluster_id
        )
    return described


def placed(
    path: Path,
    settings: GatewaySettings,
    config: GatewayConfig,
    described: Description,
    *,
    quiet: bool = False,
) -> tuple[Broker, ...]:
    """The cluster's brokers, each with its port: from the file, or `port` plus its id."""
    in_file = {broker.id: broker for broker in config.brokers}
    result = []
    for number, broker in sorted(described.brokers.items()):
        zone = Zone(broker.rack) if broker.rack else NO_ZONE
        port = settings.port + number if settings.port and settings.routing is Routing.PORT else 0
        for base, key in ((settings.port, "port"), (settings.advertised_port or 0, "advertised_port")):
            if settings.routing is Routing.PORT and base + number > PORT_MAX:
                expected = f"expected a port with room for broker {number}: its port is this one plus its id"
                raise SettingInvalid(where=path, key=key, value=base, expected=expected)
        default = Broker(BrokerId(number), zone, "", 0, port)
        known = in_file.pop(BrokerId(number), default)
        address = broker.address
        listen_port = known.listen_port or port
        result.append(
            replace(known, zone=zone, host=address.host, port=address.port, listen_port=listen_port)
        )
    for missing in () if quiet else in_file:
        log.warning("broker of the file not in the cluster", broker=missing)
    return tuple(result)
