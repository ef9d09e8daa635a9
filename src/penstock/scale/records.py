"""What is written to the samples topic, and read back from it by every instance.

Two kinds of record, JSON so that people can read them. `Watched` says that somebody asks for a
ScaledObject; `Sampled` is a part of one round: samples of some groups, with the logs of their
topics and what the last verdicts remembered. Whoever reads the topic from any point on comes to
the same verdicts as the one who wrote it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.scale.values import GroupState, Log, Memory, Progress, Sample, offsets

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

VERSION: Final = 1
MEMORY: Final = tuple(each.name for each in fields(Memory))  # in the order in which they are written


@dataclass(frozen=True, slots=True)
class Watched:
    """Somebody asked for this ScaledObject lately."""

    scaled_object: str  # namespace/name
    metadata: Mapping[str, str]
    at: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """A part of a round. Of several instances' rounds in one slot, the first in the topic counts."""

    cluster: str
    slot: int
    at: float
    by: str  # the instance
    samples: Mapping[str, Sample] = field(default_factory=dict)  # by group
    missing: Mapping[str, str] = field(
        default_factory=dict
    )  # by group: what was not found, "group" or a topic
    memories: Mapping[str, Memory] = field(default_factory=dict)  # by watch
    extra: bool = False  # between slots, for groups that are new


def encoded(record: Watched | Sampled) -> bytes:
    return json.dumps(_plain(record), separators=(",", ":")).encode()


def decoded(data: bytes) -> Watched | Sampled | None:
    """None for a record of another version or kind: a newer instance may write beside us."""
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or body.get("v") != VERSION:
            return None
        if body["kind"] == "watched":
            return Watched(body["object"], body["metadata"], body["at"])
        return _sampled(body) if body["kind"] == "sampled" else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _plain(record: Watched | Sampled) -> dict[str, Any]:
    if isinstance(record, Watched):
        return {
            "v": VERSION, "kind": "watched", "object": record.scaled_object,
            "metadata": dict(record.metadata), "at": record.at,
        }  # fmt: skip
    logs: dict[str, Log] = {}
    for sample in record.samples.values():
        logs.update(sample.logs)
    return {
        "v": VERSION,
        "kind": "sampled",
        "cluster": record.cluster,
        "slot": record.slot,
        "at": record.at,
        "by": record.by,
        "extra": record.extra,
        "logs": {
            topic: [log.incarnation, log.start.tolist(), log.end.tolist()] for topic, log in logs.items()
        },
        "groups": {
            group: [
                sample.state,
                sample.members,
                sample.generation,
                list(sample.logs),
                {topic: _columns(each) for topic, each in sample.progress.items()},
            ]
            for group, sample in record.samples.items()
        },
        "missing": dict(record.missing),
        "memories": {watch: _remembered(memory) for watch, memory in record.memories.items()},
    }


def _remembered(memory: Memory) -> list[float | int | None]:
    return [getattr(memory, name) for name in MEMORY]


def _columns(progress: Progress) -> list[list[int] | None]:
    columns = (progress.committed, progress.beyond, progress.markers, progress.owners)
    return [None if column is None else column.tolist() for column in columns]


def _sampled(body: Mapping[str, Any]) -> Sampled:
    at = float(body["at"])
    logs = {
        topic: Log(incarnation, offsets(start), offsets(end))
        for topic, (incarnation, start, end) in body["logs"].items()
    }
    samples = {}
    for group, (state, members, generation, topics, progress) in body["groups"].items():
        samples[group] = Sample(
            at=at,
            state=GroupState(state),
            members=members,
            logs={topic: logs[topic] for topic in topics},
            progress={topic: Progress(*_read(columns)) for topic, columns in progress.items()},
            generation=generation,
        )
    memories = {watch: Memory(*values) for watch, values in body["memories"].items()}
    return Sampled(
        body["cluster"], body["slot"], at, body["by"], samples, body["missing"], memories, body["extra"]
    )


def _read(
    columns: list[list[int] | None],
) -> tuple[array[int], array[int] | None, array[int] | None, array[int] | None]:
    committed, beyond, markers, owners = (None if column is None else offsets(column) for column in columns)
    assert committed is not None
    return committed, beyond, markers, owners
