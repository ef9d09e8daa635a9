"""The bank's decisions, payment by payment, and the state afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.bank import ACCOUNTS, AMOUNT_MAX, HOLDS, STATEMENT, Bank
from examples.payments.spending import DAY_MS, SPENT, Spending
from penstock.olep.event import REJECTED
from penstock.olep.fold import REJECTED_EVENTS
from tests.olep.memory_cluster import CODEC, MemoryCluster
from tests.olep.test_money_conservation import books, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping


def bank(fee: int = 0, overdrawn_fee: int = 0, **accounts: tuple[int, int, int | None]) -> MemoryCluster:
    """Accounts by name: (deposit, overdraft, ceiling)."""
    cluster = MemoryCluster(Bank(fee, overdrawn_fee).application())
    for name, (deposit, overdraft, ceiling) in accounts.items():
        terms = {"deposit": deposit, "overdraft": overdraft, "ceiling": ceiling}
        cluster.request(f"open-{name}", "account.open", name, terms)
    cluster.settle()
    return cluster


def pay(
    cluster: MemoryCluster,
    amount: object,
    kind: str = "payment.requested",
    to: object = "bob",
    key: str = "ann",
) -> str:
    """A payment by `ann`; the type of its outcome."""
    cluster.request("p", kind, key, {"to": to, "amount": amount})
    cluster.settle()
    return outcome(cluster)[0]


def outcome(cluster: MemoryCluster, request_id: str = "p") -> tuple[str, Mapping[str, Any]]:
    finals = [
        event
        for event in cluster.events()
        if event.request == request_id and event.type in {"payment.outgoing", "payment.declined", REJECTED}
    ]
    assert len(finals) == 1, finals
    return finals[0].type, finals[0].payload


def balances(cluster: MemoryCluster) -> dict[str, int]:
    return {account.account: account.balance for account in books(cluster).accounts}


@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
def test_a_payment_moves_money_and_is_on_both_statements(kind: str) -> None:
    cluster = bank(ann=(100, 0, None), bob=(5, 0, None))
    assert pay(cluster, 30, kind) == "payment.outgoing"
    assert balances(cluster) == {"ann": 70, "bob": 35}
    lines = {(line.account, line.kind, line.amount, line.balance) for line in books(cluster).lines}
    assert {("ann", "outgoing", -30, 70), ("bob", "incoming", 30, 35)} <= lines
    assert wrong(cluster) == []


@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
@pytest.mark.parametrize(("amount", "state"), [(130, "payment.outgoing"), (131, "payment.declined")])
def test_an_account_may_be_overdrawn_to_its_limit_and_no_further(kind: str, amount: int, state: str) -> None:
    cluster = bank(ann=(100, 30, None), bob=(0, 0, None))
    assert pay(cluster, amount, kind) == state
    assert wrong(cluster) == []


@pytest.mark.parametrize("kind", ["payment.requested", "payment.offered"])
def test_fees_go_to_the_fees_account_and_count_against_the_limit(kind: str) -> None:
    cluster = bank(fee=2, overdrawn_fee=25, ann=(100, 30, None), bob=(0, 0, None))
    assert pay(cluster, 101, kind) == "payment.outgoing"
    assert balances(cluster) == {"ann": -28, "bob": 101, "fees": 27}
    assert wrong(cluster) == []


def test_a_fee_that_would_break_the_limit_declines_the_payment() -> None:
    cluster = bank(overdrawn_fee=25, ann=(100, 30, None), bob=(0, 0, None))
    assert pay(cluster, 110) == "payment.declined"


@pytest.mark.parametrize(("amount", "state"), [(40, "payment.outgoing"), (41, "payment.declined")])
def test_a_destination_agrees_up_to_its_ceiling(amount: int, state: str) -> None:
    cluster = bank(fee=1, ann=(100, 0, None), bob=(20, 0, 60))
    assert pay(cluster, amount, "payment.offered") == state
    assert wrong(cluster) == []


def test_a_refused_offer_gives_back_amount_and_fee() -> None:
    cluster = bank(fee=3, ann=(100, 0, None), bob=(20, 0, 20))
    assert pay(cluster, 40, "payment.offered") == "payment.declined"
    assert (balances(cluster), books(cluster).holds) == ({"ann": 100, "bob": 20}, [])


def test_money_held_for_an_offer_cannot_be_spent_twice() -> None:
    cluster = bank(ann=(100, 0, None), bob=(0, 0, None))
    cluster.request("held", "payment.offered", "ann", {"to": "bob", "amount": 80})
    assert pay(cluster, 30) == "payment.declined"


def test_money_for_an_unopened_account_is_returned() -> None:
    cluster = bank(ann=(100, 0, None))
    assert pay(cluster, 30) == "payment.outgoing"
    assert balances(cluster) == {"ann": 100}
    assert wrong(cluster) == []


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
def test_an_invalid_payment_is_declined_with_the_reason(
    kind: str, amount: object, to: object, reason: str
) -> None:
    cluster = bank(ann=(100, 0, None), bob=(0, 0, None))
    assert pay(cluster, amount, kind, to) == "payment.declined"
    assert reason in outcome(cluster)[1]["reason"]


def test_an_unknown_account_cannot_pay() -> None:
    cluster = bank(bob=(0, 0, None))
    assert pay(cluster, 5) == "payment.declined"
    assert outcome(cluster)[1]["reason"] == "unknown account"


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
def test_an_account_with_invalid_terms_is_refused(terms: dict[str, object]) -> None:
    cluster = bank()
    cluster.request("o", "account.open", "ann", terms)
    cluster.settle()
    assert ([event.type for event in cluster.events()][-1], balances(cluster)) == ("account.refused", {})


def test_an_account_is_opened_once() -> None:
    cluster = bank(ann=(100, 0, None))
    cluster.request("again", "account.open", "ann", {"deposit": 7, "overdraft": 0, "ceiling": None})
    cluster.settle()
    assert balances(cluster) == {"ann": 100}


@pytest.mark.parametrize("kind", ["payment.incoming", "payment.agreed", "fee.incoming"])
def test_an_internal_event_from_a_client_is_rejected(kind: str) -> None:
    cluster = bank(ann=(100, 0, None))
    cluster.request("forged", kind, "ann", {"from": "bob", "amount": 1000})
    cluster.settle()
    listed = [row for task in cluster.tasks for row in task.store.scan(REJECTED_EVENTS)]
    assert (balances(cluster), len(listed)) == ({"ann": 100}, 1)


def test_an_account_that_spends_beyond_the_limit_is_noticed_once_a_day() -> None:
    cluster = bank(ann=(1000, 0, None), bob=(0, 0, None))
    for number, (amount, day) in enumerate([(60, 1), (50, 1), (70, 1), (99, 2), (1, 2)]):
        cluster.request(
            f"s{number}", "payment.requested", "ann", {"to": "bob", "amount": amount}, day * DAY_MS
        )
    cluster.settle()
    notifier = MemoryCluster(Spending(100).application())
    notifier.records = cluster.records
    notifier.settle()
    notices = [CODEC.decode(out.value, out.key.decode(), 0, 0) for out in notifier.others]
    assert [(n.key, n.payload) for n in notices] == [
        ("ann", {"day": 1, "cents": 110}),
        ("ann", {"day": 2, "cents": 100}),
    ]
    assert sorted(row for task in notifier.tasks for row in task.store.scan(SPENT)) == [
        ("ann", 1, 180),
        ("ann", 2, 100),
    ]


def test_the_tables_of_the_bank_are_plain_sql() -> None:
    assert [table.name for table in (ACCOUNTS, HOLDS, STATEMENT)] == ["accounts", "holds", "statement"]
