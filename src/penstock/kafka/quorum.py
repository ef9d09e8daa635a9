"""Describe the KRaft quorum, change its voters, and read its metadata log.

`describe`, `add_voter` and `remove_voter` work with brokers and controllers. `read` needs a client created
with `controllers=True` whose user has the ClusterAction right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import ANY_NODE, CONTROLLER, Address, NodeWithId
from penstock.wire.error_codes import STALE_METADATA, Code
from penstock.wire.logs import METADATA, Entry, read_framed
from penstock.wire.records import batches, records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.kafka.client import Client
    from penstock.kafka.routing import Route

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = UUID(int=1)
READ_BYTES_MAX: Final = 8 << 20
SNAPSHOT_BYTES_MAX: Final = 1 << 30
NO_DIRECTORY: Final = UUID(int=0)
CAUGHT_UP_MS: Final = 2_000  # `controller.quorum.fetch.timeout.ms`
VOTER_SECONDS_MAX: Final = 20.0  # until a changed set of voters is committed
LEADER_CHANGES_MAX: Final = 5  # attempts to find the leader before giving up
_DESCRIBE_QUORUM: Final = {"Topics": [{"TopicName": METADATA_TOPIC, "Partitions": [{"PartitionIndex": 0}]}]}


@dataclass(frozen=True, slots=True)
class Replica:
    id: int
    directory_id: UUID
    end_offset: int
    last_fetch_ms: int  # −1: not reported
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class Quorum:
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[Replica, ...]
    observers: tuple[Replica, ...]
    addresses: Mapping[int, Address]  # of the voters' controller listeners

    @property
    def is_dynamic(self) -> bool:
        """Whether voters can be added and removed (KIP-853): those of a static quorum have no directory."""
        return all(voter.directory_id != NO_DIRECTORY for voter in self.voters)

    @property
    def caught_up(self) -> frozenset[int]:
        """Voters that had everything within the fetch timeout; the leader is one."""
        newest = max((voter.last_caught_up_ms for voter in self.voters), default=0)
        near = {voter.id for voter in self.voters if newest - voter.last_caught_up_ms <= CAUGHT_UP_MS}
        return frozenset(near | {self.leader_id})

    def voter(self, node: int) -> Replica | None:
        return next((voter for voter in self.voters if voter.id == node), None)


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    offset: int
    epoch: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of the metadata log; a snapshot holds the whole state up to `next_offset`."""

    records: tuple[MetadataRecord, ...]
    next_offset: int
    high_watermark: int
    is_snapshot: bool


async def describe(client: Client, *, to: Route = ANY_NODE, timeout: float = CALL_SECONDS) -> Quorum:
    """The quorum. Brokers forward the request; of controllers only the active one responds."""
    response = await client.call("DescribeQuorum", _DESCRIBE_QUORUM, to=to, timeout=timeout)
    check("DescribeQuorum", response["ErrorCode"], response.get("ErrorMessage"))
    p = response["Topics"][0]["Partitions"][0]
    check("DescribeQuorum", p["ErrorCode"], p.get("ErrorMessage"))
    addresses = {
        node["NodeId"]: Address(node["Listeners"][0]["Host"], node["Listeners"][0]["Port"])
        for node in response.get("Nodes", ())
        if node["Listeners"]
    }
    voters, observers = (tuple(map(_replica, p[key])) for key in ("CurrentVoters", "Observers"))
    return Quorum(p["LeaderId"], p["LeaderEpoch"], p["HighWatermark"], voters, observers, addresses)


async def add_voter(
    client: Client, node: int, directory_id: UUID, listener: str, address: Address, *, cluster_id: str
) -> None:
    """Make an observer a voter (KIP-853). Returns when the new set of voters is committed."""
    body = {
        "ClusterId": cluster_id,
        "TimeoutMs": int(VOTER_SECONDS_MAX * 1000),
        "VoterId": node,
        "VoterDirectoryId": directory_id,
        "Listeners": [{"Name": listener, "Host": address.host, "Port": address.port}],
    }
    response = await client.call("AddRaftVoter", body, timeout=VOTER_SECONDS_MAX + CALL_SECONDS)
    check("AddRaftVoter", response["ErrorCode"], response["ErrorMessage"], f"controller {node}")


async def remove_voter(client: Client, node: int, directory_id: UUID, *, cluster_id: str) -> None:
    """Remove a voter, dead or alive (KIP-853). If it is the active controller, another one takes over."""
    body = {"ClusterId": cluster_id, "VoterId": node, "VoterDirectoryId": directory_id}
    response = await client.call("RemoveRaftVoter", body, timeout=VOTER_SECONDS_MAX)
    check("RemoveRaftVoter", response["ErrorCode"], response["ErrorMessage"], f"controller {node}")


