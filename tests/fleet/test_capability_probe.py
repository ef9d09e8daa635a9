"""What a probe makes of errors: a cluster that is only away has not lost its capabilities."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.fleet.adopted import capability_probe
from penstock.fleet.adopted.capabilities import Capability
from penstock.fleet.adopted.capability_probe import probe_capabilities
from penstock.fleet.adopted.rights import cluster_operations
from penstock.kafka import quorum
from penstock.kafka.admin import acls, brokers, quotas, users
from penstock.kafka.routing import Address
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.wire import BrokerUnreachable, KafkaRefused

if TYPE_CHECKING:
    from types import ModuleType

    from penstock.kafka.admin.brokers import Description
    from penstock.kafka.client import Client

NOWHERE = [Address("127.0.0.1", port) for port in (1, 2, 3)]
SECURITY = Security(Login("platform", "secret", Mechanism.SCRAM_SHA_512))
ONE_BROKER = SimpleNamespace(brokers={1: SimpleNamespace(id=1, rack="a", address=NOWHERE[0])})


def returns(value: Any) -> Any:
    async def call(*_: Any, **__: Any) -> Any:
        return value

    return call


def raises(error: Exception) -> Any:
    async def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A cluster that allows everything, with controllers that cannot be reached from here."""
    controllers = SimpleNamespace(addresses=dict(enumerate(NOWHERE)))

    async def operations(
        client: Client, *, controllers: bool = False, timeout: float = 9.0
    ) -> frozenset[int]:
        if controllers:
            return await cluster_operations(client, controllers=True, timeout=timeout)
        return frozenset(range(16))

    monkeypatch.setattr(capability_probe, "cluster_operations", operations)
    monkeypatch.setattr(brokers, "features", returns({}))
    monkeypatch.setattr(acls, "describe", returns([]))
    monkeypatch.setattr(capability_probe, "_broker_configs", returns({}))
    monkeypatch.setattr(capability_probe, "_scram_error", returns(None))
    monkeypatch.setattr(users, "describe", returns({}))
    monkeypatch.setattr(quotas, "describe", returns({}))
    monkeypatch.setattr(quorum, "describe", returns(controllers))
    return monkeypatch


async def missing() -> dict[Capability, str]:
    table = await probe_capabilities(
        cast("Client", None), cast("Description", ONE_BROKER), bootstrap="kafka:1", security=SECURITY
    )
    return {row.capability: row.reason for row in table if not row.available}


async def test_unreachable_controllers_have_the_same_reason_at_every_probe(
    cluster: pytest.MonkeyPatch,
) -> None:
    cluster.setattr(capability_probe, "CONTROLLERS_SECONDS_MAX", 0.1)

    reasons = {(await missing())[Capability.ISR_EXCLUSION] for _ in range(5)}

    (reason,) = reasons  # another one would be written to the registry at each probe
    assert "127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3" in str(reason)


@pytest.mark.parametrize("api", [acls, users, quotas], ids=["acls", "users", "quotas"])
async def test_a_broker_that_is_away_takes_no_capability_from_its_cluster(
    cluster: pytest.MonkeyPatch, api: ModuleType
) -> None:
    away = BrokerUnreachable(address="kafka:1", reason="connection refused")
    cluster.setattr(capability_probe, "_controllers_error", returns(None))
    cluster.setattr(api, "describe", raises(away))

    with pytest.raises(BrokerUnreachable):
        await missing()


async def test_a_refusal_is_a_missing_capability(cluster: pytest.MonkeyPatch) -> None:
    refusal = KafkaRefused(subject="", api="DescribeAcls", detail="SECURITY_DISABLED")
    cluster.setattr(capability_probe, "_controllers_error", returns(None))
    cluster.setattr(acls, "describe", raises(refusal))

    assert "SECURITY_DISABLED" in (await missing())[Capability.ACLS]
