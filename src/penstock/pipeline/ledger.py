"""What a commit of a table says about itself, and where a job goes on. Values and decisions only.

Each commit that a job makes carries who made it (job, query, batch) and which offsets it holds. The
query is the identity of a checkpoint; batches of a query are numbered. So a batch that is seen
again after a crash is known, a checkpoint that was swapped is noticed, and one that was lost is
made good from the table alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors.pipeline import CheckpointForeign, RecordsLost, TableBehind, TopicReplaced

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


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch of a job in a table. `start` and `end` are exact; ends are exclusive."""

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
            FROM: written(self.start),
            UNTIL: written(self.end),
        }

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> Commit | None:
        """None for a commit that no job made: compaction, or somebody's own."""
        if QUERY not in summary:
            return None
        return cls(
            job=summary[JOB],
            query=summary[QUERY],
            batch=int(summary[BATCH]),
            topic=summary[TOPIC],
            topic_id=summary[TOPIC_ID],
            start=read(summary[FROM]),
            end=read(summary[UNTIL]),
        )


def written(offsets: Offsets) -> str:
    return json.dumps({str(p): o for p, o in sorted(offsets.items())}, separators=(",", ":"))


def read(text: str) -> dict[int, int]:
    return {int(p): int(o) for p, o in json.loads(text).items()}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster shows it now."""

    name: str
    id: str
    start: Offsets
    end: Offsets  # of what is committed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint directory says. `batch` is the newest whose offsets are planned."""

    query: str
    committed: int = -1  # the newest finished batch; −1: none
    planned: int = -1  # the newest batch with offsets; above `committed` after a crash
    end: Offsets = field(default_factory=dict)  # after the newest finished batch


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins. `offsets` None: the checkpoint knows."""

    offsets: Offsets | None
    discard: bool = False  # a checkpoint that never finished a batch, of a query the table does not know
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # partition → [from, until)


def where_to_start(
    job: str,
    topic: TopicFacts,
    checkpoint: Checkpoint | None,
    last: Commit | None,
    *,
    table: str,
    directory: str = "",
    accept_loss: bool = False,
) -> Start:
    """Decides where a run begins, or raises what forbids it. `last` is the job's newest commit.

    Without a checkpoint the table's own offsets count, without both the topic's beginning. With
    both they must be of one query, and the table not behind: every finished batch is a commit.
    """
    same_topic(job, topic, last)
    discard = checkpoint is not None and last is not None and checkpoint.query != last.query
    if checkpoint is not None and last is not None and discard and checkpoint.committed >= 0:
        raise CheckpointForeign(
            job=job, checkpoint=directory, found=checkpoint.query, table=table, expected=last.query
        )
    if checkpoint is not None and checkpoint.committed > (last.batch if last else -1):
        found = f"batch {last.batch}" if last else "no batch of it"
        raise TableBehind(
            job=job, checkpoint=checkpoint.committed, table=table, found=found, directory=directory
        )
    done: Offsets = last.end if last is not None else {}
    lost = {
        partition: (done.get(partition, 0), start)
        for partition, start in sorted(topic.start.items())
        # A job that begins has lost nothing: it takes what is there.
        if last is not None and partition in done and start > done[partition]
    }
    if lost and not accept_loss:
        raise RecordsLost(job=job, topic=topic.name, ranges=shown_ranges(lost))
    if checkpoint is not None and checkpoint.planned >= 0 and not discard:
        return Start(None, lost=lost)
    begin = {p: max(done.get(p, start), start) for p, start in topic.start.items()}
    return Start(begin, discard, lost)


def same_topic(job: str, topic: TopicFacts, last: Commit | None) -> None:
    """Raises TopicReplaced: offsets of a topic mean nothing in another of the same name."""
    if last is not None and last.topic_id != topic.id:
        raise TopicReplaced(job=job, topic=topic.name, found=topic.id, expected=last.topic_id)


def shown_ranges(ranges: Mapping[int, tuple[int, int]]) -> str:
    return ", ".join(f"partition {p} offsets {a} to {b - 1}" for p, (a, b) in ranges.items())


def is_done(commit: Commit, newest: Commit | None) -> bool:
    """Whether a batch is in the table already; `newest` is the newest commit of the same query."""
    return newest is not None and newest.batch >= commit.batch


def behind(topic: TopicFacts, done: Offsets) -> int:
    """Offsets between what a job has read and the topic's end. Markers of transactions count too."""
    return sum(max(0, end - done.get(p, topic.start.get(p, 0))) for p, end in topic.end.items())
