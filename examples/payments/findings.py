"""Compares the bank's log with its state: is every cent accounted for?

Reads all events and all rows. Shares no code with the executor except `decide`, which the replay runs
again. Each finding is one sentence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.payments.bank import ACCOUNTS, FINAL, HOLDS, STATEMENT, Account, Hold, Line
from penstock.olep.event import REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.olep.event import Event
    from penstock.olep.rows import Reader


@dataclass(slots=True)
class Ledger:
    """What the events add up to, in any order of partitions."""

    requested: set[str] = field(default_factory=set)
    final: dict[str, set[str]] = field(default_factory=dict)  # request → ids of its final events
    deposits: int = 0
    paid: int = 0
    declined: int = 0
    rejected: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    def add(self, event: Event) -> None:
        if event.type in {"payment.requested", "payment.offered"}:
            self.requested.add(event.id)
        if event.id in self._seen:
            return  # the same event, sent again
        self._seen.add(event.id)
        if event.type in FINAL:
            self.final.setdefault(event.request, set()).add(event.id)
            self.paid += event.type == "payment.outgoing"
            self.declined += event.type == "payment.declined"
        elif event.type == "account.opened":
            self.deposits += event.payload["deposit"]
        elif event.type == REJECTED:
            self.rejected.add(event.request)


@dataclass(slots=True)
class Books:
    """The rows of all partitions."""

    accounts: list[Account] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def add(self, reader: Reader) -> None:
        self.accounts += [Account(*row) for row in reader.scan(ACCOUNTS)]
        self.holds += [Hold(*row) for row in reader.scan(HOLDS)]
        self.lines += [Line(*row) for row in reader.scan(STATEMENT)]

    @property
    def total(self) -> int:
        return sum(account.balance for account in self.accounts)


def findings(events: Iterable[Event], books: Books) -> list[str]:
    """What is wrong once nothing is in progress; empty when all is well."""
    ledger = Ledger()
    for event in events:
        ledger.add(event)
    return [*_conserved(ledger, books), *_completed(ledger), *_within_limits(books), *_statements(books)]


def _conserved(ledger: Ledger, books: Books) -> Iterable[str]:
    if books.total != ledger.deposits:
        yield f"the accounts hold {books.total} cents, {ledger.deposits} were paid in"
    for hold in books.holds:
        yield f"the hold of request {hold.request} was never settled"


def _completed(ledger: Ledger) -> Iterable[str]:
    for request in sorted(ledger.requested - ledger.final.keys() - ledger.rejected):
        yield f"request {request} reached no final state"
    for request, finals in sorted(ledger.final.items()):
        if len(finals) > 1:
            yield f"request {request} reached {len(finals)} final states"


def _within_limits(books: Books) -> Iterable[str]:
    for account in books.accounts:
        if account.balance < -account.overdraft:
            yield f"{account.account} is overdrawn to {account.balance}, its limit is {-account.overdraft}"
    for name, count in Counter(account.account for account in books.accounts).items():
        if count > 1:
            yield f"{name} exists in {count} partitions"


def _statements(books: Books) -> Iterable[str]:
    """Checks that the lines of each account add up to its balance, are unique and form one chain."""
    lines: dict[str, list[Line]] = {}
    for line in sorted(books.lines):
        lines.setdefault(line.account, []).append(line)
    held = Counter[str]()
    for hold in books.holds:
        held[hold.account] += hold.amount + hold.fee
    for account in books.accounts:
        chain = [0, *(line.entry for line in lines.get(account.account, ()))]
        if [line.previous for line in lines.get(account.account, ())] != chain[:-1] or account.last != chain[
            -1
        ]:
            yield f"the statement of {account.account} is not one chain"
        total = sum(line.amount for line in lines.get(account.account, ()))
        if total - held[account.account] != account.balance:
            yield f"the statement of {account.account} sums to {total}, its balance is {account.balance}"
        twice = Counter(
            (line.request, line.kind, line.counterparty) for line in lines.get(account.account, ())
        )
        for (request, kind, _), count in twice.items():
            if count > 1:
                yield f"{account.account}'s statement lists the {kind} of request {request} {count} times"
