"""Which operations of a leadership term wait for each other."""

from __future__ import annotations

import pytest

from penstock.control.leadership import lock_key
from penstock.control.operations import STEPS
from penstock.model.entities import Operation
from penstock.model.ids import LogicalClusterId

TENANT = LogicalClusterId("lkc-7hq2mz")


def operation(action: str, subject: str = "subject", tenant: LogicalClusterId | None = None) -> Operation:
    return Operation(id="op-1", action=action, subject=subject, tenant=tenant)


@pytest.mark.parametrize("action", ["fleet.roll", "fleet.grow", "fleet.shrink", "fleet.controllers-replace"])
def test_what_takes_minutes_delays_no_plan_and_no_broker_state(action: str) -> None:
    assert action in STEPS
    for quick in ("plan.cancel", "plan.run", "broker.set"):
        assert lock_key(operation(action)) != lock_key(operation(quick))
    assert lock_key(operation(action, "other")) != lock_key(operation(action))


def test_operations_of_one_tenant_wait_for_each_other() -> None:
    keys = {lock_key(operation(action, action, TENANT)) for action in ("cluster.move", "key.create")}
    assert keys == {TENANT}
