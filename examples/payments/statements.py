"""Statements and balances, by plain SQL on the executors' state.

They show what each partition has applied so far. Two accounts of one payment may differ in that
for a moment; views with snapshot reads are for those who mind.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from examples.payments.bank import Account, Line
from penstock.olep.placing import partition_of

if TYPE_CHECKING:
    from examples.payments.setting import Setting

LINES_MAX = 1000

_ACCOUNTS = 'select "account", "balance", "overdraft", "ceiling", "last" from {at}"accounts" where {mine}'
# Lines are chained newest to oldest: each step is a look-up by primary key.
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


def balance(setting: Setting, account: str) -> Account | None:
    partition = partition_of(account.encode(), setting.partitions)
    found = _query(setting, partition, _ACCOUNTS + ' and "account" = {p}', (account,))
    return Account(*found[0]) if found else None


def balances(setting: Setting) -> list[Account]:
    return sorted(
        Account(*row) for p in range(setting.partitions) for row in _query(setting, p, _ACCOUNTS, ())
    )


def statement(setting: Setting, account: str, *, lines: int = 50) -> list[Line]:
    """The newest lines first."""
    partition = partition_of(account.encode(), setting.partitions)
    found = _query(setting, partition, _STATEMENT, (account, min(lines, LINES_MAX)))
    return [Line(*row) for row in found]


def _query(setting: Setting, partition: int, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    name = setting.bank.application().name
    if setting.postgres is None:
        path = setting.state / f"{name}-{partition}.sqlite"
        if not path.exists():
            return []
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return db.execute(query.format(at="", p="?", mine="true", s="true", a="true"), values).fetchall()
        finally:
            db.close()
    import psycopg

    def of(alias: str) -> str:
        return f"{alias}olep_partition = {partition}"

    text = query.format(at=f'"{name}".', p="%s", mine=of(""), s=of("s."), a=of("a."))
    with psycopg.connect(setting.postgres) as connection:
        return connection.execute(text.encode(), values).fetchall()
