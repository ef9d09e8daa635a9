"""What a gateway reports about its tenants, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.limits.metering import Source, Usage
from penstock.gateway.limits.quota_shares import IDLE_MS, REPORT_MS, UsageReporter
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId, PhysicalClusterId

if TYPE_CHECKING:
    from penstock.model.events import UsageReport

TENANT = LogicalClusterId("lkc-aaaaaa")
SOURCE = Source(PhysicalClusterId("pkc-000000"), "gw-1", "1")


class Harness:
    """A tenant on a gateway that publishes once a second."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.reporter = UsageReporter()
        self.now_ms = 0

    def second(self, *, used: int = 0, connections: int = 0) -> UsageReport | None:
        """The report that is due after one more second."""
        self.now_ms += 1000
        self.usage.bytes_in += used
        self.usage.connections = connections
        self.reporter([self.usage.report(SOURCE, TENANT, self.now_ms, self.now_ms)])
        return self.reporter.due().get(TENANT)


def test_an_active_tenant_is_reported_every_other_second() -> None:
    harness = Harness()

    sent = [harness.second(used=10, connections=1) for _ in range(6)]

    assert [report is not None for report in sent] == [True, False] * 3
    assert REPORT_MS == 2_000


def test_a_tenant_with_idle_connections_is_reported_for_as_long_as_it_has_them() -> None:
    harness = Harness()

    sent = [harness.second(connections=1) for _ in range(2 * IDLE_MS // 1000)]

    assert sent[-1] is not None or sent[-2] is not None


def test_an_idle_tenant_is_reported_a_while_longer_and_again_when_it_returns() -> None:
    harness = Harness()
    harness.second(used=10, connections=1)

    rest = [harness.second() for _ in range(2 * IDLE_MS // 1000)]
    back = [harness.second(used=5) for _ in range(2)]

    assert any(rest)
    assert not any(rest[-10:])
    assert any(back)


def test_a_report_includes_how_long_the_tenant_was_throttled() -> None:
    harness = Harness()
    harness.usage.throttled_seconds = {Dimension.INGRESS_BYTES: 1.5}

    report = harness.second(used=1)

    assert report is not None
    assert report.throttled_ms == {"ingress_bytes": 1500}
