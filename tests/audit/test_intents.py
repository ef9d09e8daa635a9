"""What the platform does to logs on purpose: with its intent no finding, without it the same event is one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.audit import intents, topics
from penstock.audit.finding_reader import FindingReader
from penstock.audit.group_offsets import GroupCollector
from penstock.audit.intents import IntentLog, events_of
from penstock.audit.lifecycle import FindingLog
from penstock.audit.metadata_history import MetadataHistory, is_resolvable
from penstock.audit.rules.state import INTENT_MS, SubjectState
from penstock.audit.service import Auditor
from penstock.audit.topic_ids import id_text
from penstock.kafka import quorum
from penstock.kafka.admin import configs
from penstock.model.durability import (
    EVERY_TOPIC,
    Deleted,
    Intent,
    LogEvent,
    Policy,
    Removed,
    Topic,
    named_subject,
    partition_subject,
)
from penstock.model.shadow_ids import SHADOW_IDS
from tests.audit.history import BEGIN_MS, DAY_MS, HOUR_MS, PLACEMENT, History, event, findings_of, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.audit.intents import Planned
    from penstock.audit.metadata_history import Observation
    from penstock.kafka.client import Client

ID = UUID(int=1)
SUBJECT = partition_subject(id_text(ID), 0)
FOREVER = Policy(retention_ms=-1, min_isr=2)
WEEK = 7 * DAY_MS


def metadata() -> MetadataHistory:
    history = MetadataHistory()
    history.names[id_text(ID)] = "orders"
    history.partitions[id_text(ID), 0] = PLACEMENT
    return history


def resolved(planned: Sequence[Planned], time_ms: int, *, read_ms: int | None = None) -> list[Observation]:
    """Intents as the auditor resolves them."""
    written = events_of(planned, time_ms * 1_000_000)
    known = metadata()
    return [each for one in written for each in known.resolved(one, read_ms or time_ms)]


def add(history: History, planned: Sequence[Planned]) -> History:
    """Intents that the auditor has read at once."""
    facts = [facts for subject, facts in resolved(planned, history.now_ms) if subject == SUBJECT]
    assert facts
    return history.add(*facts)


def new_topic(policy: Policy = FOREVER) -> History:
    """Real replicas of a mirror or of a restored topic, still empty."""
    history = History(policy=policy)
    return history.sweep(start=0, end=0, size=0)


# --- the look-alikes ------------------------------------------------------------------------------


@pytest.mark.parametrize("intended", [True, False])
def test_a_mirror_or_restored_topic_begins_where_its_records_do(intended: bool) -> None:
    history = new_topic()
    if intended:
        add(history, intents.log_start(ID, 0, 300, "link west"))
    history.sweep(start=300, end=900, size=6_000_000)

    assert findings_of(history) == ([] if intended else [("log-start-unexplained", 0, 299)])


@pytest.mark.parametrize("intended", [True, False])
def test_a_mirror_follows_the_log_start_of_its_source_however_late(intended: bool) -> None:
    history = new_topic()
    history.sweep(start=0, end=900, size=9_000_000)
    if intended:
        add(history, intents.log_start(ID, 0, 400, "link west"))
    history.sweep(start=400, end=900, size=5_000_000, after_ms=HOUR_MS)

    assert findings_of(history) == ([] if intended else [("log-start-unexplained", 0, 399)])


def test_a_mirror_that_loses_more_than_its_source_is_reported_with_the_rest() -> None:
    history = new_topic()
    history.sweep(start=0, end=900, size=9_000_000)
    add(history, intents.log_start(ID, 0, 400, "link west"))
    history.sweep(start=600, end=900, size=3_000_000)

    assert findings_of(history) == [("log-start-unexplained", 400, 599)]


def test_a_truncated_mirror_is_no_loss() -> None:
    """Its source has lost records in an unclean election; nothing was acknowledged here."""
    history = new_topic().sweep(start=0, end=900, size=9_000_000).sweep(start=0, end=700, size=7_000_000)
    history.sweep(start=0, end=700, size=7_000_000)

    assert findings_of(history) == []


@pytest.mark.parametrize("intended", [True, False])
@pytest.mark.parametrize("topic", ["orders", EVERY_TOPIC])
def test_a_link_a_restore_or_a_roll_sets_a_lower_retention(topic: str, intended: bool) -> None:
    """A restored topic keeps everything until it is proved, and then gets its own configuration."""
    history = new_topic().sweep(start=0, end=900, size=9_000_000)
    if intended:
        add(history, intents.config_change([topic], "restore r1"))
    history.configure(retention_ms=WEEK)
    history.sweep(start=500, end=900, size=4_000_000)

    rules = {rule for rule, _, _ in findings_of(history)}
    assert rules == (set() if intended else {"config-drift"})


def topic_history(planned: Sequence[Planned], *, intent_after_ms: int) -> list[str]:
    """A topic that is deleted and created again within a second."""
    deleted_ms = BEGIN_MS + HOUR_MS
    rows = [(BEGIN_MS, Topic("A")), (deleted_ms, Topic("")), (deleted_ms + 900, Topic("B"))]
    events = [event(n, ms, facts, subject="topic/orders") for n, (ms, facts) in enumerate(rows)]
    for subject, facts in resolved(planned, deleted_ms + intent_after_ms):
        time_ms = deleted_ms + max(0, intent_after_ms)
        assert subject == "topic/orders", "partitions of the old topic are gone"
        events.append(event(9, time_ms, facts, subject=subject, source="later"))
    return [each.rule for each in fold(events)[1]]


@pytest.mark.parametrize(
    "planned",
    [intents.topic_deletion(["orders"], "calibration"), intents.topic_restore("orders", "link west")],
)
@pytest.mark.parametrize("intent_after_ms", [-500, 3_000])
def test_a_topic_created_again_on_purpose_is_fine_even_if_a_gateway_reports_it_later(
    planned: list[Planned], intent_after_ms: int
) -> None:
    assert topic_history(planned, intent_after_ms=intent_after_ms) == []


def test_a_topic_created_again_without_an_intent_is_reported() -> None:
    assert topic_history([], intent_after_ms=0) == ["topic-id-changed"]
    other = intents.config_change(["orders"], "link west")
    subject, facts = resolved(other, BEGIN_MS + HOUR_MS)[0]
    events = [
        event(0, BEGIN_MS, Topic("A"), subject=subject),
        event(1, BEGIN_MS + HOUR_MS, facts, subject=subject),
        event(2, BEGIN_MS + HOUR_MS, Topic("B"), subject=subject),
    ]
    assert [each.rule for each in fold(events)[1]] == ["topic-id-changed"]


@pytest.mark.parametrize("intended", [True, False])
def test_what_happened_while_the_audit_was_down_is_explained_by_intents_from_then(intended: bool) -> None:
    history = new_topic().sweep(start=0, end=900, size=9_000_000)
    acted_ms = history.now_ms + 1000
    history.configure(retention_ms=WEEK, after_ms=2 * HOUR_MS)  # observed at the start
    if intended:
        planned = intents.config_change(["orders"], "link west")
        read_ms = history.now_ms + 500
        for subject, facts in resolved(planned, acted_ms, read_ms=read_ms):
            if subject == SUBJECT:
                history.add(facts, after_ms=500)

    assert [rule for rule, _, _ in findings_of(history)] == ([] if intended else ["config-drift"])


def test_many_changes_of_one_actor_displace_no_intent_of_another() -> None:
    history = History()
    history.add(Intent("restore", "an operator", until_ms=history.now_ms + HOUR_MS))
    for _ in range(40):
        history.add(Intent("config", "sa-1"), after_ms=100)

    state = fold(history.events)[0]

    assert [(each.action, each.until_ms - each.time_ms) for each in state.intents] == [
        ("restore", HOUR_MS), ("config", INTENT_MS + 3900),
    ]  # fmt: skip


# --- how an intent reaches the rules --------------------------------------------------------------


def test_a_partition_known_by_its_id_needs_no_lookup() -> None:
    (written,) = events_of(intents.log_start(UUID(int=9), 3, 70, "link west"), 5_000_000)

    assert is_resolvable(written, set())
    assert list(MetadataHistory().resolved(written, 5)) == [
        (partition_subject(id_text(UUID(int=9)), 3), Deleted(70, "link west"))
    ]
    assert intents.log_start(ID, 0, 0, "link west") == []


@pytest.mark.parametrize(
    ("planned", "known"),
    [
        (intents.config_change(["later"], "a"), False),
        (intents.config_change(["orders"], "a"), True),
        (intents.config_change([EVERY_TOPIC], "a"), True),
        (intents.topic_deletion(["gone"], "a"), True),
        ([(named_subject("later", 0), Deleted(5, "sa-1"))], False),
    ],
)
def test_an_intent_about_a_topic_that_is_not_known_yet_waits(planned: list[Planned], known: bool) -> None:
    (written,) = events_of(planned, 5_000_000)

    assert is_resolvable(written, {"orders"}) is known


def auditor() -> Auditor:
    one = Auditor("pkc-000000", cast("Client", None), cast("Any", None))
    one.history = metadata()
    return one


async def test_what_is_observed_comes_after_its_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are new in this cycle: the intent was committed, then the configuration changed."""
    one = auditor()
    written: list[Observation] = []

    async def metadata_log(*_: object) -> list[Observation]:
        return [(SUBJECT, FOREVER)]

    async def nothing(*_: object) -> list[Any]:
        return []

    async def read_events() -> dict[str, Any]:
        now_ns = one.positions.time_ms * 1_000_000
        one._intents += events_of(intents.config_change(["orders", "later"], "link west"), now_ns)
        return {}

    async def fold_(*_: object) -> None:
        assert written, "judged before its intent was written"

    async def write(_: object, early: list[tuple[int, Observation]], then: list[Observation]) -> None:
        written.extend([each for _, each in early] + then)

    one._now_ms()
    for name, fake in (
        ("_metadata", metadata_log), ("_read_topic", nothing), ("_sweep", nothing), ("_fold", fold_),
        ("_write", write), ("_read_events", read_events), ("_publish", nothing),
    ):  # fmt: skip
        monkeypatch.setattr(one, name, fake)
    monkeypatch.setattr(GroupCollector, "collect", nothing)
    one._snapshot_at = float("inf")

    await one._cycle(cast("Any", None), cast("Any", None))

    kinds = [(subject, type(facts).__name__) for subject, facts in written]
    assert kinds[:3] == [("topic/orders", "Intent"), (SUBJECT, "Intent"), (SUBJECT, "Policy")]
    assert [each.subject for each in one._intents] == [named_subject("later")]


