"""The bank's decisions, payment by payment, and its books afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.bank import ACCOUNTS, AMOUNT_MAX, HOLDS, STATEMENT, Bank
from examples.payments.spending import DAY_MS, SPENT, Spending
from penstock.olep.event import REJECTED
from penstock.olep.fold import REJECTED_EVENTS
from tests.olep.test_money import books, wrong
from tests.olep.world import CODEC, World

if TYPE_CHECKING:
    from collections.abc import Mapping


def bank(fee: int = 0, overdrawn_fee: int = 0, **accounts: tuple[int, int, int | None]) -> World:
    """Accounts by name: (deposit, overdraft, ceiling)."""
    world = World(Bank(fee, overdrawn_fee).application())
    for name, (deposit, overdraft, ceiling) in accounts.items():
        terms = {"deposit": deposit, "overdraft": overdraft, "ceiling": ceiling}
        world.ask(f"open-{name}", "account.open", name, terms)
    world.settle()
    return world


def pay(
    world: World, amount: object, kind: str = "payment.requested", to: object = "bob", key: str = "ann"
) -> str:
    """Lets `ann` pay; the type of the final answer."""
    world.ask("p", kind, key, {"to": to, "amount": amount})
    world.settle()
    return answer(world)[0]


def answer(world: World, request_id: str = "p") -> tuple[str, Mapping[str, Any]]:
    finals = [
        event
        for event in world.events()
        if event.request == request_id and event.type in {"payment.outgoing", "payment.declined", REJECTED}
    ]
    assert len(finals) == 1, finals
    return finals[0].type, finals[0].payload


def balances(world: World) -> dict[str, int]:
    return {account.account: account.balance for account in books(world).accounts}


@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
def test_a_payment_moves_money_and_both_statements_say_so(kind: str) -> None:
    world = bank(ann=(100, 0, None), bob=(5, 0, None))
    assert pay(world, 30, kind) == "payment.outgoing"
    assert balances(world) == {"ann": 70, "bob": 35}
    lines = {(line.account, line.kind, line.amount, line.balance) for line in books(world).lines}
    assert {("ann", "outgoing", -30, 70), ("bob", "incoming", 30, 35)} <= lines
    assert wrong(world) == []


@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
@pytest.mark.parametrize(("amount", "state"), [(130, "payment.outgoing"), (131, "payment.declined")])
def test_an_account_may_be_overdrawn_to_its_limit_and_no_further(kind: str, amount: int, state: str) -> None:
    world = bank(ann=(100, 30, None), bob=(0, 0, None))
    assert pay(world, amount, kind) == state
    assert wrong(world) == []


@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
def test_fees_go_to_the_fees_account_and_count_against_the_limit(kind: str) -> None:
    world = bank(fee=2, overdrawn_fee=25, ann=(100, 30, None), bob=(0, 0, None))
    assert pay(world, 101, kind) == "payment.outgoing"
    assert balances(world) == {"ann": -28, "bob": 101, "fees": 27}
    assert wrong(world) == []


def test_a_fee_that_would_break_the_limit_declines_the_payment() -> None:
    world = bank(overdrawn_fee=25, ann=(100, 30, None), bob=(0, 0, None))
    assert pay(world, 110) == "payment.declined"


@pytest.mark.parametrize(("amount", "state"), [(40, "payment.outgoing"), (41, "payment.declined")])
def test_a_destination_agrees_up_to_its_ceiling(amount: int, state: str) -> None:
    world = bank(fee=1, ann=(100, 0, None), bob=(20, 0, 60))
    assert pay(world, amount, "payment.offered") == state
    assert wrong(world) == []


def test_a_refused_offer_gives_back_amount_and_fee() -> None:
    world = bank(fee=3, ann=(100, 0, None), bob=(20, 0, 20))
    assert pay(world, 40, "payment.offered") == "payment.declined"
    assert (balances(world), books(world).holds) == ({"ann": 100, "bob": 20}, [])


def test_money_held_for_an_offer_cannot_be_spent_twice() -> None:
    world = bank(ann=(100, 0, None), bob=(0, 0, None))
    world.ask("held", "payment.offered", "ann", {"to": "bob", "amount": 80})
    assert pay(world, 30) == "payment.declined"


def test_money_for_an_account_that_nobody_opened_comes_back() -> None:
    world = bank(ann=(100, 0, None))
    assert pay(world, 30) == "payment.outgoing"
    assert balances(world) == {"ann": 100}
    assert wrong(world) == []


@pytest.mark.parametrize(
    ("amount", "to", "reason"),
    [
        (-5, "bob", "the amount must be"),
        (0, "bob", "the amount must be"),
        (AMOUNT_MAX + 1, "bob", "the amount must be"),
        (10**40, "bob", "the amount must be"),
        (1.5, "bob", "`amount` is 1.5"),
        (True, "bob", "`amount` is True"),
        ("5", "bob", "`amount` is '5'"),
        (5, "ann", "the same account"),
        (5, "", "name"),
        (5, "x" * 65, "name"),
        (5, "a\x00b", "name"),
        (5, 7, "`to` is 7"),
    ],
)
@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
def test_a_payment_that_makes_no_sense_is_declined_with_its_reason(
    kind: str, amount: object, to: object, reason: str
) -> None:
    world = bank(ann=(100, 0, None), bob=(0, 0, None))
    assert pay(world, amount, kind, to) == "payment.declined"
    assert reason in answer(world)[1]["reason"]


def test_an_unknown_account_cannot_pay() -> None:
    world = bank(bob=(0, 0, None))
    assert pay(world, 5) == "payment.declined"
    assert answer(world)[1]["reason"] == "unknown account"


@pytest.mark.parametrize(
    "terms",
    [
        {"deposit": -1, "overdraft": 0, "ceiling": None},
        {"deposit": 0, "overdraft": -1, "ceiling": None},
        {"deposit": 0, "overdraft": 0, "ceiling": -1},
        {"deposit": 0, "overdraft": 0},
        {"deposit": 1.5, "overdraft": 0, "ceiling": None},
        {"deposit": 0, "overdraft": 0, "ceiling": None, "extra": 1},
    ],
    ids=str,
)
def test_an_account_on_impossible_terms_is_refused(terms: dict[str, object]) -> None:
    world = bank()
    world.ask("o", "account.open", "ann", terms)
    world.settle()
    assert ([event.type for event in world.events()][-1], balances(world)) == ("account.refused", {})


def test_an_account_is_opened_once() -> None:
    world = bank(ann=(100, 0, None))
    world.ask("again", "account.open", "ann", {"deposit": 7, "overdraft": 0, "ceiling": None})
    world.settle()
    assert balances(world) == {"ann": 100}


@pytest.mark.parametrize("kind", ["payment.incoming", "payment.agreed", "fee.incoming"])
def test_an_event_that_only_decisions_emit_is_rejected_from_outside(kind: str) -> None:
    world = bank(ann=(100, 0, None))
    world.ask("forged", kind, "ann", {"from": "bob", "amount": 1000})
    world.settle()
    listed = [row for lane in world.lanes for row in lane.store.scan(REJECTED_EVENTS)]
    assert (balances(world), len(listed)) == ({"ann": 100}, 1)


def test_an_account_that_spends_beyond_the_limit_is_noticed_once_a_day() -> None:
    world = bank(ann=(1000, 0, None), bob=(0, 0, None))
    for number, (amount, day) in enumerate([(60, 1), (50, 1), (70, 1), (99, 2), (1, 2)]):
        world.ask(f"s{number}", "payment.requested", "ann", {"to": "bob", "amount": amount}, day * DAY_MS)
    world.settle()
    notifier = World(Spending(100).application())
    notifier.records = world.records
    notifier.settle()
    notices = [CODEC.decode(out.value, out.key.decode(), 0, 0) for out in notifier.others]
    assert [(n.key, n.payload) for n in notices] == [
        ("ann", {"day": 1, "cents": 110}),
        ("ann", {"day": 2, "cents": 100}),
    ]
    assert sorted(row for lane in notifier.lanes for row in lane.store.scan(SPENT)) == [
        ("ann", 1, 180),
        ("ann", 2, 100),
    ]


def test_the_tables_of_the_bank_are_plain_sql() -> None:
    assert [table.name for table in (ACCOUNTS, HOLDS, STATEMENT)] == ["accounts", "holds", "statement"]
