"""kill -9 at every fault point: no money is lost or doubled."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from examples.payments.bank_check import check_bank
from examples.payments.load import Load
from penstock.model import fault_points
from penstock.olep.executor import REVOKED
from penstock.olep.log import APPEND_AFTER, APPEND_BEFORE
from penstock.olep.state_snapshot import SNAPSHOT_HALF
from tests.olep.bank_harness import wait_for

if TYPE_CHECKING:
    from tests.olep.bank_harness import BankHarness

pytestmark = pytest.mark.kafka

CALLER_POINTS = (APPEND_BEFORE, APPEND_AFTER)
STOP_POINTS = (REVOKED, SNAPSHOT_HALF)
EXECUTOR_POINTS = tuple(
    point for point in fault_points.points("olep") if point not in CALLER_POINTS + STOP_POINTS
)
PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)


@pytest.mark.parametrize("point", EXECUTOR_POINTS)
def test_an_executor_killed_at_any_fault_point_loses_and_doubles_nothing(
    harness: BankHarness, point: str
) -> None:
    harness.append(PAYMENTS, 60, point)
    doomed = harness.start("executor", "--member", "only", fault=f"{point}@3")
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with harness.executing():
        assert check_bank(harness.settings) == []


@pytest.mark.parametrize("point", STOP_POINTS)
def test_an_executor_killed_while_it_stops_loses_and_doubles_nothing(
    harness: BankHarness, point: str
) -> None:
    harness.append(PAYMENTS, 60, point)
    doomed = harness.start("executor", "--member", "only", "--snapshots", fault=point)
    wait_for(lambda: [*harness.settings.state.glob("bank-*.sqlite")], "the executor to be running")
    doomed.signal(signal.SIGTERM)
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with harness.executing():
        assert check_bank(harness.settings) == []


@pytest.mark.parametrize("point", CALLER_POINTS)
def test_a_caller_killed_around_its_append_repeats_the_request_and_is_charged_once(
    harness: BankHarness, point: str
) -> None:
    harness.append(PAYMENTS, 0, 0)
    payment = ("pay", "account-1", "account-2", "700", "--id", "once")
    doomed = harness.start(*payment, fault=point)
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with harness.executing():
        again = harness.start(*payment)
        assert again.wait() == 0, again.end()
        assert check_bank(harness.settings) == []
