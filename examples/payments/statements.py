"""Statements and balances, by plain SQL on the executors' state.

They show what each partition has applied so far, so the two accounts of a payment may differ for a
moment. Snapshot reads of views do not (`queries`).
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from examples.payments.bank import Account, Line
from penstock.olep.partitioner import partition_of

if TYPE_CHECKING:
    from examples.payments.settings import Settings

LINES_MAX = 1000

_ACCOUNTS = (
    'select "account", "balance", "overdraft", "ceiling", "last" from {at}"accounts" where {partition}'
)
# Each line points to the previous one: every step is a lookup by primary key.
_STATEMENT = """
with recursive chain as (
  select s.*, 1 as step from {at}"statement" s
    join {at}"accounts" a on s."entry" = a."last" where a."account" = {p} and {s} and {a}
  union all
  select s.*, chain.step + 1 from {at}"statement" s join chain on s."entry" = chain."previous"
    where chain.step < {p} and {s}
)
select "entry", "account", "previous", "request", "kind", "counterparty", "amount", "balance", "time"
from chain order by step
"""


def balance(settings: Settings, account: str) -> Account | None:
    partition = partition_of(account.encode(), settings.partitions)
    rows = _query(settings, partition, _ACCOUNTS + ' and "account" = {p}', (account,))
    return Account(*rows[0]) if rows else None


def balances(settings: Settings) -> list[Account]:
    return sorted(
        Account(*row) for p in range(settings.partitions) for row in _query(settings, p, _ACCOUNTS, ())
    )


def statement(settings: Settings, account: str, *, lines: int = 50) -> list[Line]:
    """The newest lines first."""
    partition = partition_of(account.encode(), settings.partitions)
    rows = _query(settings, partition, _STATEMENT, (account, min(lines, LINES_MAX)))
    return [Line(*row) for row in rows]


def _query(settings: Settings, partition: int, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    name = settings.application.name
    if settings.postgres is None:
        path = settings.state / f"{name}-{partition}.sqlite"
        if not path.exists():
            return []
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return db.execute(
                query.format(at="", p="?", partition="true", s="true", a="true"), values
            ).fetchall()
        finally:
            db.close()
    import psycopg

    def of(alias: str) -> str:
        return f"{alias}olep_partition = {partition}"

    text = query.format(at=f'"{name}".', p="%s", partition=of(""), s=of("s."), a=of("a."))
    with psycopg.connect(settings.postgres) as connection:
        return connection.execute(text.encode(), values).fetchall()
