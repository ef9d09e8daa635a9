"""Notifies operators of incidents: a signed webhook, a command, and always the log.

A webhook gets one POST for each event, with `X-Penstock-Signature`: the HMAC-SHA-256 of the body. It is
retried with growing pauses, does not follow redirects, and has an id that stays the same: receivers drop
repetitions.

One target that hangs delays neither the others nor the control plane; beyond a bound the oldest events are
dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.http_calls import open_url
from penstock.model.backoff import Backoff
from penstock.model.errors.health import NotificationFailed

if TYPE_CHECKING:
    from penstock.model.entities import Incident

SECONDS_MAX: Final = 5.0  # of one attempt
ATTEMPTS_MAX: Final = 6
QUEUED_MAX: Final = 1_000
BACKOFF: Final = Backoff(1.0, 60.0)

log = structlog.get_logger("penstock.health")


@dataclass(frozen=True, slots=True)
class Targets:
    webhook: str = ""
    secret: str = field(default="", repr=False)  # signs the webhook's body
    command: tuple[str, ...] = ()  # gets the event on its standard input


@dataclass(frozen=True, slots=True)
class Notice:
    id: str
    incident: str
    body: bytes


def notice_of(incident: Incident, text: str) -> Notice:
    """The id follows from the incident, its last entry and the text: another control plane gives the same."""
    last_ms = incident.entries[-1].time_ms if incident.entries else incident.opened_ms
    name = f"{incident.id}-{last_ms}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    event = {
        "id": name,
        "incident": incident.id,
        "physical_cluster": incident.cluster,
        "broker": int(incident.broker),
        "health": incident.health,
        "state": str(incident.state),
        "text": text,
        "opened_ms": incident.opened_ms,
    }
    return Notice(name, incident.id, json.dumps(event, sort_keys=True).encode())


def signature(secret: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class Notifier:
    def __init__(self, targets: Targets = Targets(), backoff: Backoff = BACKOFF) -> None:  # noqa: B008 - frozen
        self._targets, self._backoff = targets, backoff
        self._queues: dict[str, deque[Notice]] = {
            name: deque(maxlen=QUEUED_MAX)
            for name, used in (("webhook", targets.webhook), ("command", targets.command))
            if used
        }
        self._wake = asyncio.Event()
        self._sent: deque[str] = deque(maxlen=QUEUED_MAX)
        self.failed = 0

    def notify(self, incident: Incident, text: str) -> None:
        notice = notice_of(incident, text)
        if notice.id in self._sent:
            return
        self._sent.append(notice.id)
        names = {"cluster": incident.cluster, "broker": int(incident.broker)}
        log.warning("incident", incident=incident.id, text=text, **names)
        for queue in self._queues.values():
            queue.append(notice)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, queue in self._queues.items():
                group.create_task(self._deliver(name, queue))

    async def _deliver(self, name: str, queue: deque[Notice]) -> None:
        while True:
            if not queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            notice = queue.popleft()
            for attempt in range(1, ATTEMPTS_MAX + 1):
                reason = await (self._post(notice) if name == "webhook" else self._execute(notice))
                if not reason:
                    break
                failure = NotificationFailed(incident=notice.incident, target=name, reason=reason)
                log.warning("notification failed", error=str(failure), attempt=attempt)
                await asyncio.sleep(self._backoff.seconds(attempt))
            else:
                self.failed += 1

    async def _post(self, notice: Notice) -> str:
        """Why it was not delivered; empty if it was."""
        headers = {"Content-Type": "application/json", "X-Penstock-Event": notice.id}
        if self._targets.secret:
            headers["X-Penstock-Signature"] = signature(self._targets.secret, notice.body)
        request = urllib.request.Request(self._targets.webhook, notice.body, headers, method="POST")  # noqa: S310 - an operator's setting

        def post() -> None:
            with open_url(request, timeout=SECONDS_MAX):
                pass

        try:
            async with asyncio.timeout(2 * SECONDS_MAX):
                await asyncio.to_thread(post)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return f"it responded with {refusal.code}"
        except (OSError, TimeoutError) as failure:
            return str(failure) or f"no response within {SECONDS_MAX:g} s"
        return ""

    async def _execute(self, notice: Notice) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._targets.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as failure:
            return str(failure)
        try:
            async with asyncio.timeout(2 * SECONDS_MAX):
                await process.communicate(notice.body)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"it did not end within {2 * SECONDS_MAX:g} s"
        return "" if process.returncode == 0 else f"it ended with exit code {process.returncode}"
