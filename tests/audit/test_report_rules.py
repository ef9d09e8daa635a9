"""What scrubs, groups, links, backups and collectors report."""

from __future__ import annotations

import pytest

from penstock.audit.rules.fold import advance, step
from penstock.model.durability import Acked, Backup, Group, Heartbeat, Intent, Link, Scrubbed, Severity
from tests.audit.history import HOUR_MS, History, event, findings_of, fold


def test_the_minority_replica_is_named() -> None:
    history = History()
    for place, digest in (("broker 1", "aa"), ("broker 2", "bb"), ("broker 3", "aa")):
        history.add(Scrubbed(place, 0, 999, digest))

    finding = fold(history.events)[1][-1]

    assert (finding.rule, finding.first, finding.last) == ("one-value-per-offset", 0, 999)
    assert finding.evidence["places"] == ["broker 2"]


def test_equal_digests_and_digests_of_other_ranges_are_fine() -> None:
    history = History().add(Scrubbed("broker 1", 0, 999, "aa"), Scrubbed("tier", 0, 999, "aa"))
    history.add(Scrubbed("broker 2", 0, 1200, "bb"))

    assert findings_of(history) == []


def test_holes_and_broken_sequences_are_reported_unless_the_topic_is_compacted() -> None:
    scrubbed = Scrubbed("broker 1", 0, 99, "aa", ((10, 19),), ("producer 7: sequence 5 after 3",))
    compacted = History().configure(cleanup="compact").add(Intent("config", "a"), scrubbed)

    assert findings_of(History().add(scrubbed)) == [("offset-holes", 10, 19), ("producer-sequence", 0, 99)]
    assert findings_of(compacted) == []


@pytest.mark.parametrize(
    ("group", "severity"),
    [
        (Group("g", 5, start=10, end=20), Severity.WARNING),
        (Group("g", 25, start=10, end=20), Severity.CRITICAL),
        (Group("g", 12, 15, 10, 20), Severity.INFO),
    ],
)
def test_committed_offsets_outside_the_log_or_fallen_are_reported(group: Group, severity: Severity) -> None:
    (finding,) = fold(History().add(Acked(0, 19, 20), group).events)[1]

    assert (finding.rule, finding.severity) == ("group-offset-outside", severity)


def test_a_group_that_rewinds_again_and_again_is_one_finding() -> None:
    history = History().add(Acked(0, 19, 20))
    for number in range(5):
        history.add(Group("g", number, 15 + number, 0, 20), after_ms=60_000)

    findings = fold(history.events)[1]

    assert len(findings) == 5
    assert len({each.id for each in findings}) == 1


def test_a_group_that_has_read_everything_acknowledged_is_not_behind() -> None:
    """The last offset is the marker of a transaction: no client reads it, and then it expires."""
    history = History().add(Acked(0, 18, 19), Group("g", 19, start=20, end=20))

    assert findings_of(history) == []


def test_a_recorded_reset_is_fine() -> None:
    assert findings_of(History().add(Group("g", 12, 15, 10, 20, reset=True))) == []


@pytest.mark.parametrize(
    ("link", "count"),
    [
        (Link("west", 0, 100, 500, 100, 500), 0),
        (Link("west", 0, 100, 500, 0, 400), 0),  # behind in both
        (Link("west", 50, 0, 500, 50, 400), 0),
        (Link("west", 0, 100, 500, 100, 501), 1),
        (Link("west", 0, 100, 500, 150, 500), 1),
        (Link("west", 0, 100, 500, 100, 500, 250), 1),
    ],
)
def test_a_mirror_is_a_part_of_its_source(link: Link, count: int) -> None:
    assert [rule for rule, _, _ in findings_of(History().add(link))] == ["link-diverged"] * count


def test_a_backup_must_have_what_it_promises_and_no_more() -> None:
    history = History().add(Backup(100, 499, ((0, 99), (450, 600))))

    assert findings_of(history) == [("backup-gap", 450, 499)]


def heartbeats(*numbers: int, **facts: object) -> list[str]:
    events = [
        event(number, 10_000 * number, Heartbeat(number, 10_000, **facts), subject="collector/sweeps")  # type: ignore[arg-type]  # keywords of a test
        for number in numbers
    ]
    return [each.rule for each in fold(events)[1]]


def test_steady_heartbeats_are_fine() -> None:
    assert heartbeats(*range(20)) == []


def test_missing_heartbeats_are_reported() -> None:
    assert heartbeats(0, 1, 3) == ["auditor-silent"]
    assert heartbeats(0, 1, 60) == ["auditor-silent", "auditor-silent"]  # silent, and some are missing


@pytest.mark.parametrize("facts", [{"behind_ms": 90_000}, {"skew_ms": -60_000}, {"unseen_count": 3}])
def test_a_collector_that_sees_too_little_is_reported(facts: dict[str, object]) -> None:
    assert heartbeats(0, **facts) == []
    assert heartbeats(0, 1, 2, **facts) == ["auditor-silent"]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_collector_that_dies_is_reported_when_time_passes(stopped: bool) -> None:
    heartbeat = event(0, 1_000, Heartbeat(0, 10_000, stopped=stopped), subject="collector/sweeps")
    state, _ = step(None, heartbeat)

    state, first = advance(state, HOUR_MS)
    state, second = advance(state, 2 * HOUR_MS)

    assert [each.rule for each in first] == ([] if stopped else ["auditor-silent"])
    assert second == []
