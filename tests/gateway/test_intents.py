"""What clients intend to delete becomes events for the durability audit."""

from __future__ import annotations

from penstock.gateway.config import Principal
from penstock.gateway.limits.intents import WAITING_MAX, Intents
from penstock.gateway.limits.metering import Source
from penstock.model.durability import Deleted, Intent
from penstock.model.ids import LogicalClusterId, PhysicalClusterId, ServiceAccountId

PRINCIPAL = Principal(LogicalClusterId("lkc-00000a"), "key", b"", ServiceAccountId("sa-000001"), 1, "")
SOURCE = Source(PhysicalClusterId("pkc-000000"), "gw-1", "i1")


def test_deletions_and_changes_carry_the_account_and_are_published_once() -> None:
    intents = Intents()
    intents.records_deleted(PRINCIPAL, "lkc-00000a_t", 3, 50)
    intents.intended(PRINCIPAL, "config", "lkc-00000a_t")

    first, second = intents.take(SOURCE, 100)

    assert first.subject == "named/lkc-00000a_t/3"
    assert first.read_facts() == Deleted(50, "sa-000001", "lkc-00000a")
    assert second.read_facts() == Intent("config", "sa-000001")
    assert (first.sequence, second.sequence, second.time_ms) == (1, 2, 100)
    assert intents.take(SOURCE, 90) == []


def test_memory_is_bounded_and_what_is_dropped_is_counted() -> None:
    intents = Intents()
    for number in range(WAITING_MAX + 3):
        intents.records_deleted(PRINCIPAL, "t", 0, number)

    assert intents.lost == 3
    assert len(intents.take(SOURCE, 1)) == WAITING_MAX
