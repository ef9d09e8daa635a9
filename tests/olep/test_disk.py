"""A disk that is full or broken under an executor: it says so, nothing is half-applied, it goes on later."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from examples.payments.audit import audit
from examples.payments.load import Load
from penstock.olep.store.sqlite import position_of
from tests.ground.disk import FaultyDisk, without_faulty_disk
from tests.olep.ground import wait_for

if TYPE_CHECKING:
    from tests.olep.ground import BankGround

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(without_faulty_disk() is not None, reason=without_faulty_disk() or ""),
]

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)


def test_an_executor_whose_disk_is_full_stops_by_name_and_goes_on_when_there_is_room(
    ground: BankGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.setting.state.mkdir(parents=True)
    with FaultyDisk(ground.setting.state) as disk:
        for name, value in disk.environment().items():
            monkeypatch.setenv(name, value)
        ground.append(PAYMENTS, 30, 1)
        executor = ground.start("executor", "--member", "only")
        wait_for(lambda: _applied(ground), "the executor to be at work")
        disk.full()
        ground.append(PAYMENTS, 100, 2)
        assert executor.wait() == 5, executor.end()
        assert "PEN-7013" in executor.end()
        disk.heal()
        for name in disk.environment():
            os.environ.pop(name)
    with ground.executing():
        assert audit(ground.setting) == []


def _applied(ground: BankGround) -> bool:
    positions = [position_of(path) for path in ground.setting.state.glob("bank-*.sqlite")]
    return any(position is not None and position[1] > 0 for position in positions)
