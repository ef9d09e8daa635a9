"""The bank's enquiries: answers from its views, at a consistency that fits the question.

A payment and both its accounts are shown from three views as of one moment (`Snapshots`); a search
after a payment waits for that payment; what the warehouse says may be as old as it likes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from examples.payments.bank import FINAL
from examples.payments.views import BALANCES, PAYMENTS, Payment
from penstock.olep.view.reads import Reads, Tail
from penstock.olep.view.snapshots import Snapshots

if TYPE_CHECKING:
    from examples.payments.setting import Setting

LINES_SHOWN = 10
ANSWER_SECONDS = 10.0

_LINES = (
    "select kind, counterparty, amount, request from lines where account = {p}"
    " order by time desc, entry desc limit {n}"
)


class Desk:
    """A context manager over readers of all views; none of them writes."""

    def __init__(self, setting: Setting) -> None:
        self._log = setting.accounts_log()
        self._placeholder = "?" if setting.postgres is None else "%s"
        self._tail = Tail(self._log)
        self._reads = {
            name: Reads(projection, self._log, stores, tail=self._tail)
            for name, (projection, stores) in setting.views.items()
        }
        together = {name: self._reads[name] for name in ("statements", "search", "balances")}
        self._snapshots = Snapshots(self._log, together, tail=self._tail, final=FINAL)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for each in (self._tail, *self._reads.values(), self._snapshots):
            self._stack.enter_context(each)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def payment(self, request: str, after: str | None) -> dict[str, Any] | None:
        """The payment, and both its accounts as they are at the same moment: never one half of it."""
        with self._snapshots.take(after=after, timeout=ANSWER_SECONDS) as snapshot:
            found = snapshot["search"].get(PAYMENTS, request)
            if not found:
                return None
            payment = Payment(*found[0][1])
            accounts = {}
            for name in (payment.sender, payment.receiver):
                lines = snapshot["statements"].query(
                    _LINES.format(p=self._placeholder, n=LINES_SHOWN), (name,)
                )
                accounts[name] = {
                    "balance": sum(row[1] for _, row in snapshot["balances"].get(BALANCES, name)),
                    "lines": [
                        dict(zip(("kind", "counterparty", "amount", "request"), line, strict=True))
                        for line in lines
                    ],
                }
            return {
                **payment._asdict(),
                "accounts": accounts,
                "token": snapshot.position.token(),
                "age_seconds": round(snapshot.age, 3),
            }

    def search(self, text: str, after: str | None) -> list[dict[str, Any]]:
        reads = self._reads["search"]
        with reads.after(after, timeout=ANSWER_SECONDS) if after else reads.latest() as reader:
            found = [reader.get(PAYMENTS, key) for _, key in reader.search(PAYMENTS, text)]
            return [Payment(*rows[0][1])._asdict() for rows in found if rows]

    def accounts(self) -> list[tuple[str, int]]:
        """All balances at one moment; they sum to what was paid in."""
        with self._snapshots.take(timeout=ANSWER_SECONDS) as snapshot:
            return [
                (name, int(cents))
                for name, cents in snapshot["statements"].query(
                    "select account, sum(cents) from balances group by account order by account"
                )
            ]

    def facts(self) -> list[dict[str, Any]]:
        """What the warehouse counts, by kind and day."""
        with self._reads["warehouse"].latest() as reader:
            rows = reader.query(
                "select kind, time // 86400000 as day, count(*), sum(abs(amount))::BIGINT from facts"
                " group by all order by all"
            )
        return [dict(zip(("kind", "day", "count", "cents"), row, strict=True)) for row in rows]
