"""A bank as one pure function.

Each account is a logical log. The events of an account are decided in order, by one thread.

    payment.requested ─ source: funds? ─┬─ payment.outgoing → source      (outcome: paid)
                                        ├─ payment.incoming → destination
                                        ├─ fee.outgoing → source, fee.incoming → fees account
                                        └─ or payment.declined → source   (outcome: declined)

    payment.offered ─ source: funds? ─ hold them ─ payment.proposed → destination
                      destination: room below its ceiling? ─ credit ─ payment.agreed → source
                                                           └ payment.refused → source
                      source: payment.outgoing, or release the hold and payment.declined

Money for an account that was never opened goes back as payment.returned. Every request gets exactly one
outcome, and amounts are whole cents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.olep.application import Application, Decision, Emit, State
from penstock.olep.encoding import payload_problem
from penstock.olep.table import Effect, Put, Remove, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.event import Event

ACCOUNTS_LOG: Final = "accounts"
FEES_ACCOUNT: Final = "fees"
AMOUNT_MAX: Final = 10**12  # cents, of a payment or an opening deposit; balances stay within 64 bits
ACCOUNT_LENGTH_MAX: Final = 64  # characters

REQUESTS: Final = frozenset({"account.open", "payment.requested", "payment.offered"})
FINAL: Final = frozenset({"payment.outgoing", "payment.declined"})
OUTCOME_TYPES: Final = FINAL | {"account.opened", "account.refused"}


class Account(NamedTuple):
    account: str
    balance: int  # cents
    overdraft: int  # how far below zero it may go
    ceiling: int | None  # an offered payment may not raise the balance above it
    last: int  # the newest line of its statement


class Hold(NamedTuple):
    """Money of an offered payment that the destination has neither accepted nor refused."""

    request: str
    account: str
    counterparty: str
    amount: int
    fee: int


class Line(NamedTuple):
    """A line of an account's statement. Each line points to the one before it, so rows are stored in the
    order they were written and a statement is read without an index."""

    entry: int  # offset of the event that caused it, shifted by _ENTRY_BITS, plus the line's number
    account: str
    previous: int  # `entry` of the account's previous line; 0 for the first
    request: str
    kind: str
    counterparty: str
    amount: int  # negative when it leaves
    balance: int  # after it
    time: int


# Without the __new__ of a NamedTuple, which is Python code: every payment creates four of these rows.
_line: Final = partial(tuple.__new__, Line)
_account: Final = partial(tuple.__new__, Account)

ACCOUNTS: Final = Table("accounts", Account)
HOLDS: Final = Table("holds", Hold)
STATEMENT: Final = Table("statement", Line, append_only=True)

_ENTRY_BITS: Final = 2  # at most three lines an event; 0 stays free for "none"
_NAME_RULE: Final = f"an account's name has 1 to {ACCOUNT_LENGTH_MAX} printable characters"
_OPEN_FIELDS: Final = {"deposit": int, "overdraft": int, "ceiling": object}
_PAY_FIELDS: Final = {"to": str, "amount": int}


@dataclass(frozen=True, slots=True)
class Bank:
    """The tariff, and the bank's `decide` under it."""

    fee: int = 0  # cents for each payment
    overdrawn_fee: int = 25  # extra cents when the account is below zero afterwards

    def application(self, name: str = "bank", *, earlier: Sequence[Bank] = ()) -> Application:
        """`earlier` are the tariffs before this one, oldest first: payments made under them keep their fees
        in every replay."""
        return Application(
            name=name,
            decide=self.decide,
            tables=(ACCOUNTS, HOLDS, STATEMENT),
            handles=dict.fromkeys(_HANDLERS, 1),
            ignores=OUTCOME_TYPES | {"fee.outgoing"},
            logs={ACCOUNTS_LOG},
            version=len(earlier) + 1,
            earlier=[bank.application(name, earlier=earlier[:number]) for number, bank in enumerate(earlier)],
        )

    def decide(self, state: State, event: Event) -> Decision:
        if event.cause is None and event.type not in REQUESTS:
            raise ValueError(f"{event.type} may only come from a decision, not from a client")
        return _HANDLERS[event.type](self, state, event)


