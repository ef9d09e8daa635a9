"""Notifications: signed, retried, deduplicated; a redirect or an error is a failure."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import structlog.testing

from penstock.control.health.incidents import ENTRIES_MAX, with_entry
from penstock.control.health.notification import Notifier, Targets, notice_of, signature
from penstock.model.backoff import Backoff
from penstock.model.entities import Incident, IncidentEntry
from penstock.model.ids import BrokerId, PhysicalClusterId
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INCIDENT = Incident(
    id="inc-1", cluster=PhysicalClusterId("pkc-7hq2mz"), broker=BrokerId(2), health="slow", opened_ms=1,
    entries=(IncidentEntry(1, "finding", "slow"),),
)  # fmt: skip


class Receiver(BaseHTTPRequestHandler):
    """Responds with the next status; keeps what it got."""

    statuses: list[int]
    received: list[tuple[str, str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.headers["X-Penstock-Event"], self.headers["X-Penstock-Signature"], body))
        status = self.statuses.pop(0) if self.statuses else 200
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 302:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined] # an HTTPServer
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


async def deliver(statuses: list[int], notify: Callable[[Notifier], None], count: int) -> list[str]:
    Receiver.statuses, Receiver.received = statuses, []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    notifier = Notifier(Targets(f"http://127.0.0.1:{server.server_port}/", "s3cret"), Backoff(0.01, 0.01))
    running = asyncio.create_task(notifier.run())
    try:
        notify(notifier)
        await eventually(lambda: asyncio.sleep(0, len(Receiver.received) >= count))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(server.shutdown)
        thread.join()
        server.server_close()
    for _, signed, body in Receiver.received:
        assert signed == signature("s3cret", body)
    return [name for name, _, _ in Receiver.received]


async def test_a_webhook_is_signed_and_retried_after_errors_and_redirects() -> None:
    names = await deliver([500, 302, 200], lambda n: n.notify(INCIDENT, "excluded"), 3)
    assert names == [notice_of(INCIDENT, "excluded").id] * 3
    assert json.loads(Receiver.received[0][2])["text"] == "excluded"


async def test_the_same_event_is_sent_once() -> None:
    more = replace(INCIDENT, entries=(*INCIDENT.entries, IncidentEntry(2, "blocked", "held")))

    def notify(notifier: Notifier) -> None:
        notifier.notify(INCIDENT, "excluded")
        notifier.notify(INCIDENT, "excluded")
        notifier.notify(more, "held")

    expected = [notice_of(INCIDENT, "excluded").id, notice_of(more, "held").id]
    assert await deliver([], notify, 2) == expected


def test_events_of_a_long_incident_have_different_ids() -> None:
    """Receivers drop an event whose id they know."""
    incident = INCIDENT
    ids = {notice_of(incident, "released").id}
    for number in range(2, ENTRIES_MAX + 50):
        incident = with_entry(incident, "failed", str(number), number)
        ids.add(notice_of(incident, "failed").id)
    assert len(ids) == ENTRIES_MAX + 49
    assert notice_of(INCIDENT, "released").id != notice_of(INCIDENT, "excluded").id


async def test_a_command_gets_the_event_and_its_failure_is_logged(tmp_path: Path) -> None:
    written = tmp_path / "event"
    code = f"import sys; open({str(written)!r}, 'w').write(sys.stdin.read())"
    notifier = Notifier(Targets(command=(sys.executable, "-c", code)))
    running = asyncio.create_task(notifier.run())
    notifier.notify(INCIDENT, "excluded")
    await eventually(lambda: asyncio.sleep(0, written.exists() and bool(written.read_text())))
    running.cancel()
    assert json.loads(written.read_text()) == json.loads(notice_of(INCIDENT, "excluded").body)

    failing = Notifier(Targets(command=("/nowhere/command",)), Backoff(0.001, 0.001))
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(failing.run())
        failing.notify(INCIDENT, "excluded")
        await eventually(lambda: asyncio.sleep(0, failing.failed == 1))
        running.cancel()
    assert "PEN-5626" in str(logs)  # NotificationFailed
