"""How the facts of one event change a subject's state. Judges nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.audit.rules.state import (
    INTENT_MS,
    INTENTS_MAX,
    POLICIES_MAX,
    RECREATED_MAX,
    RISES_MAX,
    SAMPLES_MAX,
    SCRUBS_MAX,
    SEGMENTS_MAX,
    SLACK_MS,
    Recorded,
    Recreated,
    Rise,
    Sample,
    Seen,
    Since,
    SubjectState,
    Tiered,
)
from penstock.model.durability import (
    UNKNOWN,
    Acked,
    Deleted,
    Heartbeat,
    Intent,
    Placement,
    Policy,
    Removed,
    Replica,
    Scrubbed,
    Segment,
    Topic,
)

if TYPE_CHECKING:
    from penstock.model.durability import Facts

COPY_FINISHED: Final = 1
DELETE_STARTED: Final = 2
DELETE_FINISHED: Final = 3


def apply(state: SubjectState, facts: Facts, time_ms: int) -> SubjectState:
    """The state after an event."""
    match facts:
        case Replica():
            return _replica(state, facts, time_ms)
        case Acked():
            return _acked(state, facts, time_ms)
        case Placement():
            return _placement(state, facts)
        case Policy():
            if state.policy == facts:
                return state
            changes = (*state.changes, time_ms) if state.policies else ()
            policies = (*state.policies, Since(time_ms, facts))[-POLICIES_MAX:]
            return replace(state, policies=policies, changes=changes[-POLICIES_MAX:])
        case Deleted():
            return replace(state, deleted_to=max(state.deleted_to, facts.before))
        case Segment():
            return _segment(state, facts, time_ms)
        case Intent():
            return replace(state, intents=_with_intent(state.intents, recorded(facts, time_ms)))
        case Scrubbed():
            return replace(state, scrubs=(*state.scrubs, facts)[-SCRUBS_MAX:])
        case Topic():
            return _topic(state, facts, time_ms)
        case Heartbeat():
            return replace(state, heartbeat=facts, heartbeat_ms=time_ms)
        case Removed():
            # A deleted topic has nothing to keep. Only what identifies repeats is still needed.
            return SubjectState(
                state.cluster,
                state.subject,
                waiting=state.waiting,
                watermark_ms=state.watermark_ms,
                sequences=state.sequences,
                late=state.late,
                dropped=state.dropped + len(state.rises),
            )
        case _:
            return state


def _acked(state: SubjectState, facts: Acked, time_ms: int) -> SubjectState:
    """A busy partition always has a new range: so an earlier end waits beside it, until it can be judged."""
    end = max(state.acked_end, facts.last + 1)
    after = replace(
        state,
        acked_end=end,
        acked_ms=max(state.acked_ms, time_ms),
        acked_bytes=state.acked_bytes + facts.bytes,
    )
    if time_ms - state.acked_wait_ms <= SLACK_MS:
        return after
    return replace(after, acked_settled=state.acked_wait_end, acked_wait_ms=time_ms, acked_wait_end=end)


def recorded(facts: Intent, time_ms: int) -> Recorded:
    """An intent, and how long it is in force."""
    since_ms = facts.since_ms if facts.since_ms != UNKNOWN else time_ms
    until_ms = facts.until_ms if facts.until_ms != UNKNOWN else since_ms + INTENT_MS
    return Recorded(facts.action, facts.actor, since_ms, until_ms)


def _with_intent(intents: tuple[Recorded, ...], new: Recorded) -> tuple[Recorded, ...]:
    """Repeats and overlapping intents of one actor become one, so that a busy actor displaces no other."""
    others = []
    for each in intents:
        same = (each.action, each.actor) == (new.action, new.actor)
        if same and each.time_ms <= new.until_ms and new.time_ms <= each.until_ms:
            time_ms, until_ms = min(each.time_ms, new.time_ms), max(each.until_ms, new.until_ms)
            new = Recorded(new.action, new.actor, time_ms, until_ms)
        else:
            others.append(each)
    return (*others, new)[-INTENTS_MAX:]


def _topic(state: SubjectState, facts: Topic, time_ms: int) -> SubjectState:
    """A topic keeps its last id after it was deleted: the next one shows that it was created again."""
    if not facts.topic_id:
        return replace(state, topic_deleted_ms=time_ms)
    recreated = state.recreated
    if state.topic_id and facts.topic_id != state.topic_id:
        deleted_ms = state.topic_deleted_ms or time_ms
        recreated = (*recreated, Recreated(state.topic_id, facts.topic_id, deleted_ms, time_ms))
    return replace(state, topic_id=facts.topic_id, topic_deleted_ms=0, recreated=recreated[-RECREATED_MAX:])


def _placement(state: SubjectState, facts: Placement) -> SubjectState:
    replicas = {}
    for broker, seen in state.replicas.items():
        if int(broker) not in facts.replicas:
            continue  # moved away; if it comes back, it starts from scratch
        # Without a leader, the last one in the ISR is down: it may recover from an older checkpoint.
        left = seen.left or int(broker) not in facts.isr or facts.leader == UNKNOWN
        replicas[broker] = seen if left == seen.left else replace(seen, left=left)
    marks = {key: each for key, each in state.marks.items() if not _is_moot(key, each, facts)}
    return replace(state, placement=facts, replicas=replicas, marks=marks)


def _is_moot(key: str, mark: tuple[int, ...], facts: Placement) -> bool:
    """Whether a suspicion about a broker was observed once, and cannot be observed again outside the ISR."""
    _, _, place = key.partition("/")
    broker = place.partition("/")[0]
    return broker.isdecimal() and len(mark) <= 2 and mark[0] != 2 and int(broker) not in facts.isr


def _replica(state: SubjectState, facts: Replica, time_ms: int) -> SubjectState:
    """Positions count for replicas in the ISR only: others may be under construction."""
    if not state.in_sync(facts.broker):
        return state
    seen = state.replicas.get(str(facts.broker))
    rises = state.rises
    if seen is not None and facts.start > seen.replica.start:
        rise = Rise(facts.broker, seen.replica.start, facts.start, seen.time_ms, time_ms, facts.size)
        rises = (*rises, rise)[-RISES_MAX:]
    samples = state.samples
    if facts.kept_offset != UNKNOWN:
        sample = Sample(time_ms, facts.kept_offset, facts.kept_until_ms, facts.kept_retention_ms)
        samples = (*samples, sample)[-SAMPLES_MAX:]
    replicas = {**state.replicas, str(facts.broker): Seen(time_ms, facts)}
    return replace(state, replicas=replicas, rises=rises, samples=samples)


def _segment(state: SubjectState, facts: Segment, time_ms: int) -> SubjectState:
    before = state.segments.get(facts.id)
    tier_bytes = state.tier_bytes
    if before is not None and before.segment.state == COPY_FINISHED:
        tier_bytes -= max(before.segment.bytes, 0)
    if facts.state == DELETE_FINISHED:
        segments = {key: each for key, each in state.segments.items() if key != facts.id}
        return replace(state, segments=segments, tier_bytes=tier_bytes)
    known = facts
    if before is not None and facts.start == UNKNOWN:
        old = before.segment
        known = replace(old, state=facts.state)
    if known.state == COPY_FINISHED:
        tier_bytes += max(known.bytes, 0)
    segments = {**state.segments, facts.id: Tiered(time_ms, known)}
    if len(segments) > SEGMENTS_MAX:
        del segments[min(segments, key=lambda key: segments[key].segment.start)]
    return replace(state, segments=segments, tier_bytes=tier_bytes)