def _open(bank: Bank, state: State, event: Event) -> Decision:
    payload = event.payload
    deposit, overdraft, ceiling = payload.get("deposit"), payload.get("overdraft"), payload.get("ceiling")
    wrong = None
    if payload.keys() != _OPEN_FIELDS.keys() or not (_cents(deposit) and _cents(overdraft)):
        wrong = "deposit and overdraft must be whole cents, none of them negative"
    elif not (ceiling is None or _cents(ceiling)):
        wrong = "the ceiling must be whole cents or null"
    elif not _name(event.key):
        wrong = _NAME_RULE
    elif state.get(ACCOUNTS, event.key) is not None:
        wrong = "the account exists"
    if wrong:
        return (), (_to(event.key, "account.refused", reason=wrong),)
    account = Account(event.key, deposit or 0, overdraft or 0, ceiling, 0)
    opened = _to(event.key, "account.opened", deposit=account.balance)
    return _booked(event, account, 0, ("opened", "", account.balance)), (opened,)


def _pay(bank: Bank, state: State, event: Event) -> Decision:
    """Stage one of both variants: is the payment well-formed and covered?"""
    key, payload = event.key, event.payload
    wrong = payload_problem(event, _PAY_FIELDS) or _payment_problem(key, payload["to"], payload["amount"])
    if wrong is not None:
        return _decline(event, wrong)
    source = state.get(ACCOUNTS, key)
    if source is None:
        return _decline(event, "unknown account")
    to, amount, balance = payload["to"], payload["amount"], source.balance
    fee = bank.fee + (bank.overdrawn_fee if balance < amount + bank.fee else 0)
    if key == FEES_ACCOUNT:
        fee = 0
    if balance - amount - fee < -source.overdraft:
        return _decline(event, "insufficient funds")
    if event.type == "payment.offered":
        return _hold(event, source, to, amount, fee)
    emits = [
        Emit(ACCOUNTS_LOG, key, "payment.outgoing", {"to": to, "amount": amount, "fee": fee}),
        Emit(ACCOUNTS_LOG, to, "payment.incoming", {"from": key, "amount": amount}),
    ]
    if not fee:
        return _booked(event, source, balance, ("outgoing", to, -amount)), emits
    emits += _fee(key, fee)
    return _booked(event, source, balance, ("outgoing", to, -amount), ("fee", FEES_ACCOUNT, -fee)), emits


def _payment_problem(source: str, to: str, amount: int) -> str | None:
    if not 0 < amount <= AMOUNT_MAX:
        return f"the amount must be 1 to {AMOUNT_MAX} cents"
    if not _name(to):
        return _NAME_RULE
    return "source and destination are the same account" if to == source else None


def _hold(event: Event, source: Account, to: str, amount: int, fee: int) -> Decision:
    held = source._replace(balance=source.balance - amount - fee)
    hold = Hold(event.request, source.account, to, amount, fee)
    proposal = Emit(ACCOUNTS_LOG, to, "payment.proposed", {"from": source.account, "amount": amount})
    return (Put(ACCOUNTS, held), Put(HOLDS, hold)), (proposal,)


def _propose(bank: Bank, state: State, event: Event) -> Decision:
    """Stage two: does the destination agree?"""
    account, amount, source = state.get(ACCOUNTS, event.key), event.payload["amount"], event.payload["from"]
    if account is None:
        return (), (_to(source, "payment.refused", reason="unknown account"),)
    if account.ceiling is not None and account.balance + amount > account.ceiling:
        return (), (_to(source, "payment.refused", reason="above the destination's ceiling"),)
    effects, _ = _credit(account, event, "incoming", source, amount)
    return effects, (_to(source, "payment.agreed"),)


def _agree(bank: Bank, state: State, event: Event) -> Decision:
    """Stage three: the hold becomes a payment."""
    hold, source = _held(state, event)
    lines = [("outgoing", hold.counterparty, -hold.amount)]
    outgoing = {"to": hold.counterparty, "amount": hold.amount, "fee": hold.fee}
    emits = [Emit(ACCOUNTS_LOG, event.key, "payment.outgoing", outgoing)]
    if hold.fee:
        lines.append(("fee", FEES_ACCOUNT, -hold.fee))
        emits += _fee(event.key, hold.fee)
    held = source.balance + hold.amount + hold.fee  # it left the balance when it was held
    return (Remove(HOLDS, hold.request), *_booked(event, source, held, *lines)), emits


