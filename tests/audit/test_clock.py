"""The auditor's own time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from penstock.audit import service
from penstock.audit.service import Auditor

if TYPE_CHECKING:
    import pytest

    from penstock.kafka.client import Client

HOUR = 3600.0
BEGIN = 1_800_000_000.0


def test_time_never_falls_and_passes_though_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it stood still, nothing that waits would be judged until the clock has caught up."""
    clock = SimpleNamespace(wall=BEGIN, steady=100.0)
    fake = SimpleNamespace(time=lambda: clock.wall, monotonic=lambda: clock.steady)
    monkeypatch.setattr(service, "time", fake)
    one = Auditor("pkc-000000", cast("Client", None), cast("Any", None))
    first = one._now_ms()

    clock.wall, clock.steady = clock.wall - HOUR, clock.steady + 60
    second = one._now_ms()
    skew_ms = one._heartbeat().skew_ms
    clock.wall, clock.steady = clock.wall + 60, clock.steady + 60
    third = one._now_ms()
    clock.wall, clock.steady = BEGIN + HOUR, clock.steady + HOUR
    fourth = one._now_ms()

    assert first == int(BEGIN * 1000)
    assert (second - first, third - second) == (30_000, 30_000)
    assert skew_ms == 3_630_000, "which the rule `auditor-silent` reports"
    assert fourth == int((BEGIN + HOUR) * 1000), "the clock has caught up"
