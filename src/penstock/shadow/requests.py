"""Requests of followers and clients, answered.

Followers get records and offsets through `responses`. Consumers are sent to a real follower (KIP-392).
Produce is rejected, with POLICY_VIOLATION for a mirror. Any other request goes to a real broker.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog

from penstock.kafka.metadata_image import PartitionId
from penstock.model.errors import PenstockError
from penstock.shadow.responses import (
    Diverge,
    FollowerFetch,
    Refuse,
    Serve,
    epoch_end_response,
    fetch_response,
    list_offsets_response,
)
from penstock.timed_wait import wait_at_most
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code
from penstock.wire.frames import API_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from penstock.kafka.metadata_image import MetadataImage
    from penstock.shadow.partition import LedPartition
    from penstock.wire.definitions import Versions
    from penstock.wire.frames import Request

READ_ONLY: Final = "this partition is a read-only mirror"
CONSUMER_REDIRECT_FIRST: Final = 11  # of Fetch: PreferredReadReplica
ENDPOINTS_FIRST: Final = 16  # of Fetch: NodeEndpoints
REPLICA_STATE_FIRST: Final = 15  # of Fetch
OLDER_SECONDS_MAX: Final = 5.0  # for all records below windows of one fetch, from the source
WAIT_MS_MAX: Final = 30_000
_OWN: Final = (API_VERSIONS, "SaslHandshake", "SaslAuthenticate", "Fetch", "ListOffsets")
_OWN_TOO: Final = ("OffsetForLeaderEpoch", "Produce", "WriteTxnMarkers")
SERVED: Final = (*_OWN, *_OWN_TOO)

log = structlog.get_logger()


class Fetcher(NamedTuple):
    replica: int
    broker_epoch: int
    received_at: float  # monotonic
    older_until: float  # monotonic; then other partitions of the request wait no longer


class Host(Protocol):
    """What requests need of the shadow broker."""

    @property
    def image(self) -> MetadataImage: ...
    def led(self, partition: PartitionId) -> LedPartition | None: ...
    def changed(self) -> asyncio.Event: ...
    def announce(self) -> None: ...
    async def forward(self, request: Request) -> dict[str, Any]: ...
    async def forwarded_versions(self) -> dict[str, Versions]: ...
    def endpoint_of(self, broker: int) -> dict[str, Any] | None: ...


class Requests:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def respond(self, request: Request) -> dict[str, Any] | None:
        """The response, or None to close the connection."""
        if request.api == API_VERSIONS:
            return await self._api_versions()
        if request.api == "Fetch":
            return await self._fetch(request)
        if request.api == "ListOffsets":
            return self._list_offsets(request.body)
        if request.api == "OffsetForLeaderEpoch":
            return self._epoch_ends(request.body)
        if request.api == "Produce":
            return self._produce(request)
        if request.api == "WriteTxnMarkers":
            return _markers(request.body)
        return await self._host.forward(request)

    async def _fetch(self, request: Request) -> dict[str, Any]:
        body = request.body
        state = body.get("ReplicaState") or {}
        replica = state.get("ReplicaId", -1) if request.version >= REPLICA_STATE_FIRST else body["ReplicaId"]
        if replica < 0:
            return self._redirect(request)
        received_at = time.monotonic()
        deadline = received_at + min(body["MaxWaitMs"], WAIT_MS_MAX) / 1000
        while True:
            changed = self._host.changed()
            fetcher = Fetcher(
                replica, state.get("ReplicaEpoch", -1), received_at, time.monotonic() + OLDER_SECONDS_MAX
            )
            topics, due = await self._fetch_once(body, fetcher)
            left = deadline - time.monotonic()
            if due or left <= 0:
                return {"ErrorCode": Code.NONE, "SessionId": 0, "Responses": topics}
            await wait_at_most(changed, left)

    async def _fetch_once(
        self, body: Mapping[str, Any], fetcher: Fetcher
    ) -> tuple[list[dict[str, Any]], bool]:
        """One pass over the partitions, and whether the response is due now."""
        bytes_left = body["MaxBytes"]
        due = False
        topics = []
        for topic in body["Topics"]:
            topic_id = topic.get("TopicId") or self._host.image.topics.get(topic.get("Topic", ""))
            rows = []
            for requested in topic["Partitions"]:
                row, row_due = await self._fetch_partition(topic_id, requested, fetcher, bytes_left)
                bytes_left -= len(row["Records"])
                due = due or row_due
                rows.append(row)
            topics.append(
                {"TopicId": topic.get("TopicId"), "Topic": topic.get("Topic", ""), "Partitions": rows}
            )
        return topics, due

    async def _fetch_partition(
        self, topic_id: UUID | None, requested: Mapping[str, Any], fetcher: Fetcher, bytes_left: int
    ) -> tuple[dict[str, Any], bool]:
        index, replica = requested["Partition"], fetcher.replica
        row: dict[str, Any] = {"PartitionIndex": index, "AbortedTransactions": None, "Records": b""}
        row |= {"HighWatermark": -1, "LastStableOffset": -1, "LogStartOffset": -1}
        partition = self._host.led(PartitionId(topic_id, index)) if topic_id is not None else None
        if partition is None:
            # Unknown here for a moment after it was created, or led by a real broker now.
            return row | {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER}, True
        fetch = FollowerFetch(
            replica, requested["CurrentLeaderEpoch"], requested["FetchOffset"], requested["LastFetchedEpoch"]
        )
        decision = fetch_response(partition.view(), fetch)
        if isinstance(decision, Refuse):
            _count(partition, replica, decision)
            return row | {"ErrorCode": decision.code}, True
        row["ErrorCode"] = Code.NONE
        if isinstance(decision, Diverge):
            log.warning(
                "follower truncated", partition=str(partition), replica=replica, end=decision.end.offset
            )
            diverging = {"Epoch": decision.end.epoch, "EndOffset": decision.end.offset}
            watermark = partition.view().high_watermark
            return row | {"DivergingEpoch": diverging, "HighWatermark": watermark}, True
        return await self._records(partition, decision, fetcher, row, requested, bytes_left)

    async def _records(
        self,
        partition: LedPartition,
        decision: Serve,
        fetcher: Fetcher,
        row: dict[str, Any],
        requested: Mapping[str, Any],
        bytes_left: int,
    ) -> tuple[dict[str, Any], bool]:
        term = partition.leadership
        assert term is not None
        replica, now = fetcher.replica, time.monotonic()
        if term.fetched(
            replica, decision.offset, partition.end, now,
            broker_epoch=fetcher.broker_epoch, received_at=fetcher.received_at,
        ):  # fmt: skip
            partition.drop_acknowledged()
            self._host.announce()
        records: list[bytes | memoryview] = []
        if bytes_left > 0:
            size = min(requested["PartitionMaxBytes"], bytes_left)
            records = await _read(partition, decision.offset, size, fetcher.older_until)
            if partition.leadership is not term:
                # The term has ended meanwhile: its records and high watermark are of a log that may be gone.
                return row | {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER}, True
        watermark = partition.view().high_watermark
        due = bool(records) or partition.sent_watermarks.get(replica) != watermark
        partition.sent_watermarks[replica] = watermark
        row |= {
            "HighWatermark": watermark,
            "LastStableOffset": watermark,
            "LogStartOffset": decision.log_start,
        }
        return row | {"Records": b"".join(records)}, due

    def _redirect(self, request: Request) -> dict[str, Any]:
        """Send a consumer to a real in-sync follower."""
        endpoints: dict[int, dict[str, Any]] = {}
        topics = []
        for topic in request.body["Topics"]:
            topic_id = topic.get("TopicId") or self._host.image.topics.get(topic.get("Topic", ""))
            rows = []
            for requested in topic["Partitions"]:
                row: dict[str, Any] = {"PartitionIndex": requested["Partition"], "Records": b""}
                row |= {"AbortedTransactions": None, "HighWatermark": -1, "ErrorCode": Code.NONE}
                partition = (
                    self._host.led(PartitionId(topic_id, requested["Partition"])) if topic_id else None
                )
                term = partition.leadership if partition else None
                if term is None or not term.in_sync or request.version < CONSUMER_REDIRECT_FIRST:
                    rows.append(row | {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER})
                    continue
                row["HighWatermark"] = term.high_watermark
                row["PreferredReadReplica"] = term.in_sync[requested["Partition"] % len(term.in_sync)]
                if endpoint := self._host.endpoint_of(row["PreferredReadReplica"]):
                    endpoints[endpoint["NodeId"]] = endpoint
                rows.append(row)
            topics.append(
                {"TopicId": topic.get("TopicId"), "Topic": topic.get("Topic", ""), "Partitions": rows}
            )
        response = {"ErrorCode": Code.NONE, "SessionId": 0, "Responses": topics}
        return response | (
            {"NodeEndpoints": list(endpoints.values())} if request.version >= ENDPOINTS_FIRST else {}
        )

    def _list_offsets(self, body: Mapping[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in body["Topics"]:
            rows = []
            for requested in topic["Partitions"]:
                row = {"PartitionIndex": requested["PartitionIndex"], "Timestamp": -1, "Offset": -1}
                partition = self._partition(topic["Name"], requested["PartitionIndex"])
                if partition is None:
                    rows.append(row | {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER})
                    continue
                epoch = requested.get("CurrentLeaderEpoch", -1)
                decision = list_offsets_response(
                    partition.view(), body["ReplicaId"], epoch, requested["Timestamp"]
                )
                if isinstance(decision, Refuse):
                    _count(partition, body["ReplicaId"], decision)
                    rows.append(row | {"ErrorCode": decision.code})
                else:
                    row |= {"Offset": decision.offset, "LeaderEpoch": decision.epoch}
                    rows.append(row | {"ErrorCode": Code.NONE})
            topics.append({"Name": topic["Name"], "Partitions": rows})
        return {"Topics": topics}

    def _epoch_ends(self, body: Mapping[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in body["Topics"]:
            rows = []
            for requested in topic["Partitions"]:
                row = {"Partition": requested["Partition"], "LeaderEpoch": -1, "EndOffset": -1}
                partition = self._partition(topic["Topic"], requested["Partition"])
                if partition is None:
                    rows.append(row | {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER})
                    continue
                replica, epoch = body.get("ReplicaId", -1), requested["CurrentLeaderEpoch"]
                decision = epoch_end_response(partition.view(), replica, epoch, requested["LeaderEpoch"])
                if isinstance(decision, Refuse):
                    _count(partition, replica, decision)
                    rows.append(row | {"ErrorCode": decision.code})
                else:
                    row |= {"LeaderEpoch": decision.epoch, "EndOffset": decision.offset}
                    rows.append(row | {"ErrorCode": Code.NONE})
            topics.append({"Topic": topic["Topic"], "Partitions": rows})
        return {"Topics": topics}

    def _produce(self, request: Request) -> dict[str, Any] | None:
        if request.body["Acks"] == 0:
            return None  # no response carries the error, so the connection closes
        return {
            "Responses": [
                {
                    "Name": topic.get("Name", ""),
                    "TopicId": topic.get("TopicId"),
                    "PartitionResponses": [
                        {"Index": p["Index"], "BaseOffset": -1} | self._produce_error(topic, p["Index"])
                        for p in topic["PartitionData"]
                    ],
                }
                for topic in request.body["TopicData"]
            ]
        }

    def _produce_error(self, topic: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Mirrors are read-only. Otherwise the producer waits for a real leader, and sends again."""
        topic_id = topic.get("TopicId") or self._host.image.topics.get(topic.get("Name", ""))
        partition = self._host.led(PartitionId(topic_id, index)) if topic_id is not None else None
        code = Code.NOT_LEADER_OR_FOLLOWER if partition is None else partition.produce_error
        return {"ErrorCode": code, "ErrorMessage": READ_ONLY if code == Code.POLICY_VIOLATION else None}

    async def _api_versions(self) -> dict[str, Any]:
        """What is served here, and what a real broker responds to."""
        ranges = await self._host.forwarded_versions()
        ranges |= {api: load().request(api).valid_versions for api in SERVED}
        keys = [
            {"ApiKey": load().api_key(api), "MinVersion": versions.first, "MaxVersion": versions.last}
            for api, versions in ranges.items()
        ]
        return {"ErrorCode": Code.NONE, "ApiKeys": keys}

    def _partition(self, topic: str, index: int) -> LedPartition | None:
        topic_id = self._host.image.topics.get(topic)
        return None if topic_id is None else self._host.led(PartitionId(topic_id, index))