def _refuse(bank: Bank, state: State, event: Event) -> Decision:
    """Stage three: the hold is released."""
    hold, source = _held(state, event)
    released = source._replace(balance=source.balance + hold.amount + hold.fee)
    effects = (Put(ACCOUNTS, released), Remove(HOLDS, hold.request))
    reason = event.payload["reason"]
    declined = _to(event.key, "payment.declined", to=hold.counterparty, amount=hold.amount, reason=reason)
    return effects, (declined,)


def _incoming(bank: Bank, state: State, event: Event) -> Decision:
    payload, account = event.payload, state.get(ACCOUNTS, event.key)
    if account is None:
        back = {"from": event.key, "amount": payload["amount"], "reason": "unknown account"}
        return (), (Emit(ACCOUNTS_LOG, payload["from"], "payment.returned", back),)
    return _credit(account, event, "incoming", payload["from"], payload["amount"])


def _returned(bank: Bank, state: State, event: Event) -> Decision:
    account = state.get(ACCOUNTS, event.key)
    assert account is not None, event.key
    return _credit(account, event, "returned", event.payload["from"], event.payload["amount"])


def _fee_incoming(bank: Bank, state: State, event: Event) -> Decision:
    # The fees account is opened by its first fee.
    account = state.get(ACCOUNTS, event.key) or Account(event.key, 0, 0, None, 0)
    return _credit(account, event, "fee", event.payload["from"], event.payload["amount"])


def _credit(account: Account, event: Event, kind: str, counterparty: str, amount: int) -> Decision:
    return _booked(event, account, account.balance, (kind, counterparty, amount)), ()


def _held(state: State, event: Event) -> tuple[Hold, Account]:
    hold, source = state.get(HOLDS, event.request), state.get(ACCOUNTS, event.key)
    assert hold is not None, event.request
    assert source is not None, event.key
    return hold, source


def _decline(event: Event, reason: str) -> Decision:
    to, amount = event.payload.get("to"), event.payload.get("amount")
    if isinstance(amount, bool) or not isinstance(amount, int) or not isinstance(to, str):
        to, amount = None, None
    return (), (_to(event.key, "payment.declined", to=to, amount=amount, reason=reason),)


def _fee(source: str, fee: int) -> list[Emit]:
    return [
        Emit(ACCOUNTS_LOG, source, "fee.outgoing", {"amount": fee}),
        Emit(ACCOUNTS_LOG, FEES_ACCOUNT, "fee.incoming", {"from": source, "amount": fee}),
    ]


def _to(key: str, kind: str, **payload: object) -> Emit:
    return Emit(ACCOUNTS_LOG, key, kind, payload)


def _booked(event: Event, account: Account, before: int, *lines: tuple[str, str, int]) -> list[Effect]:
    """The statement lines, each with the balance after it, and the account with the last balance."""
    name, _, overdraft, ceiling, last = account
    effects: list[Effect] = []
    entry, balance, request, time = event.offset << _ENTRY_BITS | 1, before, event.request, event.time
    for kind, counterparty, amount in lines:
        balance += amount
        line = _line((entry, name, last, request, kind, counterparty, amount, balance, time))
        effects.append(Put(STATEMENT, line))
        last, entry = entry, entry + 1
    effects.append(Put(ACCOUNTS, _account((name, balance, overdraft, ceiling, last))))
    return effects


def _name(value: str) -> bool:
    return 0 < len(value) <= ACCOUNT_LENGTH_MAX and value.isprintable()


def _cents(value: object) -> bool:
    return value.__class__ is int and 0 <= value <= AMOUNT_MAX


_HANDLERS: Final = {
    "account.open": _open,
    "payment.requested": _pay,
    "payment.offered": _pay,
    "payment.proposed": _propose,
    "payment.agreed": _agree,
    "payment.refused": _refuse,
    "payment.incoming": _incoming,
    "payment.returned": _returned,
    "fee.incoming": _fee_incoming,
}

BANK: Final = Bank().application()  # default tariff; named by `penstock olep --application`