async def read(
    client: Client, offset: int = 0, *, wait_seconds: float = 0.0, timeout: float = CALL_SECONDS
) -> Chunk:
    """Committed records from `offset`, or a snapshot if the log no longer reaches back that far.

    Waits up to `wait_seconds` for new records. Continue with `next_offset`."""
    quorum = await describe(client, to=CONTROLLER, timeout=timeout)
    leader, epoch = quorum.leader_id, quorum.leader_epoch
    for _ in range(LEADER_CHANGES_MAX):
        body = _fetch(offset, epoch, int(wait_seconds * 1000))
        response = await client.call(
            "Fetch", body, to=NodeWithId(leader), timeout=timeout + wait_seconds, lane="metadata log"
        )
        check("Fetch", response["ErrorCode"], None, "metadata log")
        p = response["Responses"][0]["Partitions"][0]
        current = p["CurrentLeader"]
        if p["ErrorCode"] in STALE_METADATA | {Code.UNKNOWN_LEADER_EPOCH, Code.INVALID_REQUEST}:
            if current["LeaderId"] < 0:
                quorum = await describe(client, to=CONTROLLER, timeout=timeout)
                current = {"LeaderId": quorum.leader_id, "LeaderEpoch": quorum.leader_epoch}
            leader, epoch = current["LeaderId"], current["LeaderEpoch"]
            continue
        check("Fetch", p["ErrorCode"], None, "metadata log")
        if p["SnapshotId"]["EndOffset"] >= 0:
            return await _snapshot(client, leader, epoch, p["SnapshotId"], p["HighWatermark"], timeout)
        committed = tuple(r for r in _records(p["Records"] or b"") if offset <= r[0] < p["HighWatermark"])
        next_offset = committed[-1][0] + 1 if committed else offset
        entries = tuple(MetadataRecord(o, e, entry) for o, e, entry in committed if entry is not None)
        return Chunk(entries, next_offset, p["HighWatermark"], is_snapshot=False)
    raise broker_error("Fetch", Code.NOT_LEADER_OR_FOLLOWER, None, "metadata log")


async def _snapshot(
    client: Client, leader: int, epoch: int, snapshot_id: Mapping[str, Any], watermark: int, timeout: float
) -> Chunk:
    data = bytearray()
    size = 1
    while len(data) < size:
        partition = {
            "Partition": 0,
            "CurrentLeaderEpoch": epoch,
            "SnapshotId": {"EndOffset": snapshot_id["EndOffset"], "Epoch": snapshot_id["Epoch"]},
            "Position": len(data),
        }
        body = {"MaxBytes": READ_BYTES_MAX, "Topics": [{"Name": METADATA_TOPIC, "Partitions": [partition]}]}
        response = await client.call("FetchSnapshot", body, to=NodeWithId(leader), timeout=timeout)
        check("FetchSnapshot", response["ErrorCode"], None, "metadata snapshot")
        p = response["Topics"][0]["Partitions"][0]
        check("FetchSnapshot", p["ErrorCode"], None, "metadata snapshot")
        size = p["Size"]
        if not p["UnalignedRecords"] or size > SNAPSHOT_BYTES_MAX:
            # A part of a snapshot would be taken for the whole state: topics and brokers would be missing.
            detail = f"{len(data)} of {size} bytes"
            raise broker_error("FetchSnapshot", Code.UNKNOWN_SERVER_ERROR, detail, "metadata snapshot")
        data += p["UnalignedRecords"]
    end = snapshot_id["EndOffset"]
    written = [entry for _, _, entry in _records(bytes(data)) if entry is not None]
    entries = tuple(MetadataRecord(end - 1, snapshot_id["Epoch"], entry) for entry in written)
    return Chunk(entries, end, watermark, is_snapshot=True)


def _records(data: bytes | memoryview) -> Iterator[tuple[int, int, Entry | None]]:
    """Offset, epoch and entry of every record; the entry is None for control records."""
    for batch in batches(data):
        for record in records(batch):
            entry = None
            if not batch.is_control and record.value is not None:
                entry = read_framed(METADATA, record.value)
            yield record.offset, batch.leader_epoch, entry


def _fetch(offset: int, epoch: int, wait_ms: int) -> dict[str, Any]:
    partition = {
        "Partition": 0,
        "CurrentLeaderEpoch": epoch,
        "FetchOffset": offset,
        # Only committed records are read, and those never diverge, so the leader's epoch is right for
        # any offset it has. (With an epoch below 0 the leader takes us for a consumer and refuses.)
        "LastFetchedEpoch": epoch if offset > 0 else 0,
        "PartitionMaxBytes": READ_BYTES_MAX,
    }
    return {
        "MaxWaitMs": wait_ms,
        "MinBytes": 1,
        "MaxBytes": READ_BYTES_MAX,
        "Topics": [{"Topic": METADATA_TOPIC, "TopicId": METADATA_TOPIC_ID, "Partitions": [partition]}],
    }


def _replica(r: Mapping[str, Any]) -> Replica:
    return Replica(
        r["ReplicaId"],
        r.get("ReplicaDirectoryId", NO_DIRECTORY),
        r["LogEndOffset"],
        r.get("LastFetchTimestamp", -1),
        r.get("LastCaughtUpTimestamp", -1),
    )
