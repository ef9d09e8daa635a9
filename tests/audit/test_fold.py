"""The fold: order, repeats, storage, broken rules, and the catalogue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.audit.rules.catalogue import RULES, by_name, selected
from penstock.audit.rules.finding import merged
from penstock.audit.rules.fold import RuleSet, advance, step
from penstock.audit.rules.state import LATENESS_MS, SLACK_MS, SubjectState
from penstock.model.durability import Acked, Deleted, Intent, LogEvent, Severity, What
from penstock.model.errors.audit import RuleCatalogueInvalid
from penstock.model.errors.events import EventTooNew
from tests.audit.history import BEGIN_MS, CLUSTER, SUBJECT, History, fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.audit.rules.case import Case
    from penstock.audit.rules.finding import Finding

EXAMPLES = 30  # each folds a whole history
NAMES = (
    "offsets-ordered log-start-falls log-start-unexplained retention-exceeded acked-unreadable "
    "one-value-per-offset offset-holes epochs-agree isr-legal possible-loss-window tier-coverage "
    "tier-object-wrong local-deleted-before-tiered segment-stuck tier-lag config-drift topic-id-changed "
    "group-offset-outside producer-sequence link-diverged backup-gap replicas-disagree auditor-silent"
)


def eventful() -> History:
    """Legal and illegal changes from several sources."""
    history = History().sweep(start=0, end=1000, size=9000, kept_offset=0)
    history.add(Acked(0, 1099, 1100), source="gateway-1")
    history.add(Deleted(100, "User:shop"), source="gateway-2", after_ms=500)
    history.sweep(start=100, end=1100, size=9000, kept_offset=100)
    history.place(leader=2).sweep(start=100, end=1050).sweep(start=100, end=1050)
    history.add(Intent("config", "User:shop"), source="gateway-1").configure(retention_bytes=4000)
    history.sweep(start=500, end=1200, size=4500).sweep(brokers=[3], start=900, end=1200, size=1000)
    history.configure(min_isr=1).place(isr=(2, 7)).sweep(brokers=[2], start=400, end=1200)
    return history.sweep(brokers=[2], start=400, end=1200)


def test_the_catalogue_has_the_rules_of_the_audit() -> None:
    assert list(by_name()) == NAMES.split()
    for rule in RULES:
        assert rule.invariant.endswith(".")
        assert rule.action.endswith(".")
        assert rule.on or rule.waits


def test_duplicate_and_unknown_rules_are_refused() -> None:
    with pytest.raises(RuleCatalogueInvalid, match="twice"):
        by_name((RULES[0], RULES[0]))
    with pytest.raises(RuleCatalogueInvalid, match="no such rule"):
        selected(["tier-lag", "tire-lag"])
    assert [rule.name for rule in selected(["tier-lag", "isr-legal"])] == ["isr-legal", "tier-lag"]


@settings(max_examples=EXAMPLES)
@given(seed=st.randoms(use_true_random=False))
def test_repeats_and_bounded_lateness_change_no_finding(seed: object) -> None:
    events = eventful().events
    expected_state, expected = fold(events)
    arrivals = [(each.time_ms + seed.randrange(LATENESS_MS), number) for number, each in enumerate(events)]  # type: ignore[attr-defined]  # random.Random
    order = [events[number] for _, number in sorted(arrivals)]
    repeated = [each for one in order for each in [one] * seed.choice((1, 1, 2))]  # type: ignore[attr-defined]  # random.Random

    state, findings = fold(repeated)

    assert [each.id for each in findings] == [each.id for each in expected]
    assert findings == expected
    assert replace(state, sequences={}) == replace(expected_state, sequences={})


@settings(max_examples=EXAMPLES)
@given(cuts=st.lists(st.integers(0, 40), max_size=6), pauses=st.booleans())
def test_increments_with_stored_state_equal_one_run(cuts: list[int], pauses: bool) -> None:
    events = eventful().events
    expected = fold(events)[1]
    state: SubjectState | None = None
    findings: list[Finding] = []
    for number, each in enumerate(events):
        if state is not None and number in cuts:
            state = SubjectState.from_bytes(state.to_bytes())
            if pauses:
                state, new = advance(state, each.time_ms)
                findings += new
        state, new = step(state, LogEvent.from_bytes(each.to_bytes()))
        findings += new
    assert state is not None
    _, new = advance(state, events[-1].time_ms + LATENESS_MS + SLACK_MS)

    assert findings + new == expected


def test_a_state_of_a_newer_version_is_refused() -> None:
    stored = SubjectState(CLUSTER, SUBJECT).to_bytes().replace(b"audit-state/1.", b"audit-state/2.")

    with pytest.raises(EventTooNew):
        SubjectState.from_bytes(stored)


def test_an_event_that_is_too_late_is_counted_and_still_used() -> None:
    history = History().sweep(start=0, end=10, kept_offset=0)
    history.sweep(start=0, end=10, after_ms=60_000)
    late = LogEvent(CLUSTER, SUBJECT, "gateway-1", 0, BEGIN_MS, What.DELETED, {"before": 5, "actor": "a"})

    state, _ = fold([*history.events, late])

    assert state.late == 1
    assert state.deleted_to == 5


def test_an_event_that_cannot_be_read_is_a_finding() -> None:
    broken = LogEvent(
        CLUSTER, SUBJECT, "gateway-1", 0, BEGIN_MS, What.DELETED, {"before": "five", "actor": "a"}
    )

    (finding,) = fold([broken])[1]

    assert finding.rule == "auditor-silent"
    assert "`before`" in finding.detail


def test_a_rule_that_fails_is_a_finding_and_disturbs_no_other() -> None:
    def broken(case: Case) -> Iterator[Finding]:
        case.mark("x", (1,))
        if case.facts is not None:
            raise ZeroDivisionError("by nothing")
        yield case.finding("isr-legal", Severity.INFO, "", "")

    rules = RuleSet((replace(by_name()["isr-legal"], check=broken), by_name()["epochs-agree"]))
    findings = []
    state = None
    history = History().place(leader=2).place(leader=1, leader_epoch=0)
    for each in history.events:
        state, new = step(state, each, rules)
        findings += new
    assert state is not None
    state, new = advance(state, history.now_ms + LATENESS_MS, rules)
    findings += new

    assert {each.rule for each in findings} == {"isr-legal", "epochs-agree"}
    assert "ZeroDivisionError: by nothing" in findings[0].detail
    assert "x" not in state.marks


def test_records_of_one_finding_merge_in_any_order() -> None:
    history = History().sweep(start=0, end=10, kept_offset=0).sweep(start=5, end=10)
    warning = replace(
        fold(history.events)[1][0].record(), severity=Severity.WARNING, last_seen_ms=50, first_seen_ms=50
    )
    critical = replace(warning, severity=Severity.CRITICAL, detail="worse", last_seen_ms=40, first_seen_ms=40)

    assert merged(warning, critical) == merged(critical, warning)
    assert merged(None, warning) == warning
    assert (merged(warning, critical).first_seen_ms, merged(warning, critical).last_seen_ms) == (40, 50)


def test_the_state_of_a_busy_partition_is_bounded() -> None:
    history = History()
    for number in range(300):
        history.sweep(start=number, end=number + 10, kept_offset=number)
        history.configure(retention_ms=1000 + number)
        history.add(Intent("config", "a"), source=f"gateway-{number}")

    state, _ = fold(history.events)

    assert len(state.to_bytes()) < 20_000
