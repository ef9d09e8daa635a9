"""Alerts in the format of Alertmanager's webhooks, signed; one alert for each cause.

The header `X-Penstock-Signature` is `sha256=` and the hex HMAC-SHA256 of the body. Alerts are sent at least
once; a receiver joins repeats by their fingerprint.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.audit.rules.catalogue import by_name
from penstock.http_calls import open_url
from penstock.model import key_names
from penstock.model.durability import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.model.durability import FindingRecord

SIGNATURE_HEADER: Final = "X-Penstock-Signature"
SEND_SECONDS: Final = 10.0
SUBJECTS_SHOWN_MAX: Final = 20
NOT_ENDED: Final = "0001-01-01T00:00:00Z"  # Alertmanager's value

log = structlog.get_logger("penstock.audit")


@dataclass(frozen=True, slots=True)
class Webhook:
    url: str
    secret: bytes = field(repr=False)

    async def send(
        self, findings: Iterable[FindingRecord], ended: Iterable[FindingRecord] = (), *, ended_ms: int = 0
    ) -> bool:
        """Whether the receiver accepted them; `ended` are findings of alerts that are over."""
        body = json.dumps(payload(findings, ended, ended_ms=ended_ms)).encode()
        try:
            async with asyncio.timeout(2 * SEND_SECONDS):
                await asyncio.to_thread(self._post, body)
        except (OSError, TimeoutError, ValueError) as failure:
            log.warning("alert not sent", **{key_names.ERROR: str(failure)})
            return False
        return True

    def _post(self, body: bytes) -> None:
        """Redirects are failures: the signature is for one receiver."""
        headers = {"Content-Type": "application/json", SIGNATURE_HEADER: signature(self.secret, body)}
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - the operator's own address
        with open_url(request, timeout=SEND_SECONDS) as response:
            response.read()


def signature(secret: bytes, body: bytes) -> str:
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


def due(findings: Iterable[FindingRecord], sent: Mapping[str, str]) -> list[FindingRecord]:
    """Open findings whose alert was not sent yet, or only with a lower severity; none that only informs."""
    ranks = {str(severity): rank for rank, severity in enumerate(Severity)}
    return [
        each
        for each in findings
        if each.is_open and ranks[each.severity] > ranks.get(sent.get(each.alert, ""), 0)
    ]


def ended(findings: Iterable[FindingRecord], sent: Mapping[str, str]) -> list[FindingRecord]:
    """Findings of alerts that were sent, and of which none is open any more."""
    causes: dict[str, list[FindingRecord]] = {}
    for finding in findings:
        if finding.alert in sent:
            causes.setdefault(finding.alert, []).append(finding)
    return [one for each in causes.values() if not any(one.is_open for one in each) for one in each]


def severities(findings: Iterable[FindingRecord]) -> dict[str, str]:
    """The highest severity of each alert."""
    ordered = sorted(findings, key=lambda each: list(Severity).index(each.severity))
    return {each.alert: str(each.severity) for each in ordered}


def payload(
    firing: Iterable[FindingRecord], over: Iterable[FindingRecord] = (), *, ended_ms: int = 0
) -> dict[str, Any]:
    """One alert for each cause, with the subjects it concerns; `over` are those of alerts that have ended."""
    alerts = _alerts(firing, "firing", NOT_ENDED) + _alerts(over, "resolved", _time(ended_ms))
    return {
        "version": "4",
        "groupKey": "penstock-audit",
        "truncatedAlerts": 0,
        "status": "firing" if any(each["status"] == "firing" for each in alerts) else "resolved",
        "receiver": "penstock",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": alerts,
    }


def _alerts(findings: Iterable[FindingRecord], status: str, ends_at: str) -> list[dict[str, Any]]:
    causes: dict[str, list[FindingRecord]] = {}
    for finding in findings:
        causes.setdefault(finding.alert, []).append(finding)
    rules = by_name()
    alerts = []
    for cause, each in sorted(causes.items()):
        worst = max(each, key=lambda one: list(Severity).index(one.severity))
        began = min(one.first_seen_ms for one in each)
        subjects = sorted(one.subject for one in each)
        labels = {
            "alertname": worst.rule,
            "severity": worst.severity,
            "cluster": worst.cluster,
            "cause": cause,
        }
        alerts.append(
            {
                "status": status,
                "labels": labels,
                "annotations": {
                    "summary": worst.detail,
                    "description": rules[worst.rule].action,
                    "findings": " ".join(one.id for one in each[:SUBJECTS_SHOWN_MAX]),
                    "subjects": " ".join(subjects[:SUBJECTS_SHOWN_MAX]),
                    "subject_count": str(len(set(subjects))),
                },
                "startsAt": _time(began),
                "endsAt": ends_at,
                "generatorURL": "",
                "fingerprint": hashlib.sha256(cause.encode()).hexdigest()[:16],
            }
        )
    return alerts


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()
