"""A shadow's session with the controllers: registration, heartbeats, and the tail of the metadata log.

A heartbeat carries how far the metadata log was read. If that stood still, the shadow would stay fenced
and delay other brokers' controlled shutdown. It also cordons the shadow's log directory, so that no topic
is placed there unless its assignment names the shadow.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.kafka.metadata_image import MetadataFollower
from penstock.kafka.routing import CONTROLLER
from penstock.model.errors import PenstockError
from penstock.model.errors.shadow import (
    MetadataVersionUntested,
    ShadowIdTaken,
    ShadowNotUnfenced,
    ShadowRegistrationRejected,
)
from penstock.model.fault_points import declare, reach
from penstock.model.shadow_ids import METADATA_VERSION, METADATA_VERSIONS_TESTED
from penstock.shadow.identity import NO_BROKER_EPOCH
from penstock.wire.error_codes import Code, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from penstock.kafka.metadata_image import MetadataImage
    from penstock.shadow.identity import Identity

HEARTBEAT_SECONDS: Final = 0.5
REGISTER_SECONDS_MAX: Final = (
    60.0  # another incarnation's session ends in broker.session.timeout.ms, 9 s by default
)
UNFENCED_SECONDS_MAX: Final = 60.0
RETRY_SECONDS: Final = 0.5
TAIL_WAIT_SECONDS: Final = 0.5
CALL_SECONDS: Final = 5.0

REGISTERED: Final = declare("shadow.registered", "the shadow is registered and fenced")
UNFENCED: Final = declare("shadow.unfenced", "the shadow is unfenced, and may be elected")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How brokers connect to the shadow."""

    listener: str
    host: str
    port: int
    security_protocol: int  # Kafka's number: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


class Session:
    """Registered with the controllers while `run` runs. `image` follows the metadata log."""

    def __init__(
        self, controllers: Client, identity: Identity, endpoint: Endpoint, *, on_change: Callable[[], None]
    ) -> None:
        self._controllers = controllers
        self._identity = identity
        self._endpoint = endpoint
        self._on_change = on_change
        self.wants_shutdown = False
        self._metadata = MetadataFollower(controllers)
        self.broker_epoch = NO_BROKER_EPOCH
        self.fenced = True
        self.shut_down = asyncio.Event()

    @property
    def image(self) -> MetadataImage:
        return self._metadata.image

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tail(), name="metadata log")
            group.create_task(self._keep_registered(), name="heartbeats")

    async def wait_unfenced(self) -> None:
        deadline = time.monotonic() + UNFENCED_SECONDS_MAX + REGISTER_SECONDS_MAX
        while self.fenced:
            if time.monotonic() > deadline:
                seconds = UNFENCED_SECONDS_MAX + REGISTER_SECONDS_MAX
                raise ShadowNotUnfenced(broker=self._identity.broker_id, seconds=seconds)
            await asyncio.sleep(0.02)
        reach(UNFENCED)

    def request_shutdown(self) -> None:
        """Ask the controller to elect other leaders; `shut_down` is set when it has."""
        self.wants_shutdown = True

    async def _tail(self) -> None:
        while True:
            try:
                chunk = await self._metadata.read(wait_seconds=TAIL_WAIT_SECONDS, timeout=CALL_SECONDS)
            except PenstockError as error:
                log.warning("metadata log not read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if chunk.next_offset >= chunk.high_watermark:
                self._check_version()
            if chunk.records:
                self._on_change()

    def _check_version(self) -> None:
        """Fail closed: another metadata version changes what followers send."""
        level = self.image.features.get(METADATA_VERSION, 0)
        if level not in METADATA_VERSIONS_TESTED:
            tested = ", ".join(map(str, METADATA_VERSIONS_TESTED))
            raise MetadataVersionUntested(level=level, tested=tested)

    async def _keep_registered(self) -> None:
        await self._register()
        while not self.shut_down.is_set():
            try:
                response = await self._heartbeat()
            except PenstockError as error:
                log.warning("heartbeat failed", error=str(error))
                await asyncio.sleep(HEARTBEAT_SECONDS)
                continue
            code = response["ErrorCode"]
            if code in (Code.STALE_BROKER_EPOCH, Code.BROKER_ID_NOT_REGISTERED):
                log.warning("registration lost", error=name_of(code))
                self.fenced = True
                await self._register()
                continue
            if code:
                log.warning("heartbeat rejected", error=name_of(code))
            elif response["IsFenced"] != self.fenced:
                self.fenced = response["IsFenced"]
                log.info("shadow fenced" if self.fenced else "shadow unfenced")
            if response["ShouldShutDown"]:
                self.shut_down.set()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _heartbeat(self) -> dict[str, Any]:
        body = {
            "BrokerId": self._identity.broker_id,
            "BrokerEpoch": self.broker_epoch,
            "CurrentMetadataOffset": self._metadata.position - 1,
            "WantFence": False,
            "WantShutDown": self.wants_shutdown,
            "OfflineLogDirs": [],
            "CordonedLogDirs": [self._identity.directory_id],
        }
        return await self._controllers.call(
            "BrokerHeartbeat", body, to=CONTROLLER, timeout=CALL_SECONDS, lane="heartbeats"
        )

    async def _register(self) -> None:
        deadline = time.monotonic() + REGISTER_SECONDS_MAX
        broker = self._identity.broker_id
        while True:
            try:
                response = await self._send_registration()
                code = response["ErrorCode"]
            except PenstockError as error:
                if time.monotonic() > deadline:
                    raise ShadowRegistrationRejected(broker=broker, reason=str(error)) from error
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if code == Code.NONE:
                self.broker_epoch = response["BrokerEpoch"]
                log.info("shadow registered", broker=broker, epoch=self.broker_epoch)
                reach(REGISTERED)
                return
            if code != Code.DUPLICATE_BROKER_REGISTRATION:
                raise ShadowRegistrationRejected(broker=broker, reason=name_of(code))
            if time.monotonic() > deadline:
                raise ShadowIdTaken(broker=broker, seconds=REGISTER_SECONDS_MAX)
            await asyncio.sleep(RETRY_SECONDS)

    async def _send_registration(self) -> dict[str, Any]:
        connection = await self._controllers.connection(CONTROLLER)
        # As wide as the controllers': a narrower range would block an upgrade of the cluster.
        features = [
            {
                "Name": feature["Name"],
                "MinSupportedVersion": feature["MinVersion"],
                "MaxSupportedVersion": feature["MaxVersion"],
            }
            for feature in connection.api_versions["SupportedFeatures"]
        ]
        endpoint = self._endpoint
        listener = {
            "Name": endpoint.listener,
            "Host": endpoint.host,
            "Port": endpoint.port,
            "SecurityProtocol": endpoint.security_protocol,
        }
        body = {
            "BrokerId": self._identity.broker_id,
            "ClusterId": self._identity.cluster_id,
            "IncarnationId": self._identity.incarnation_id,
            "Listeners": [listener],
            "Features": features,
            "Rack": None,
            "IsMigratingZkBroker": False,
            "LogDirs": [self._identity.directory_id],
            "PreviousBrokerEpoch": NO_BROKER_EPOCH,
        }
        return await self._controllers.call(
            "BrokerRegistration", body, to=CONTROLLER, timeout=CALL_SECONDS, lane="heartbeats"
        )
