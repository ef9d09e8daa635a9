"""The bank's views: balances, statements, search and facts for the warehouse, from one log.

Each payment is **one** event here, `payment.outgoing`, which names both accounts, the amount and the
fee: all sides are made from it, so no snapshot ever shows one half of a payment. (`payment.incoming`
is how the bank's executors tell one another; a view does not need it.)

An account's row stands once for each partition that has moved its money; readers add them up.
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


class Line(NamedTuple):
    account: str
    entry: int  # offset of the event, and three bits more
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


class Fact(NamedTuple):
    entry: int
    request: str
    account: str
    counterparty: str
    kind: str
    amount: int
    time: int


BALANCES: Final = Table("balances", Balance)
LINES: Final = Table("lines", Line, key=2, append_only=True)
PAYMENTS: Final = Table("payments", Payment)
FACTS: Final = Table("facts", Fact, append_only=True)


def sides(event: Event) -> list[Side]:
    """All sides of what happened; they sum to the money that came from outside."""
    payload, account = event.payload, event.key
    if event.type == "account.opened":
        return [(account, "opened", "", payload["deposit"])]
    amount = payload["amount"]
    if event.type == "payment.returned":
        other = payload["from"]
        return [(account, "returned", other, amount), (other, "returned", account, -amount)]
    to, fee = payload["to"], payload["fee"]
    found = [(account, "outgoing", to, -amount), (to, "incoming", account, amount)]
    if fee:
        found += [(account, "fee", FEES_ACCOUNT, -fee), (FEES_ACCOUNT, "fee", account, fee)]
    return found


def _balances(state: State, event: Event) -> list[Effect]:
    return _moved(state, sides(event))


def _moved(state: State, found: list[Side]) -> list[Effect]:
    moved: dict[str, int] = {}
    for account, _, _, amount in found:
        moved[account] = moved.get(account, 0) + amount
    effects: list[Effect] = []
    for account, cents in moved.items():
        before = state.get(BALANCES, account)
        effects.append(Put(BALANCES, Balance(account, before[1] + cents if before else cents)))
    return effects


def _statements(state: State, event: Event) -> list[Effect]:
    found, request, time = sides(event), event.request, event.time
    effects = _moved(state, found)
    for entry, (account, kind, counterparty, amount) in enumerate(found, event.offset << _ENTRY_BITS):
        effects.append(Put(LINES, Line(account, entry, request, kind, counterparty, amount, time)))
    return effects


def _search(state: State, event: Event) -> Iterator[Effect]:
    if event.type == "payment.outgoing":
        payload = event.payload
        paid = Payment(event.request, event.key, payload["to"], payload["amount"], payload["fee"], event.time)
        yield Put(PAYMENTS, paid)


def _facts(state: State, event: Event) -> Iterator[Effect]:
    entry = event.offset << _ENTRY_BITS
    for number, (account, kind, counterparty, amount) in enumerate(sides(event)):
        yield Put(FACTS, Fact(entry | number, event.request, account, counterparty, kind, amount, event.time))


STATEMENTS: Final = Projection("statements", _statements, (BALANCES, LINES), HANDLES)
SEARCH: Final = Projection(
    "search",
    _search,
    (PAYMENTS,),
    {"payment.outgoing": 1},
    text={"payments": ("request", "sender", "receiver")},
)
CACHED_BALANCES: Final = Projection("cached_balances", _balances, (BALANCES,), HANDLES)
WAREHOUSE: Final = Projection("warehouse", _facts, (FACTS,), HANDLES)
