"""A partition's history, and why each change was legal."""

from __future__ import annotations

from penstock.audit.explaining import explained
from penstock.audit.rules.state import INTENTS_MAX
from penstock.model.durability import Deleted, Intent
from tests.audit.history import DAY_MS, HOUR_MS, SUBJECT, History, event


def reasons(history: History) -> list[str]:
    return [reason for each in explained(history.events) for reason in each.reasons]


def test_a_rise_of_the_log_start_has_its_reason_and_one_without_has_its_finding() -> None:
    history = History().sweep(brokers=[1], start=0, end=1200, kept_offset=0)
    history.sweep(brokers=[1], start=100, end=1200).add(Deleted(100, "User:shop"), source="gateway-1")
    history.sweep(brokers=[1], start=300, end=1200)

    rows = explained(history.events)

    assert [reason for row in rows for reason in row.reasons] == [
        "log start 0 to 100: DeleteRecords, link or restore",
        "the log may start at 100, by User:shop",
        "log start 100 to 300: UNEXPLAINED",
    ]
    (raised,) = [finding for row in rows for finding in row.findings]
    assert (raised.rule, raised.first, raised.last) == ("log-start-unexplained", 100, 299)


def test_a_later_deletion_explains_no_earlier_rise() -> None:
    history = History().sweep(brokers=[1], start=0, end=1200, kept_offset=0)
    history.sweep(brokers=[1], start=100, end=1200)
    history.add(Deleted(500, "User:shop"), source="gateway-1", after_ms=HOUR_MS)

    assert "log start 0 to 100: UNEXPLAINED" in reasons(history)


def test_followers_of_a_legal_rise_are_legal() -> None:
    history = History().sweep(start=0, end=1200, kept_offset=0).add(Deleted(100, "User:shop"))
    history.sweep(start=100, end=1200)

    rises = [each for each in reasons(history) if each.startswith("log start")]
    assert rises == ["log start 0 to 100: DeleteRecords, link or restore"] * 3


def test_elections_and_in_sync_replicas_are_explained() -> None:
    history = History()
    history.place(leader=2, isr=(2, 3)).place(isr=(1, 2, 3)).place(leader=-1, isr=(3,), elr=(1,))
    history.place(leader=1, isr=(1,)).place(leader=3, isr=(3,))

    assert reasons(history) == [
        "leader 1 to 2: elected from the ISR",
        "broker 1 left the ISR: stopped or behind; 2 in-sync replicas are left",
        "broker 1 joined the ISR: caught up with the leader",
        "leader 2 to -1: no replica in the ISR is alive",
        "broker 1, 2 left the ISR: stopped or behind; 1 in-sync replicas are left",
        "leader -1 to 1: elected from the ELR",
        "broker 3 left the ISR: stopped or behind; 1 in-sync replicas are left",
        "broker 1 joined the ISR: caught up with the leader",
        "leader 1 to 3: unclean election, UNEXPLAINED",
        "broker 1 left the ISR: stopped or behind; 1 in-sync replicas are left",
        "broker 3 joined the ISR: caught up with the leader",
    ]


def test_a_weaker_configuration_needs_an_intent_and_a_stronger_one_does_not() -> None:
    history = History().configure(retention_ms=DAY_MS, after_ms=HOUR_MS)
    history.add(Intent("config", "link west"), after_ms=HOUR_MS).configure(min_isr=1)
    history.configure(min_isr=2, after_ms=HOUR_MS)

    assert reasons(history) == [
        f"retention.ms {7 * DAY_MS} to {DAY_MS}: UNEXPLAINED",
        "intent of link west: config",
        "min.insync.replicas 2 to 1: intended by link west",
        "configuration changed: protects records no less than before",
    ]


def test_an_intent_explains_its_change_however_many_follow() -> None:
    """The state of the audit keeps the newest intents only."""
    history = History().add(Intent("config", "link west")).configure(min_isr=1)
    for number in range(2 * INTENTS_MAX):
        history.add(Intent("restore", f"restore {number}"), after_ms=HOUR_MS)

    assert "min.insync.replicas 2 to 1: intended by link west" in reasons(history)


def test_an_event_that_cannot_be_read_is_shown() -> None:
    history = History()
    broken = event(7, history.now_ms, Deleted(1, "x"))
    broken.facts.pop("before")  # type: ignore[attr-defined]  # a mapping inside, a dict here

    rows = explained([*history.events, broken])

    assert rows[-1].event.subject == SUBJECT
    assert rows[-1].reasons[0].startswith("not readable:")
