"""Reads the bank's views, each query at the consistency it needs.

A payment and both its accounts come from three views as of one position (`Snapshots`). A search with a
token waits for the payment that returned it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Self

from examples.payments.bank import FINAL
from examples.payments.views import BALANCES, PAYMENTS, Payment
from penstock.olep.view.consistent_reads import LogTail, Reads
from penstock.olep.view.snapshot_reads import Snapshots

if TYPE_CHECKING:
    from examples.payments.settings import Settings

LINES_SHOWN = 10
READ_SECONDS = 10.0

# Follows the account's chain in each partition: every step is a lookup by primary key.
NEWEST_LINES = """
with recursive chain (place, number, step) as (
  select olep_partition, last, 1 from accounts where account = {p}
  union all
  select place, previous, step + 1 from chain join lines on entry = number and olep_partition = place
    where step < {n}
)
select kind, counterparty, amount, request from chain join lines on entry = number and olep_partition = place
order by time desc, entry desc limit {n}
"""


class BankQueries:
    """Readers of all views. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._log = settings.accounts_log()
        self._placeholder = "?" if settings.postgres is None else "%s"
        self._tail = LogTail(self._log)
        self._reads = {
            name: Reads(projection, self._log, stores, tail=self._tail)
            for name, (projection, stores) in settings.views.items()
        }
        together = {name: self._reads[name] for name in ("statements", "search", "balances")}
        self._snapshots = Snapshots(self._log, together, tail=self._tail, final=FINAL)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        contexts: list[AbstractContextManager[object]] = [self._tail, *self._reads.values(), self._snapshots]
        for each in contexts:
            self._stack.enter_context(each)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def payment(self, request: str, after: str | None) -> dict[str, Any] | None:
        """The payment and both its accounts as of one position, so never one half of it."""
        with self._snapshots.take(after=after, timeout=READ_SECONDS) as snapshot:
            rows = snapshot["search"].get(PAYMENTS, request)
            if not rows:
                return None
            payment = Payment(*rows[0][1])
            accounts = {}
            for name in (payment.sender, payment.receiver):
                lines = snapshot["statements"].query(
                    NEWEST_LINES.format(p=self._placeholder, n=LINES_SHOWN), (name,)
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
        with reads.after(after, timeout=READ_SECONDS) if after else reads.latest() as reader:
            matches = [reader.get(PAYMENTS, key) for _, key in reader.search(PAYMENTS, text)]
            return [Payment(*rows[0][1])._asdict() for rows in matches if rows]

    def accounts(self) -> list[tuple[str, int]]:
        """All balances as of one position; they add up to the deposits."""
        with self._snapshots.take(timeout=READ_SECONDS) as snapshot:
            return [
                (name, int(cents))
                for name, cents in snapshot["statements"].query(
                    "select account, sum(cents) from accounts group by account order by account"
                )
            ]
