"""What a commit records, and where a run starts. Values and decisions only.

Every commit of a job stores its job, query, batch and offset range in the Iceberg snapshot's summary. The
query identifies a checkpoint, and batches are numbered within it. That is enough to recognise a batch
that is delivered again after a crash, to refuse one that does not start where the table ends, to notice a
swapped checkpoint, and to recover a lost one from the table.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.model.errors.pipeline import (
    CheckpointMismatch,
    PositionMoved,
    RecordsLost,
    TableBehind,
    TopicReplaced,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

Offsets = Mapping[int, int]  # partition → next offset

PREFIX: Final = "penstock."
JOB: Final = PREFIX + "job"
QUERY: Final = PREFIX + "query"
BATCH: Final = PREFIX + "batch"
TOPIC: Final = PREFIX + "topic"
TOPIC_ID: Final = PREFIX + "topic-id"
FROM: Final = PREFIX + "from"
UNTIL: Final = PREFIX + "until"
SOURCE_SNAPSHOT: Final = PREFIX + "source-snapshot"
ROLLED_UP: Final = PREFIX + "rolled-up-before"


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch of a job in a table. `start` is inclusive, `end` exclusive."""

    job: str
    query: str
    batch: int
    topic: str
    topic_id: str
    start: Offsets
    end: Offsets

    def properties(self) -> dict[str, str]:
        return {
            JOB: self.job,
            QUERY: self.query,
            BATCH: str(self.batch),
            TOPIC: self.topic,
            TOPIC_ID: self.topic_id,
            FROM: offsets_to_json(self.start),
            UNTIL: offsets_to_json(self.end),
        }

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> Commit | None:
        """The job's commit, or None if no job made it (compaction, a manual change)."""
        if QUERY not in summary:
            return None
        return cls(
            job=summary[JOB],
            query=summary[QUERY],
            batch=int(summary[BATCH]),
            topic=summary[TOPIC],
            topic_id=summary[TOPIC_ID],
            start=offsets_from_json(summary[FROM]),
            end=offsets_from_json(summary[UNTIL]),
        )


def offsets_to_json(offsets: Offsets) -> str:
    return json.dumps({str(p): o for p, o in sorted(offsets.items())}, separators=(",", ":"))


def offsets_from_json(text: str) -> dict[int, int]:
    return {int(p): int(o) for p, o in json.loads(text).items()}


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """A topic's id and current offsets."""

    name: str
    id: str
    start: Offsets
    end: Offsets  # last stable offset: committed records only


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a checkpoint directory."""

    query: str
    committed: int = -1  # the newest finished batch, −1 if none
    planned: int = -1  # the newest planned batch; higher than `committed` after a crash
    end: Offsets = field(default_factory=dict)  # offsets after the newest finished batch


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading starts. If `offsets` is None, the checkpoint decides."""

    offsets: Offsets | None
    # Delete the checkpoint: it finished no batch, and the table does not know its query.
    discard: bool = False
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # partition → [from, until)


def resolve_start(
    job: str,
    topic: TopicOffsets,
    checkpoint: Checkpoint | None,
    last: Commit | None,
    *,
    table: str,
    own: Commit | None = None,
    directory: str = "",
    accept_loss: bool = False,
) -> Start:
    """Decides where a run starts. `last` is the job's newest commit; if it is of another query than the
    checkpoint, `own` is the newest commit of that one.

    Without a checkpoint, the run starts at the offsets stored in the table; without either, at the start of
    the topic. With both, the table must have every batch that the checkpoint has finished. It may be ahead:
    a run with another checkpoint, such as one on another host, has continued it. The table then decides.
    Raises TopicReplaced, CheckpointMismatch, TableBehind, RecordsLost."""
    check_topic_id(job, topic, last)
    discard = checkpoint is not None and last is not None and checkpoint.query != last.query
    own = own if discard else last
    if checkpoint is not None and last is not None and discard and own is None and checkpoint.committed >= 0:
        raise CheckpointMismatch(
            job=job, checkpoint=directory, actual=checkpoint.query, table=table, expected=last.query
        )
    if checkpoint is not None and checkpoint.committed > (own.batch if own else -1):
        actual = f"batch {own.batch}" if own else "no batch of it"
        raise TableBehind(
            job=job, checkpoint=checkpoint.committed, table=table, actual=actual, directory=directory
        )
    done: Offsets = last.end if last is not None else {}
    lost = {
        partition: (done.get(partition, 0), start)
        for partition, start in sorted(topic.start.items())
        # A job's first run has lost nothing: it reads what is there.
        if last is not None and partition in done and start > done[partition]
    }
    if lost and not accept_loss:
        raise RecordsLost(job=job, topic=topic.name, ranges=format_ranges(lost))
    if checkpoint is not None and checkpoint.planned >= 0 and not discard:
        return Start(None, lost=lost)
    begin = {p: max(done.get(p, start), start) for p, start in topic.start.items()}
    return Start(begin, discard, lost)


def kafka_topic_id(topic_id: str) -> str:
    """A topic id as Kafka prints it (URL-safe base64), from the 32 hexadecimal digits stored in commits."""
    return base64.urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")


def check_topic_id(job: str, topic: TopicOffsets, last: Commit | None) -> None:
    """Raises TopicReplaced if the topic was re-created: its old offsets are meaningless."""
    if last is not None and last.topic_id != topic.id:
        raise TopicReplaced(job=job, topic=topic.name, actual=topic.id, expected=last.topic_id)


def format_ranges(ranges: Mapping[int, tuple[int, int]]) -> str:
    return ", ".join(f"partition {p} offsets {a} to {b - 1}" for p, (a, b) in ranges.items())


def newest_commit(
    snapshots: Iterable[tuple[int, Mapping[str, str]]], *, job: str | None = None, query: str | None = None
) -> Commit | None:
    """The newest commit of this job or query among a table's snapshots, newest first."""
    for _, summary in snapshots:
        if BATCH in summary and job in (None, summary[JOB]) and query in (None, summary[QUERY]):
            return Commit.of(summary)
    return None


def is_committed(
    commit: Commit, last: Commit | None, *, table: str, lost: Mapping[int, tuple[int, int]] = {}
) -> bool:
    """Whether the table already has a batch; `last` is the newest commit of its job.

    Raises PositionMoved unless the batch starts where the table ends: another run, with another checkpoint,
    has written in between. `lost` are the ranges that the run was allowed to skip."""
    if last is None:
        return False
    if last.query == commit.query and last.batch >= commit.batch:
        return True
    for partition, position in last.end.items():
        start = commit.start.get(partition)
        if start != position and lost.get(partition) != (position, start):
            ends, starts = offsets_to_json(last.end), offsets_to_json(commit.start)
            raise PositionMoved(job=commit.job, table=table, actual=ends, expected=starts)
    return False


def lag(topic: TopicOffsets, position: Offsets) -> int:
    """Offsets between a job's position and the end of its topic, including transaction markers."""
    return sum(max(0, end - position.get(p, topic.start.get(p, 0))) for p, end in topic.end.items())
