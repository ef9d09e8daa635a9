"""The records of the samples topic, which every instance writes and reads back.

There are two kinds, both JSON. `Watched` announces a watched ScaledObject. `Sampled` is part of one
round: samples of some groups, the logs of their topics, and the memory of the last verdicts. An
instance that starts reading anywhere in the topic reaches the same verdicts as the writer.

No record depends on the clock of an instance, which may be wrong, step, or differ from the others'. A
record has the age of its samples when it was written, and the broker adds the time of the append.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.scale.decision.values import GroupState, Log, Memory, Progress, Sample, offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 2
MEMORY: Final = tuple(each.name for each in fields(Memory))  # in the order of the record's values


@dataclass(frozen=True, slots=True)
class Watched:
    """KEDA recently called for this ScaledObject."""

    scaled_object: str  # namespace/name
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Part of a round. If several instances sample at the same time, the first in the topic counts."""

    cluster: str
    round: int  # the same for all parts of the round
    at: float  # seconds; on the writer's monotonic clock until it is written, then on the broker's clock
    by: str  # the instance
    samples: Mapping[str, Sample] = field(default_factory=dict)  # by group
    missing: Mapping[str, str] = field(default_factory=dict)  # by group: "group" or the missing topic
    failures: Mapping[str, str] = field(default_factory=dict)  # by group: why it has no sample
    memories: Mapping[str, Memory] = field(default_factory=dict)  # by watch
    extra: bool = False  # between rounds, for groups that are new


def encoded(record: Watched | Sampled, now: float) -> bytes:
    """The record as written at `now` on the clock that its samples were taken by."""
    return json.dumps(_plain(record, now), separators=(",", ":")).encode()


def decoded(data: bytes, appended_at: float) -> Watched | Sampled | None:
    """The record; None for another version or kind, which a newer instance may write."""
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or body.get("v") != VERSION:
            return None
        if body["kind"] == "watched":
            return Watched(body["object"], body["metadata"])
        return _sampled(body, round(appended_at - body["age"], 3)) if body["kind"] == "sampled" else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _plain(record: Watched | Sampled, now: float) -> dict[str, Any]:
    if isinstance(record, Watched):
        return {
            "v": VERSION, "kind": "watched", "object": record.scaled_object,
            "metadata": dict(record.metadata),
        }  # fmt: skip
    logs: dict[str, Log] = {}
    for sample in record.samples.values():
        logs.update(sample.logs)
    return {
        "v": VERSION,
        "kind": "sampled",
        "cluster": record.cluster,
        "round": record.round,
        "age": round(now - record.at, 3),
        "by": record.by,
        "extra": record.extra,
        "logs": {topic: [log.topic_id, log.start.tolist(), log.end.tolist()] for topic, log in logs.items()},
        "groups": {group: _group(sample) for group, sample in record.samples.items()},
        "missing": dict(record.missing),
        "failures": dict(record.failures),
        "memories": {
            watch: [getattr(memory, name) for name in MEMORY] for watch, memory in record.memories.items()
        },
    }


def _group(sample: Sample) -> list[Any]:
    progress = {topic: _columns(each) for topic, each in sample.progress.items()}
    return [sample.state, sample.members, sample.generation, list(sample.logs), progress]


def _columns(progress: Progress) -> list[list[int] | None]:
    columns = (progress.committed, progress.completed_beyond, progress.markers, progress.owners)
    return [None if column is None else column.tolist() for column in columns]


def _sampled(body: Mapping[str, Any], at: float) -> Sampled:
    logs = {
        topic: Log(topic_id, offsets(start), offsets(end))
        for topic, (topic_id, start, end) in body["logs"].items()
    }
    samples = {}
    for group, (state, members, generation, topics, progress) in body["groups"].items():
        own_logs = {topic: logs[topic] for topic in topics}
        read = {topic: _progress(*columns) for topic, columns in progress.items()}
        samples[group] = Sample(at, GroupState(state), members, own_logs, read, generation)
    memories = {watch: Memory(*values) for watch, values in body["memories"].items()}
    return Sampled(
        body["cluster"], body["round"], at, body["by"], samples, body["missing"], body["failures"], memories,
        body["extra"],
    )  # fmt: skip


def _progress(committed: list[int], *others: list[int] | None) -> Progress:
    return Progress(offsets(committed), *(None if column is None else offsets(column) for column in others))
