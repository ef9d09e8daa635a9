"""A full or failing disk: the executor reports it, applies nothing by half, and continues later."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from examples.payments.bank_check import check_bank
from examples.payments.load import Load
from penstock.olep.store.sqlite import position_of
from tests.harness.disk import FaultyDisk, without_faulty_disk
from tests.olep.bank_harness import wait_for

if TYPE_CHECKING:
    from tests.olep.bank_harness import BankHarness

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(without_faulty_disk() is not None, reason=without_faulty_disk() or ""),
]

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)


def test_an_executor_stops_when_its_disk_is_full_and_continues_when_there_is_space(
    harness: BankHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.settings.state.mkdir(parents=True)
    with FaultyDisk(harness.settings.state) as disk:
        for name, value in disk.environment().items():
            monkeypatch.setenv(name, value)
        harness.append(PAYMENTS, 30, 1)
        executor = harness.start("executor", "--member", "only")
        wait_for(lambda: _applied(harness), "the executor to be running")
        disk.full()
        harness.append(PAYMENTS, 100, 2)
        assert executor.wait() == 5, executor.end()
        assert "PEN-7013" in executor.end()
        disk.heal()
        for name in disk.environment():
            os.environ.pop(name)
    with harness.executing():
        assert check_bank(harness.settings) == []


def _applied(harness: BankHarness) -> bool:
    positions = [position_of(path) for path in harness.settings.state.glob("bank-*.sqlite")]
    return any(position is not None and position[1] > 0 for position in positions)
