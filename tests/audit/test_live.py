"""The live engine, alerts, and what an operator reads."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

from penstock.audit import alerts
from penstock.audit.live import LiveEngine, is_gone, is_running
from penstock.audit.rules.state import LATENESS_MS, SLACK_MS
from penstock.model.durability import FindingState, Heartbeat, Removed, Severity
from tests.audit.history import BEGIN_MS, History, event


def trimmed(*, subject: str = "") -> History:
    history = History().sweep(start=0, end=1200, kept_offset=0).sweep(start=300, end=1200)
    if subject:
        history.events = [replace(each, subject=subject) for each in history.events]
    return history


def settled(engine: LiveEngine, history: History) -> list[str]:
    """The rules of the findings that change."""
    changed = engine.fold(history.events)
    changed += engine.advance(history.now_ms + LATENESS_MS + SLACK_MS)
    return [each.rule for each in changed]


def test_folding_the_same_events_again_changes_nothing() -> None:
    """As after a restart from an older snapshot."""
    engine, again = LiveEngine(), LiveEngine()
    assert settled(engine, trimmed()) == ["log-start-unexplained"]
    again.load([], engine.findings.values())

    assert settled(again, trimmed()) == []
    assert again.findings == engine.findings


def test_a_restart_from_a_snapshot_in_the_middle_changes_nothing() -> None:
    history = trimmed()
    expected = LiveEngine()
    settled(expected, history)
    for cut in range(len(history.events)):
        first, second = LiveEngine(), LiveEngine()
        first.fold(history.events[:cut])
        second.load(first.states.values(), first.findings.values())
        second.fold(history.events[cut:])
        second.advance(history.now_ms + LATENESS_MS + SLACK_MS)
        assert second.findings == expected.findings


def test_a_violation_that_was_observed_once_is_swept_again() -> None:
    history = History().sweep(start=10, end=5)
    engine = LiveEngine()
    settled(engine, history)

    assert engine.suspected() == {history.events[0].subject}


def test_the_state_of_a_deleted_topic_can_be_forgotten() -> None:
    engine = LiveEngine()
    settled(engine, History().sweep(start=0, end=5).add(Removed()))
    ((key, state),) = engine.states.items()

    assert is_gone(state)
    engine.forget(key)
    assert engine.states == {}
    assert engine.advance(2**50) == []


def test_an_audit_without_a_recent_heartbeat_does_not_run() -> None:
    beat = event(0, BEGIN_MS, Heartbeat(1, 10_000), subject="collector/auditor")
    engine = LiveEngine()
    engine.fold([beat])
    engine.advance(BEGIN_MS + LATENESS_MS)
    states = list(engine.states.values())

    assert is_running(states, BEGIN_MS + 60_000, 0)
    assert is_running(states, BEGIN_MS + 90_000, 30_000)
    assert not is_running(states, BEGIN_MS + 90_001, 30_000)
    assert not is_running([], BEGIN_MS, 0)


def test_findings_with_one_cause_are_one_alert() -> None:
    engine = LiveEngine()
    for number in range(3):
        settled(engine, trimmed(subject=f"partition/T{number}/0"))

    document = alerts.payload(engine.findings.values())

    (alert,) = document["alerts"]
    assert alert["labels"] == {
        "alertname": "log-start-unexplained",
        "severity": "critical",
        "cluster": "pkc-000000",
        "cause": "log-start-unexplained/broker 1",
    }
    assert alert["annotations"]["subject_count"] == "3"


def test_an_alert_is_due_once_and_again_if_it_becomes_more_severe() -> None:
    engine = LiveEngine()
    settled(engine, trimmed())
    (finding,) = engine.findings.values()
    warning = replace(finding, severity=Severity.WARNING)
    sent = alerts.severities([warning])

    assert alerts.due([replace(finding, severity=Severity.INFO)], {}) == []
    assert alerts.due([warning], {}) == [warning]
    assert alerts.due([warning], sent) == []
    assert alerts.due([finding], sent) == [finding]
    assert alerts.due([replace(finding, state=FindingState.ACKNOWLEDGED)], {}) == []


def test_an_alert_ends_when_none_of_its_findings_is_open() -> None:
    engine = LiveEngine()
    for number in range(2):
        settled(engine, trimmed(subject=f"partition/T{number}/0"))
    one, other = engine.findings.values()
    sent = alerts.severities([one, other])
    over = [replace(each, state=FindingState.RESOLVED) for each in (one, other)]

    assert alerts.ended([over[0], other], sent) == []
    assert alerts.ended(over, {}) == []
    assert alerts.ended(over, sent) == over
    (alert,) = alerts.payload([], over, ended_ms=1_800_000_000_000)["alerts"]
    assert (alert["status"], alert["endsAt"]) == ("resolved", "2027-01-15T08:00:00+00:00")


def test_a_webhook_is_signed_and_a_receiver_that_fails_is_reported() -> None:
    received: list[tuple[str, bytes]] = []
    status = [500, 200]

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers[alerts.SIGNATURE_HEADER], body))
            self.send_response(status[len(received) - 1])
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    engine = LiveEngine()
    settled(engine, trimmed())
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        hook = alerts.Webhook(f"http://127.0.0.1:{server.server_port}/", b"key")
        results = [asyncio.run(hook.send(engine.findings.values())) for _ in range(2)]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

    signed, body = received[1]
    assert results == [False, True]
    assert signed == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert json.loads(body)["version"] == "4"
