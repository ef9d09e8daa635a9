"""What a shadow does when controllers refuse it, or its session does not begin or end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.kafka.metadata_image import PartitionId
from penstock.model.errors.shadow import (
    MetadataVersionUntested,
    PartitionNotLed,
    ShadowIdInvalid,
    ShadowIdTaken,
    ShadowNeverInSync,
    ShadowNotUnfenced,
    ShadowRegistrationRejected,
    ShadowShutdownStuck,
)
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow import broker as broker_module
from penstock.shadow import following, registration
from penstock.shadow.broker import ShadowBroker, ShadowSettings
from penstock.shadow.identity import Identity
from penstock.shadow.registration import Endpoint, Session
from penstock.wire.error_codes import Code
from penstock.wire.logs import Entry

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kafka.client import Client

BROKER = SHADOW_IDS[0]


class FakeControllers:
    """Responds to registrations with a code, and to heartbeats as given."""

    def __init__(self, code: Code = Code.NONE, *, fenced: bool = False) -> None:
        self.code = code
        self.fenced = fenced
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def connection(self, *_: object) -> object:
        feature = {"Name": "metadata.version", "MinVersion": 7, "MaxVersion": 33}
        return SimpleNamespace(api_versions={"SupportedFeatures": [feature]})

    async def call(self, api: str, body: dict[str, Any], **_: object) -> dict[str, Any]:
        self.sent.append((api, body))
        if api == "BrokerRegistration":
            return {"ErrorCode": self.code, "BrokerEpoch": 5}
        return {"ErrorCode": 0, "IsFenced": self.fenced, "ShouldShutDown": body["WantShutDown"]}


def session(controllers: FakeControllers) -> Session:
    identity = Identity(BROKER, "cluster", UUID(int=1), UUID(int=2))
    endpoint = Endpoint("INTERNAL", "localhost", 9, 3)
    return Session(cast("Client", controllers), identity, endpoint, on_change=lambda: None)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGISTER_SECONDS_MAX", "UNFENCED_SECONDS_MAX", "RETRY_SECONDS", "HEARTBEAT_SECONDS"):
        monkeypatch.setattr(registration, name, 0.01)
    monkeypatch.setattr(broker_module, "SHUTDOWN_SECONDS_MAX", 0.01)
    monkeypatch.setattr(following, "IN_SYNC_SECONDS_MAX", 0.01)


async def test_a_registration_offers_the_controllers_features_and_cordons_its_directory() -> None:
    controllers = FakeControllers()
    one = session(controllers)
    one.request_shutdown()
    await one._keep_registered()
    (_, registered), (_, heartbeat) = controllers.sent[:2]
    assert registered["Features"][0]["MaxSupportedVersion"] == 33
    assert registered["PreviousBrokerEpoch"] == -1
    assert heartbeat["CordonedLogDirs"] == registered["LogDirs"] == [UUID(int=1)]
    assert one.shut_down.is_set()
    assert not one.fenced


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.DUPLICATE_BROKER_REGISTRATION, ShadowIdTaken),
        (Code.CLUSTER_AUTHORIZATION_FAILED, ShadowRegistrationRejected),
    ],
)
async def test_a_rejected_registration_is_an_error(code: Code, error: type[Exception]) -> None:
    with pytest.raises(error):
        await session(FakeControllers(code))._keep_registered()


async def test_a_shadow_that_stays_fenced_is_an_error() -> None:
    with pytest.raises(ShadowNotUnfenced):
        await session(FakeControllers(fenced=True)).wait_unfenced()


def test_an_untested_metadata_version_is_refused() -> None:
    one = session(FakeControllers())
    one.image.apply(Entry("FeatureLevelRecord", 0, {"Name": "metadata.version", "FeatureLevel": 31}))
    with pytest.raises(MetadataVersionUntested, match="31"):
        one._check_version()


def settings(directory: Path, broker_id: int = BROKER) -> ShadowSettings:
    return ShadowSettings(broker_id, directory, "INTERNAL", "127.0.0.1", 0, frozenset())


def test_an_id_outside_the_reserved_range_is_refused(tmp_path: Path) -> None:
    client = cast("Client", FakeControllers())
    with pytest.raises(ShadowIdInvalid):
        ShadowBroker(client, client, settings(tmp_path, 3))


async def test_a_shutdown_or_an_election_that_does_not_happen_is_an_error(tmp_path: Path) -> None:
    client = cast("Client", FakeControllers())
    shadow = ShadowBroker(client, client, settings(tmp_path))
    shadow._session = session(FakeControllers())
    with pytest.raises(ShadowNeverInSync):
        await shadow.regain("orders", PartitionId(UUID(int=9), 0))
    with pytest.raises(ShadowShutdownStuck):
        await shadow.step_down()
    with pytest.raises(PartitionNotLed):  # it asks for no election while it steps down
        await shadow.regain("orders", PartitionId(UUID(int=9), 0))
    assert shadow.failure() is None
    assert isinstance(shadow.changed(), asyncio.Event)
