"""The bank's views of one log: balances, statements and search.

All sides of a payment are made from **one** event, `payment.outgoing`, which names both accounts, the
amount and the fee. So no snapshot shows one half of a payment. (`payment.incoming` is a message between
the bank's executors; views ignore it.)

An account has one row for each partition that has moved its money; readers add them up. Its lines are
chained: the row has the newest one, and each line the one before it. So lines are stored in the order of the
log, where writing them is cheap, and a statement is read by following the chain, without an index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from examples.payments.bank import FEES_ACCOUNT
from penstock.olep.table import Effect, Put, Table
from penstock.olep.view.projection import Projection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.application import State
    from penstock.olep.event import Event

HANDLES: Final = {"account.opened": 1, "payment.outgoing": 1, "payment.returned": 1}
_ENTRY_BITS: Final = 3  # sides of one event


Side = tuple[str, str, str, int]  # account, kind, counterparty, cents (negative when they leave)


class Balance(NamedTuple):
    account: str
    cents: int


class Account(NamedTuple):
    account: str
    cents: int
    last: int  # `entry` of its newest line


class Line(NamedTuple):
    entry: int  # offset of the event, shifted by _ENTRY_BITS, plus the side's number, from 1
    account: str
    previous: int  # `entry` of the account's previous line in this partition; 0 for the first
    request: str
    kind: str
    counterparty: str
    amount: int
    time: int


class Payment(NamedTuple):
    request: str
    sender: str
    receiver: str
    amount: int
    fee: int
    time: int


BALANCES: Final = Table("balances", Balance)
ACCOUNTS: Final = Table("accounts", Account)
LINES: Final = Table("lines", Line, append_only=True)
PAYMENTS: Final = Table("payments", Payment)


def sides(event: Event) -> list[Side]:
    """All sides of an event; they add up to the money that came from outside."""
    payload, account = event.payload, event.key
    if event.type == "account.opened":
        return [(account, "opened", "", payload["deposit"])]
    amount = payload["amount"]
    if event.type == "payment.returned":
        other = payload["from"]
        return [(account, "returned", other, amount), (other, "returned", account, -amount)]
    to, fee = payload["to"], payload["fee"]
    moves = [(account, "outgoing", to, -amount), (to, "incoming", account, amount)]
    if fee:
        moves += [(account, "fee", FEES_ACCOUNT, -fee), (FEES_ACCOUNT, "fee", account, fee)]
    return moves


def _balances(state: State, event: Event) -> list[Effect]:
    moved: dict[str, int] = {}
    for account, _, _, amount in sides(event):
        moved[account] = moved.get(account, 0) + amount
    effects: list[Effect] = []
    for account, cents in moved.items():
        before = state.get(BALANCES, account)
        effects.append(Put(BALANCES, Balance(account, before[1] + cents if before else cents)))
    return effects


def _statements(state: State, event: Event) -> list[Effect]:
    request, time, first = event.request, event.time, (event.offset << _ENTRY_BITS) + 1
    effects: list[Effect] = []
    moved: dict[str, tuple[int, int]] = {}
    for entry, (account, kind, counterparty, amount) in enumerate(sides(event), first):
        if account in moved:
            cents, previous = moved[account]
        elif (row := state.get(ACCOUNTS, account)) is not None:
            _, cents, previous = row
        else:
            cents = previous = 0
        moved[account] = (cents + amount, entry)
        line = Line(entry, account, previous, request, kind, counterparty, amount, time)
        effects.append(Put(LINES, line))
    effects += [Put(ACCOUNTS, Account(name, cents, last)) for name, (cents, last) in moved.items()]
    return effects


def _search(state: State, event: Event) -> Iterator[Effect]:
    if event.type == "payment.outgoing":
        payload = event.payload
        paid = Payment(event.request, event.key, payload["to"], payload["amount"], payload["fee"], event.time)
        yield Put(PAYMENTS, paid)


STATEMENTS: Final = Projection("statements", _statements, (ACCOUNTS, LINES), HANDLES)
SEARCH: Final = Projection(
    "search",
    _search,
    (PAYMENTS,),
    {"payment.outgoing": 1},
    text={"payments": ("request", "sender", "receiver")},
)
CACHED_BALANCES: Final = Projection("cached_balances", _balances, (BALANCES,), HANDLES)
