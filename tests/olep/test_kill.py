"""kill -9 at every named fault point, and the money is all there afterwards."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from examples.payments.audit import audit
from examples.payments.load import Load
from penstock.model import faults
from penstock.olep.executor import REVOKED
from penstock.olep.log import APPEND_AFTER, APPEND_BEFORE
from penstock.olep.snapshot import SNAPSHOT_HALF
from tests.olep.ground import wait_for

if TYPE_CHECKING:
    from tests.olep.ground import BankGround

pytestmark = pytest.mark.kafka

OF_CALLERS = (APPEND_BEFORE, APPEND_AFTER)
WHEN_LEAVING = (REVOKED, SNAPSHOT_HALF)
AT_WORK = tuple(point for point in faults.points("olep") if point not in OF_CALLERS + WHEN_LEAVING)
PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)


@pytest.mark.parametrize("point", AT_WORK)
def test_an_executor_killed_at_work_loses_and_doubles_nothing(ground: BankGround, point: str) -> None:
    ground.append(PAYMENTS, 60, point)
    doomed = ground.start("executor", "--member", "only", fault=f"{point}@3")
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with ground.executing():
        assert audit(ground.setting) == []


@pytest.mark.parametrize("point", WHEN_LEAVING)
def test_an_executor_killed_while_it_leaves_loses_and_doubles_nothing(ground: BankGround, point: str) -> None:
    ground.append(PAYMENTS, 60, point)
    doomed = ground.start("executor", "--member", "only", "--snapshots", fault=point)
    wait_for(lambda: [*ground.setting.state.glob("bank-*.sqlite")], "the executor to be at work")
    doomed.signal(signal.SIGTERM)
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with ground.executing():
        assert audit(ground.setting) == []


@pytest.mark.parametrize("point", OF_CALLERS)
def test_a_caller_killed_around_its_append_asks_again_and_pays_once(ground: BankGround, point: str) -> None:
    ground.append(PAYMENTS, 0, 0)
    payment = ("pay", "account-1", "account-2", "700", "--id", "once")
    doomed = ground.start(*payment, fault=point)
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with ground.executing():
        again = ground.start(*payment)
        assert again.wait() == 0, again.end()
        assert audit(ground.setting) == []
