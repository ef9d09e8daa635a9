"""The test kit for applications, on the bank and on defective applications."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from examples.payments.bank import ACCOUNTS, Bank
from penstock.model.errors.olep import DecideImpure
from penstock.olep import Application, Decision, Emit, Event, Put, Scenario, State, Table, Upcasting
from penstock.olep.application import Reason
from penstock.olep.event import REPEATED

TERMS = {"deposit": 100, "overdraft": 0, "ceiling": None}


def opened(bank: Bank | None = None, **keys: object) -> Scenario:
    scenario = Scenario((bank or Bank()).application(), log="accounts")
    for account in ("ann", "bob"):
        scenario.when(account, "account.open", TERMS, request_id=f"open-{account}")
    return scenario


def test_a_request_is_followed_until_nothing_is_left_to_decide() -> None:
    scenario = opened(Bank(fee=1))
    scenario.when("ann", "payment.requested", {"to": "bob", "amount": 30})
    scenario.then(
        Emit("accounts", "ann", "payment.outgoing", {"to": "bob", "amount": 30, "fee": 1}),
        Emit("accounts", "bob", "payment.incoming", {"from": "ann", "amount": 30}),
        Emit("accounts", "ann", "fee.outgoing", {"amount": 1}),
        Emit("accounts", "fees", "fee.incoming", {"from": "ann", "amount": 1}),
    )
    assert [(row.account, row.balance) for row in scenario.rows(ACCOUNTS)] == [
        ("ann", 69),
        ("bob", 130),
        ("fees", 1),
    ]


def test_given_events_are_those_of_decisions() -> None:
    scenario = opened()
    scenario.given("bob", "payment.incoming", {"from": "cy", "amount": 5})
    scenario.when("bob", "payment.incoming", {"from": "cy", "amount": 5})
    bob = scenario.row(ACCOUNTS, "bob")
    assert bob is not None
    assert (bob.balance, [each.reason for each in scenario.rejected()]) == (105, [Reason.RAISED])


def test_a_repeated_request_changes_nothing() -> None:
    scenario = opened()
    for _ in range(2):
        scenario.when("ann", "payment.requested", {"to": "bob", "amount": 30}, request_id="p")
    scenario.then(Emit("accounts", "ann", REPEATED, {"offset": 4}))


def test_an_unexpected_event_fails_and_shows_both() -> None:
    scenario = opened()
    scenario.when("ann", "payment.requested", {"to": "bob", "amount": 300})
    with pytest.raises(AssertionError, match=r"insufficient funds.*expected \[\]"):
        scenario.then()


class Sum(NamedTuple):
    key: str
    value: int


SUMS = Table("sums", Sum)


def add(state: State, event: Event) -> Decision:
    before = state.get(SUMS, event.key)
    return (Put(SUMS, Sum(event.key, (before.value if before else 0) + event.payload["by"])),), ()


def test_an_impure_application_fails() -> None:
    calls = itertools.count()
    application = Application(
        "sums", lambda state, event: ((Put(SUMS, Sum("k", next(calls))),), ()), [SUMS], {"add": 1}
    )
    with pytest.raises(DecideImpure):
        Scenario(application, log="sums").when("k", "add", {})


def test_old_versions_of_an_event_are_decided_as_their_newest() -> None:
    codec = Upcasting(
        {
            ("add", 1): lambda payload: {"amount": payload["n"]},
            ("add", 2): lambda payload: {"by": payload["amount"]},
        }
    )
    scenario = Scenario(Application("sums", add, [SUMS], {"add": 3}), log="sums", codec=codec)
    scenario.given("k", "add", {"n": 1})
    scenario.given("k", "add", {"amount": 2}, version=2)
    scenario.when("k", "add", {"by": 4}, version=3)
    scenario.then()
    assert scenario.row(SUMS, "k") == Sum("k", 7)


def test_an_event_that_cannot_be_upcast_is_listed_with_its_bytes() -> None:
    codec = Upcasting({("add", 1): lambda payload: {"by": payload["missing"]}})
    scenario = Scenario(Application("sums", add, [SUMS], {"add": 2}), log="sums", codec=codec)
    scenario.when("k", "add", {"n": 1})
    ((_, reason, detail, _, value),) = scenario.rejected()
    assert (reason, b'"n":1' in value) == (Reason.UNREADABLE, True)
    assert "version 1 of add cannot be upcast: KeyError('missing')" in detail


def test_the_newest_version_of_an_application_decides() -> None:
    old = Application("sums", lambda state, event: ((), ()), [SUMS], {"add": 1})
    new = Application("sums", add, [SUMS], {"add": 1}, version=2, earlier=[old])
    scenario = Scenario(new, log="sums")
    scenario.when("k", "add", {"by": 2})
    scenario.then()
    assert scenario.row(SUMS, "k") == Sum("k", 2)
