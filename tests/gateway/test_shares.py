"""What a gateway reports of its tenants, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.metering import Source, Usage
from penstock.gateway.shares import AT_REST_MS, REPORT_MS, Reporter
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId, PhysicalClusterId

if TYPE_CHECKING:
    from penstock.model.events import UsageReport

TENANT = LogicalClusterId("lkc-aaaaaa")
SOURCE = Source(PhysicalClusterId("pkc-000000"), "gw-1", "1")


class Ground:
    """A tenant on a gateway that hands out its evidence once a second."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.reporter = Reporter()
        self.now_ms = 0

    def second(self, *, used: int = 0, connections: int = 0) -> UsageReport | None:
        """What is to be sent after one more."""
        self.now_ms += 1000
        self.usage.bytes_in += used
        self.usage.connections = connections
        self.reporter([self.usage.report(SOURCE, TENANT, self.now_ms, self.now_ms)])
        return self.reporter.due().get(TENANT)


def test_an_active_tenant_is_reported_every_other_second() -> None:
    ground = Ground()

    sent = [ground.second(used=10, connections=1) for _ in range(6)]

    assert [report is not None for report in sent] == [True, False] * 3
    assert REPORT_MS == 2_000


def test_a_tenant_with_idle_connections_is_reported_for_as_long_as_it_has_them() -> None:
    ground = Ground()

    sent = [ground.second(connections=1) for _ in range(2 * AT_REST_MS // 1000)]

    assert sent[-1] is not None or sent[-2] is not None


def test_a_tenant_at_rest_is_reported_some_time_longer_and_again_when_it_comes_back() -> None:
    ground = Ground()
    ground.second(used=10, connections=1)

    rest = [ground.second() for _ in range(2 * AT_REST_MS // 1000)]
    back = [ground.second(used=5) for _ in range(2)]

    assert any(rest)
    assert not any(rest[-10:])
    assert any(back)


def test_a_report_says_how_long_the_tenant_was_kept_waiting() -> None:
    ground = Ground()
    ground.usage.throttled_seconds = {Dimension.INGRESS_BYTES: 1.5}

    report = ground.second(used=1)

    assert report is not None
    assert report.throttled_ms == {"ingress_bytes": 1500}
