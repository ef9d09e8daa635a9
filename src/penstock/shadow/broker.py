"""The shadow broker: its registration, its server and the partitions it leads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from penstock.kafka.metadata_image import PartitionId
from penstock.kafka.routing import CONTROLLER, NodeWithId
from penstock.model.errors import PenstockError
from penstock.model.errors.shadow import ShadowIdInvalid, ShadowShutdownStuck
from penstock.model.errors.wire import BrokerUnknown
from penstock.model.fault_points import declare, reach
from penstock.model.shadow_ids import SHADOW_IDS, is_shadow
from penstock.shadow.following import Followed, abandoned, follow, join, regain, release, renew_epoch
from penstock.shadow.identity import load_identity
from penstock.shadow.registration import Endpoint, Session
from penstock.shadow.requests import Requests
from penstock.shadow.server import Server
from penstock.wire.error_codes import Code, name_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.kafka.client import Client
    from penstock.kafka.connection import Connection
    from penstock.kafka.metadata_image import MetadataImage, PartitionState
    from penstock.shadow.partition import LedPartition
    from penstock.wire.definitions import Versions
    from penstock.wire.frames import Request

LEARN_SECONDS: Final = 0.05  # between questions for a replica's end
DUTY_SECONDS: Final = 0.2  # between looks at in-sync replicas and new terms
SHUTDOWN_SECONDS_MAX: Final = 60.0
CALL_SECONDS: Final = 10.0
ABANDONED_SECONDS: Final = 40.0  # without a fetch of this partition, while others are fetched
# The request was not applied, and the metadata log will not show it. (With a stale epoch it will.)
ISR_REFUSED: Final = frozenset((Code.INELIGIBLE_REPLICA, Code.INVALID_REQUEST, Code.OPERATION_NOT_ATTEMPTED))
DEBUG_REPLICA: Final = -2  # ListOffsets of this replica id: any replica responds from its own log
LATEST: Final = -1
PROTOCOLS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}

LEADS: Final = declare("shadow.leads", "the shadow leads a partition, and has served nothing in this term")
ISR_REQUESTED: Final = declare("shadow.isr-requested", "new in-sync replicas were requested")
STEPPING_DOWN: Final = declare("shadow.stepping-down", "the shadow asked for a controlled shutdown")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    broker_id: int
    directory: Path
    listener: str  # the cluster's inter-broker listener
    host: str
    port: int  # 0: any free one
    admitted: frozenset[str]  # users of brokers and of the platform
    tls: ssl.SSLContext | None = None  # server side
    with_login: bool = True


class ShadowBroker:
    """Use as a context manager: registered and unfenced inside, and gone, if not shut down, outside."""

    def __init__(self, controllers: Client, brokers: Client, settings: ShadowSettings) -> None:
        if not is_shadow(settings.broker_id):
            raise ShadowIdInvalid(broker=settings.broker_id, first=SHADOW_IDS[0], last=SHADOW_IDS[-1])
        self._controllers = controllers
        self._brokers = brokers
        self.settings = settings
        self.id = settings.broker_id
        self.partitions: dict[PartitionId, LedPartition] = {}
        self._changed = asyncio.Event()
        self._requests = Requests(self)
        self._server = Server(
            self._requests.respond,
            lambda: self.image.credentials,
            admitted=settings.admitted,
            tls=settings.tls,
            with_login=settings.with_login,
        )
        self._session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._learning: dict[PartitionId, asyncio.Task[None]] = {}
        self._reviving: dict[PartitionId, asyncio.Task[None]] = {}

    @property
    def session(self) -> Session:
        assert self._session is not None, "the shadow is not started"
        return self._session

    @property
    def image(self) -> MetadataImage:
        return self.session.image

    async def __aenter__(self) -> Self:
        cluster = await self._brokers.cluster()
        identity = load_identity(self.settings.directory, self.id, cluster.id or "")
        port = await self._server.start(self.settings.host, self.settings.port)
        protocol = PROTOCOLS[self.settings.tls is not None, self.settings.with_login]
        endpoint = Endpoint(self.settings.listener, self.settings.host, port, protocol)
        self._session = Session(self._controllers, identity, endpoint, on_change=self._follow_metadata)
        session = asyncio.create_task(self._session.run(), name="shadow session")
        duties = asyncio.create_task(self._duties(), name="shadow duties")
        self._tasks = [session, duties]
        unfenced = asyncio.create_task(self._session.wait_unfenced())
        done, _ = await asyncio.wait({session, unfenced}, return_when=asyncio.FIRST_COMPLETED)
        if session in done:
            unfenced.cancel()
            await self.__aexit__()
            failure = session.exception()
            assert failure is not None
            raise _first(failure)
        await unfenced
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks, *self._learning.values(), *self._reviving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.close()

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """They end only with the shadow."""
        return tuple(self._tasks)

    def failure(self) -> BaseException | None:
        """Why the shadow has ended, if it has."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return _first(error)
        return None

    def lead(self, partition: LedPartition) -> None:
        """Serve this partition whenever the metadata log names the shadow as its leader."""
        self.partitions[partition.id] = partition
        self._follow_metadata()

    def forget(self, partition: PartitionId) -> None:
        """Serve this partition no longer."""
        if (led := self.partitions.pop(partition, None)) is not None:
            led.leadership = None
        if (learning := self._learning.pop(partition, None)) is not None:
            learning.cancel()

    def led(self, partition: PartitionId) -> LedPartition | None:
        return self.partitions.get(partition)

    def changed(self) -> asyncio.Event:
        """Set at the next change of any partition."""
        return self._changed

    def announce(self) -> None:
        """Wake the followers that wait for records or a high watermark."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def step_down(self) -> None:
        """A controlled shutdown: real in-sync replicas take over, without a gap."""
        reach(STEPPING_DOWN)
        self.session.request_shutdown()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS_MAX):
                await self.session.shut_down.wait()
        except TimeoutError:
            led = sum(partition.leadership is not None for partition in self.partitions.values())
            raise ShadowShutdownStuck(broker=self.id, count=led, seconds=SHUTDOWN_SECONDS_MAX) from None

    @property
    def is_stepping_down(self) -> bool:
        """From then on real brokers take over, also if that takes long: it cannot be taken back."""
        return self.session.wants_shutdown

    async def regain(self, topic: str, partition: PartitionId) -> None:
        """Lead a partition again that a real broker leads; returns when the shadow does."""
        await regain(self, self._brokers, topic, partition)

    async def follow(self, topic: str, partition: PartitionId, followed: Followed) -> None:
        """Stay in sync with a real leader that accepts records; returns when the shadow leads."""
        await follow(self, self._brokers, topic, partition, followed)

    async def join(self, places: Sequence[tuple[str, PartitionId]]) -> None:
        """Become the first replica of existing partitions; real brokers lead them until `regain`."""
        await join(self, self._brokers, places)

    async def release(self, topic: str, partition: PartitionId) -> None:
        """Let a real in-sync replica lead again."""
        await release(self, self._brokers, topic, partition)

    async def renew_epoch(self, topic: str, partition: PartitionId) -> None:
        """Begin a new term of leadership; a real in-sync replica leads in between."""
        await renew_epoch(self, self._brokers, topic, partition)

    async def forwarded_versions(self) -> dict[str, Versions]:
        return dict((await self._real_broker()).versions)

    async def forward(self, request: Request) -> dict[str, Any]:
        """Another broker's response, for clients that choose any broker."""
        connection = await self._real_broker()
        return await connection.call(request.api, request.body, version=request.version)

    async def _real_broker(self) -> Connection:
        brokers = self.image.brokers.items()
        real = [broker for broker, state in brokers if not state.fenced and not is_shadow(broker)]
        if not real:
            raise BrokerUnknown(node="real", known="none")
        return await self._brokers.connection(NodeWithId(min(real)), lane="forwarded")

    def endpoint_of(self, broker: int) -> dict[str, Any] | None:
        registered = self.image.brokers.get(broker)
        if registered is None or self.settings.listener not in registered.endpoints:
            return None
        host, port = registered.endpoints[self.settings.listener]
        return {"NodeId": broker, "Host": host, "Port": port, "Rack": registered.rack}

    def _follow_metadata(self) -> None:
        """Begin, continue or end terms of leadership as the metadata log has them."""
        for key, partition in self.partitions.items():
            state = self.image.partitions.get(key)
            if state is None or state.leader != self.id:
                partition.end_term()
            elif partition.leadership is None or partition.leader_epoch != state.leader_epoch:
                self._begin(partition, state)
            elif partition.leadership.update(state, time.monotonic()):
                partition.drop_acknowledged()
        self.announce()

    def _begin(self, partition: LedPartition, state: PartitionState) -> None:
        log.info("partition led", partition=str(partition), epoch=state.leader_epoch, isr=state.isr)
        partition.begin_term(state)
        if (learning := self._learning.pop(partition.id, None)) is not None:
            learning.cancel()
        self._learning[partition.id] = asyncio.create_task(self._learn_ends(partition, state.leader_epoch))
        reach(LEADS)

    async def _learn_ends(self, partition: LedPartition, epoch: int) -> None:
        """Read each real in-sync replica's end from its own log; nothing is served before."""
        while (
            (term := partition.leadership) is not None and term.state.leader_epoch == epoch and not term.ready
        ):
            for replica in [one for one in term.in_sync if one not in term.followers]:
                with contextlib.suppress(PenstockError):  # asked again below
                    end = await self.end_on(replica, partition.topic, partition.id.partition)
                    if end is not None:
                        term.learn(replica, partition.known_end(end), time.monotonic())
            if term.update(term.state, time.monotonic()):
                self.announce()
            await asyncio.sleep(LEARN_SECONDS)

    async def end_on(self, replica: int, topic: str, index: int, timestamp: int = LATEST) -> int | None:
        """An offset from a replica's own log, leader or not; None if it has none yet."""
        requested = {"PartitionIndex": index, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}
        body = {
            "ReplicaId": DEBUG_REPLICA,
            "IsolationLevel": 0,
            "Topics": [{"Name": topic, "Partitions": [requested]}],
        }
        response = await self._brokers.call(
            "ListOffsets", body, to=NodeWithId(replica), timeout=CALL_SECONDS, retry=False
        )
        row = response["Topics"][0]["Partitions"][0]
        return row["Offset"] if row["ErrorCode"] == Code.NONE else None

    async def _duties(self) -> None:
        while True:
            await asyncio.sleep(DUTY_SECONDS)
            now = time.monotonic()
            self._revive(now)
            unfenced = {broker: one.epoch for broker, one in self.image.brokers.items() if not one.fenced}
            changes = [
                (partition, isr)
                for partition in self.partitions.values()
                if partition.leadership is not None
                and partition.leadership.ready
                and (isr := partition.leadership.next_isr(partition.end, now, unfenced)) is not None
            ]
            if changes:
                try:
                    await self._alter_isr(changes)
                except PenstockError as error:
                    log.warning("in-sync replicas not changed", error=str(error))

    async def _alter_isr(self, changes: Sequence[tuple[LedPartition, tuple[int, ...]]]) -> None:
        topics = []
        for partition, isr in changes:
            term = partition.leadership
            assert term is not None
            members = [
                {"BrokerId": replica, "BrokerEpoch": self.image.brokers[replica].epoch}
                for replica in isr
                if replica in self.image.brokers
            ]
            row = {
                "PartitionIndex": partition.id.partition,
                "LeaderEpoch": term.state.leader_epoch,
                "NewIsrWithEpochs": members,
                "LeaderRecoveryState": 0,
                "PartitionEpoch": term.state.partition_epoch,
            }
            term.request(isr)
            topics.append({"TopicId": partition.id.topic_id, "Partitions": [row]})
        body = {"BrokerId": self.id, "BrokerEpoch": self.session.broker_epoch, "Topics": topics}
        response = await self._controllers.call("AlterPartition", body, to=CONTROLLER, timeout=CALL_SECONDS)
        reach(ISR_REQUESTED)
        codes = {response["ErrorCode"]}
        for topic in response["Topics"]:
            for row in topic["Partitions"]:
                codes.add(row["ErrorCode"])
                led = self.partitions.get(PartitionId(topic["TopicId"], row["PartitionIndex"]))
                if row["ErrorCode"] in ISR_REFUSED and led is not None and led.leadership is not None:
                    led.leadership.rejected()
        for code in codes - {Code.NONE}:
            log.info("in-sync replicas not accepted", error=name_of(code))

    def _revive(self, now: float) -> None:
        """A follower that gave one partition up, after an unusable response, returns with a new epoch."""
        for partition in abandoned(list(self.partitions.values()), now, ABANDONED_SECONDS):
            if partition.id not in self._reviving:
                log.warning("partition abandoned by a follower", partition=str(partition))
                self._reviving[partition.id] = asyncio.create_task(self._revive_one(partition))

    async def _revive_one(self, partition: LedPartition) -> None:
        try:
            await self.renew_epoch(partition.topic, partition.id)
        except PenstockError as error:
            log.warning("partition not revived", partition=str(partition), error=str(error))
        finally:
            await asyncio.sleep(ABANDONED_SECONDS)
            del self._reviving[partition.id]


def _first(error: BaseException) -> BaseException:
    """The error itself, of a group of tasks too."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
