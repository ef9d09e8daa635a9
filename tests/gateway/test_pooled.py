"""A limit of a file holds for all workers together, and for connections that there are when it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.config import Tenant
from penstock.gateway.metering import Usage
from penstock.gateway.pooled import LOOK_SECONDS, Pooled, since
from penstock.gateway.tally import Tally
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId

if TYPE_CHECKING:
    from penstock.gateway.throttling import TenantQuota

ID = LogicalClusterId("lkc-000001")
RATE = 1000.0


class Paper:
    """One worker, as much of it as its limits need; the clock is the test's."""

    def __init__(self, tally: Tally, index: int) -> None:
        mine = Tally.__new__(Tally)
        mine.__dict__.update(tally.__dict__)
        mine.sit(index)
        self.time = 0.0
        self.usage = Usage()
        self.pooled = Pooled(mine)
        self.configure({Dimension.INGRESS_BYTES: RATE})
        self.quota: TenantQuota = self.pooled.quotas.settle(ID, self.limits, 0.0)
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
        """Somebody sends, unless it was told to wait."""
        if now < self.waits_until:
            return 0
        self.usage.bytes_in += amount
        if self.usage.bytes_in > self.usage.bytes_in_next:
            self.waits_until = max(self.waits_until, now + self.quota.sent(now))
        return amount

    def look(self, now: float) -> None:
        self.time = now
        self.pooled.look(self.gateway)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=20),
)
def test_two_workers_pass_no_more_than_one_would(sizes: list[tuple[int, int]]) -> None:
    tally = Tally(2)
    workers = [Paper(tally, index) for index in range(2)]
    step, seconds, passed = 0.05, 20.0, 0
    for worker in workers:
        worker.look(0.0)

    for turn in range(int(seconds / step)):
        now = turn * step
        if turn % round(LOOK_SECONDS / step) == 0:
            for worker in workers:
                worker.look(now)
        for worker, size in zip(workers, sizes[turn % len(sizes)]):
            passed += worker.send(size, now)

    # The rate, two bursts (`spend_late` may grant one more), and what passes between two looks.
    between = 2 * (LOOK_SECONDS / step + 1) * 300
    assert passed <= RATE * seconds + 2 * RATE + between


def test_one_worker_may_use_all_of_it_while_the_other_rests() -> None:
    tally = Tally(2)
    busy, idle = (Paper(tally, index) for index in range(2))
    passed = 0
    for turn in range(200):
        now = turn * 0.1
        busy.look(now)
        idle.look(now)
        passed += busy.send(90, now)

    assert passed == 200 * 90


def test_what_a_worker_used_before_this_one_began_is_not_charged_and_a_new_one_begins_at_nothing() -> None:
    tally = Tally(2)
    first = Paper(tally, 0)
    first.usage.bytes_in = 10**9
    first.look(0.0)
    second = Paper(tally, 1)
    second.look(0.0)

    assert second.send(100, 0.1) == 100
    assert second.waits_until == 0.0
    assert since((10.0, 5.0), (12.0, 1.0)) == (2.0, 1.0)


def test_a_limit_that_changes_holds_at_the_next_look() -> None:
    worker = Paper(Tally(), 0)
    worker.configure({Dimension.INGRESS_BYTES: 10.0})

    worker.look(1.0)

    assert worker.quota.granted() == {Dimension.INGRESS_BYTES: 10.0}
    worker.configure({})
    worker.look(2.0)
    assert worker.quota.granted() == {}
