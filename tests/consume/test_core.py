"""The pure core under arbitrary interleavings, for each order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.consume.schedule import NullKeys, Order
from tests.consume.machine import ConsumeMachine


class UnorderedMachine(ConsumeMachine):
    order = Order.UNORDERED


class PartitionMachine(ConsumeMachine):
    order = Order.PARTITION


class FreeNullsMachine(ConsumeMachine):
    null_keys = NullKeys.UNORDERED


QUICK = settings(max_examples=50, stateful_step_count=50)
THOROUGH = settings(max_examples=3_000, stateful_step_count=80)

TestKeyOrder = ConsumeMachine.TestCase
TestKeyOrder.settings = QUICK
TestFreeNulls = FreeNullsMachine.TestCase
TestFreeNulls.settings = QUICK
TestPartitionOrder = PartitionMachine.TestCase
TestPartitionOrder.settings = QUICK
TestUnordered = UnorderedMachine.TestCase
TestUnordered.settings = QUICK


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("machine", [ConsumeMachine, UnorderedMachine, PartitionMachine, FreeNullsMachine])
def test_thousands_of_interleavings(machine: type[ConsumeMachine]) -> None:
    run_state_machine_as_test(machine, settings=THOROUGH)