async def _read(
    partition: LedPartition, offset: int, bytes_max: int, until: float
) -> list[bytes | memoryview]:
    """What is in the window or at the source. A source out of reach delays this partition only."""
    try:
        async with asyncio.timeout(max(0.0, until - time.monotonic())):
            return await partition.read(offset, bytes_max)
    except TimeoutError:
        reason = "it took too long"
    except PenstockError as error:
        reason = str(error)
    log.warning("older records not fetched", partition=str(partition), offset=offset, error=reason)
    return []


def _markers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Retriable: a coordinator tries again until a real broker leads the partition."""
    retry = Code.NOT_LEADER_OR_FOLLOWER
    return {
        "Markers": [
            {
                "ProducerId": marker["ProducerId"],
                "Topics": [
                    {
                        "Name": topic["Name"],
                        "Partitions": [
                            {"PartitionIndex": index, "ErrorCode": retry}
                            for index in topic["PartitionIndexes"]
                        ],
                    }
                    for topic in marker["Topics"]
                ],
            }
            for marker in body["Markers"]
        ]
    }


def _count(partition: LedPartition, replica: int, refused: Refuse) -> None:
    if refused.guarded:
        partition.guarded += 1
        log.error("response withheld", partition=str(partition), replica=replica, reason=refused.guarded)