def after_takeover(intent_ms: int) -> list[str]:
    """An auditor saw a rise and died. Its successor reads the intent of the deletion a minute later."""
    one = auditor()
    history = History().sweep(start=0, end=900, kept_offset=0).sweep(start=400, end=900)
    one.engine.fold(replace(each, subject=SUBJECT) for each in history.events)
    one._written_ms = history.now_ms
    now_ms = history.now_ms + 60_000
    one._now_ms = lambda: now_ms  # type: ignore[method-assign]  # the clock of a test
    deleted = named_subject("orders", 0), Deleted(400, "sa-1")
    one._intents = events_of([deleted], (history.now_ms + intent_ms) * 1_000_000)
    for time_ms, (subject, facts) in one._resolve_intents():
        one.engine.fold([event(len(history.events), time_ms, facts, subject=subject)])
    return [each.rule for each in one.engine.advance(now_ms)]


def test_an_intent_that_is_read_after_a_takeover_explains_what_the_last_auditor_saw() -> None:
    assert after_takeover(1_000) == []


def test_a_later_deletion_does_not_explain_what_the_last_auditor_saw() -> None:
    assert after_takeover(30_000) == ["log-start-unexplained"]


async def test_what_happened_between_two_terms_is_written_behind_its_intents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Judging it before would report it: it happened while nothing was read."""
    one = auditor()
    chunk = SimpleNamespace(records=(), next_offset=5, high_watermark=5, is_snapshot=True)
    one.positions.metadata = 3

    async def read(*_: object) -> Any:
        return chunk

    async def described(_: object, resources: list[Any], **_more: object) -> dict[Any, Any]:
        return {each: {} for each in resources}

    async def cluster(**_: object) -> Any:
        return SimpleNamespace(id="k", nodes={1: None})

    monkeypatch.setattr(quorum, "read", read)
    monkeypatch.setattr(configs, "describe", described)
    one._client = cast("Any", SimpleNamespace(cluster=cluster))
    gone = SubjectState("pkc-000000", "partition/old/0", placement=PLACEMENT)
    one.engine.states = {gone.key: gone}

    missed = await one._catch_up(cast("Any", None))

    assert missed == [("partition/old/0", Removed())], "a snapshot lacks what was deleted"
    assert one.history.partitions == {}


async def test_intents_that_wait_survive_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    one, rows = auditor(), dict[bytes, bytes]()
    one._intents = events_of(intents.config_change(["later"], "a"), 5_000_000)
    one.engine.states[b"k"] = SubjectState("pkc-000000", "topic/orders", topic_id="A")
    one.engine.changed.add(b"k")

    async def commit(records: list[Any]) -> None:
        rows.update((each.key, each.value) for each in records)

    async def read_compacted(_: object, partition: object) -> dict[bytes, bytes]:
        return dict(rows) if partition == topics.STATE else {}

    async def no_findings(_: object) -> FindingLog:
        return FindingLog()

    monkeypatch.setattr(topics, "read_compacted", read_compacted)
    monkeypatch.setattr(FindingReader, "read", no_findings)
    await one._snapshot(cast("Any", SimpleNamespace(commit=commit)))
    next_one = auditor()
    await next_one._load()

    assert next_one._intents == one._intents
    assert [state.topic_id for state in next_one.engine.states.values()] == ["A"]


# --- the writer -----------------------------------------------------------------------------------


async def test_an_intent_is_committed_when_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    async def ensure(_: object) -> None:
        calls.append("topic")

    async def append(_: object, partition: object, rows: list[tuple[bytes, bytes]]) -> None:
        calls.extend((partition, LogEvent.from_bytes(value)) for _, value in rows)

    monkeypatch.setattr(intents, "ensure_durability_topic", ensure)
    monkeypatch.setattr(intents, "append", append)
    log = IntentLog(cast("Client", None))

    await log.record([])
    assert calls == []
    await log.record(intents.topic_deletion(["a", "b"], "calibration"))
    await log.record(intents.topic_deletion(["c"], "calibration"))

    assert calls[0] == "topic"
    assert calls.count("topic") == 1
    written = [row for row in calls if row != "topic"]
    assert [each.subject for _, each in written] == ["named/a", "named/b", "named/c"]
    assert [partition for partition, _ in written] == [topics.durability_partition(e.key) for _, e in written]
    assert len({each.sequence for _, each in written}) == 3
    assert all(each.read_facts() == Intent("topic-delete", "calibration") for _, each in written)


def test_topics_of_the_audit_are_never_placed_on_a_shadow() -> None:
    assert topics.real_replicas([1, 2, 3], 6) == {}
    assert topics.real_replicas([SHADOW_IDS[0], 3, 1, 2, 4], 3) == {0: [1, 2, 3], 1: [2, 3, 4], 2: [3, 4, 1]}
    assert topics.real_replicas([SHADOW_IDS[0], 1], 2) == {0: [1], 1: [1]}
