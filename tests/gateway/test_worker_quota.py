"""A file's limit applies to all workers together, and to existing connections when it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.config import Tenant
from penstock.gateway.limits.metering import Usage
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.gateway.limits.worker_quota import SHARE_SECONDS, WorkerQuotas, increase
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId

if TYPE_CHECKING:
    from penstock.gateway.limits.tenant_quota import TenantQuota

ID = LogicalClusterId("lkc-000001")
RATE = 1000.0


class Paper:
    """One worker, as far as its limits need it; the test sets the clock."""

    def __init__(self, counters: SharedCounters, index: int) -> None:
        own = SharedCounters.__new__(SharedCounters)
        own.__dict__.update(counters.__dict__)
        own.become(index)
        self.time = 0.0
        self.usage = Usage()
        self.pooled = WorkerQuotas(own)
        self.configure({Dimension.INGRESS_BYTES: RATE})
        self.quota: TenantQuota = self.pooled.quotas.apply(ID, self.limits, 0.0)
        self.quota.bind(self.usage)
        self.waits_until = 0.0

    def configure(self, limits: dict[Dimension, float]) -> None:
        self.limits = limits
        self.gateway: Any = SimpleNamespace(
            config=SimpleNamespace(tenant_of={ID: Tenant(ID, quota=limits)}),
            usage={ID: self.usage},
            now=lambda: self.time,
        )

    def send(self, amount: int, now: float) -> int:
        """A client sends, unless it has to wait."""
        if now < self.waits_until:
            return 0
        self.usage.bytes_in += amount
        if self.usage.bytes_in > self.usage.bytes_in_check_at:
            self.waits_until = max(self.waits_until, now + self.quota.charge_ingress(now))
        return amount

    def update(self, now: float) -> None:
        self.time = now
        self.pooled.update(self.gateway)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=20),
)
def test_two_workers_pass_no_more_than_one_would(sizes: list[tuple[int, int]]) -> None:
    counters = SharedCounters(2)
    workers = [Paper(counters, index) for index in range(2)]
    step, seconds, passed = 0.05, 20.0, 0
    for worker in workers:
        worker.update(0.0)

    for turn in range(int(seconds / step)):
        now = turn * step
        if turn % round(SHARE_SECONDS / step) == 0:
            for worker in workers:
                worker.update(now)
        for worker, size in zip(workers, sizes[turn % len(sizes)]):
            passed += worker.send(size, now)

    # The rate, two bursts (`spend_late` may grant one more), and what passes between two updates.
    between = 2 * (SHARE_SECONDS / step + 1) * 300
    assert passed <= RATE * seconds + 2 * RATE + between


def test_one_worker_may_use_the_whole_limit_while_the_other_is_idle() -> None:
    counters = SharedCounters(2)
    busy, idle = (Paper(counters, index) for index in range(2))
    passed = 0
    for turn in range(200):
        now = turn * 0.1
        busy.update(now)
        idle.update(now)
        passed += busy.send(90, now)

    assert passed == 200 * 90


def test_usage_before_a_worker_started_is_not_charged() -> None:
    counters = SharedCounters(2)
    first = Paper(counters, 0)
    first.usage.bytes_in = 10**9
    first.update(0.0)
    second = Paper(counters, 1)
    second.update(0.0)

    assert second.send(100, 0.1) == 100
    assert second.waits_until == 0.0
    assert increase((10.0, 5.0), (12.0, 1.0)) == (2.0, 1.0)


def test_a_changed_limit_applies_at_the_next_update() -> None:
    worker = Paper(SharedCounters(), 0)
    worker.configure({Dimension.INGRESS_BYTES: 10.0})

    worker.update(1.0)

    assert worker.quota.granted() == {Dimension.INGRESS_BYTES: 10.0}
    worker.configure({})
    worker.update(2.0)
    assert worker.quota.granted() == {}
