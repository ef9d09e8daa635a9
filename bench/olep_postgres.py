"""The baseline of `bench.olep`: the same transfers in PostgreSQL, three ways.

- `for-update`: a function locks the rows in the order of their names, checks, updates, records;
- `atomic`: one conditional update takes the money, a second gives it, without reading first;
- `batched`: one call and one transaction for many transfers; the rows of all of them are locked once in
  one order, then each transfer runs as in `atomic`, in the order given.

Each does exactly what the bank on logs does:

    idempotent by request id      a row in `requests`, by primary key
    status of the request         the same row: paid or declined; a repeat gets the same status
    overdraft limit               checked for every transfer, against the balance after those before it
    fee                           to the fees account, in the same decision
    statement of both accounts    a line for each side with the balance after it, by index on the account
    events for subscribers        the same lines: `entry` is the position a subscriber reads from

The lines also serve as events and are not written again as JSON: a table can be both, a log and a state
file cannot. A failing transfer is detected before anything of it is written, so no transfer needs a
savepoint, which would only slow PostgreSQL down.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Sequence

Transfer = tuple[str, str, str, int]  # request, source, destination, cents

SCHEMA = """
drop table if exists requests, entries, accounts;
create table accounts (account text primary key, balance bigint not null, overdraft bigint not null);
create table requests (
  request text primary key, source text not null, destination text not null, amount bigint not null,
  fee bigint not null, state text not null, at timestamptz not null default now()
);
create table entries (
  entry bigint generated always as identity primary key, account text not null, request text not null,
  kind text not null, counterparty text not null, amount bigint not null, balance bigint not null,
  at timestamptz not null default now()
);
create index on entries (account, entry);

create or replace function pay_atomic(r text, s text, d text, a bigint, f bigint) returns text as $$
declare had bigint; has bigint; gathered bigint;
begin
  insert into requests (request, source, destination, amount, fee, state) values (r, s, d, a, f, 'paid')
    on conflict do nothing;
  if not found then return 'repeated'; end if;
  update accounts set balance = balance - a - f where account = s and balance - a - f >= -overdraft
    returning balance into had;
  if not found then
    update requests set state = 'declined' where request = r;
    return 'declined';
  end if;
  update accounts set balance = balance + a where account = d returning balance into has;
  if not found then
    update accounts set balance = balance + a + f where account = s;
    update requests set state = 'declined' where request = r;
    return 'declined';
  end if;
  insert into entries (account, request, kind, counterparty, amount, balance)
    values (s, r, 'outgoing', d, -a, had + f), (d, r, 'incoming', s, a, has);
  if f > 0 then
    update accounts set balance = balance + f where account = 'fees' returning balance into gathered;
    insert into entries (account, request, kind, counterparty, amount, balance)
      values (s, r, 'fee', 'fees', -f, had), ('fees', r, 'fee', s, f, gathered);
  end if;
  return 'paid';
end $$ language plpgsql;

create or replace function pay_for_update(r text, s text, d text, a bigint, f bigint) returns text as $$
begin
  perform 1 from accounts where account in (s, d, case when f > 0 then 'fees' end)
    order by account for update;
  return pay_atomic(r, s, d, a, f);
end $$ language plpgsql;

-- The body of pay_atomic again, so that a batch does not cost a function call per transfer.
create or replace function pay_batch(rs text[], ss text[], ds text[], amounts bigint[], f bigint)
returns text[] as $$
declare
  results text[] := '{}'; n int; r text; s text; d text; a bigint;
  had bigint; has bigint; gathered bigint;
begin
  -- Every row of the batch is locked once, in one order, so that batches do not deadlock.
  perform 1 from accounts where account = any (ss || ds || case when f > 0 then '{fees}'::text[] end)
    order by account for update;
  for n in 1 .. array_length(rs, 1) loop
    r := rs[n]; s := ss[n]; d := ds[n]; a := amounts[n];
    insert into requests (request, source, destination, amount, fee, state) values (r, s, d, a, f, 'paid')
      on conflict do nothing;
    if not found then results[n] := 'repeated'; continue; end if;
    update accounts set balance = balance - a - f where account = s and balance - a - f >= -overdraft
      returning balance into had;
    if not found then
      update requests set state = 'declined' where request = r;
      results[n] := 'declined'; continue;
    end if;
    update accounts set balance = balance + a where account = d returning balance into has;
    if not found then
      update accounts set balance = balance + a + f where account = s;
      update requests set state = 'declined' where request = r;
      results[n] := 'declined'; continue;
    end if;
    insert into entries (account, request, kind, counterparty, amount, balance)
      values (s, r, 'outgoing', d, -a, had + f), (d, r, 'incoming', s, a, has);
    if f > 0 then
      update accounts set balance = balance + f where account = 'fees' returning balance into gathered;
      insert into entries (account, request, kind, counterparty, amount, balance)
        values (s, r, 'fee', 'fees', -f, had), ('fees', r, 'fee', s, f, gathered);
    end if;
    results[n] := 'paid';
  end loop;
  return results;
end $$ language plpgsql;
"""


@dataclass(frozen=True, slots=True)
class PostgresBank:
    dsn: str
    fee: int = 0

    def prepare(self, accounts: Sequence[str], deposit: int) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute(SCHEMA)
            with db.cursor().copy("copy accounts from stdin") as copy:
                for account in (*accounts, "fees"):
                    copy.write_row((account, deposit, 0))
            db.execute("vacuum analyze")

    def total(self) -> int:
        with psycopg.connect(self.dsn) as db:
            row = db.execute("select sum(balance)::bigint from accounts").fetchone()
            assert row is not None
            return int(row[0])

    def pay(self, mode: str, transfers: Sequence[Transfer], *, batch: int, connections: int) -> list[float]:
        """Makes every transfer once, over so many connections; returns the seconds of each call."""
        shares = [transfers[n::connections] for n in range(connections)]
        took: list[list[float]] = [[] for _ in shares]
        work = self._batched if mode == "batched" else self._single
        threads = [
            threading.Thread(target=work, args=(mode, share, batch, seconds))
            for share, seconds in zip(shares, took)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        calls = [second for seconds in took for second in seconds]
        per_call = batch if mode == "batched" else 1
        assert len(calls) == sum(-(-len(share) // per_call) for share in shares), "a connection failed"
        return calls

    def _single(self, mode: str, share: Sequence[Transfer], batch: int, took: list[float]) -> None:
        from time import perf_counter

        query = f"select pay_{mode.replace('-', '_')}(%s, %s, %s, %s, %s)".encode()
        with psycopg.connect(self.dsn, autocommit=True, prepare_threshold=1) as db:
            for request, source, destination, amount in share:
                begin = perf_counter()
                row = db.execute(query, (request, source, destination, amount, self.fee)).fetchone()
                took.append(perf_counter() - begin)
                assert row == ("paid",), row

    def _batched(self, mode: str, share: Sequence[Transfer], batch: int, took: list[float]) -> None:
        from time import perf_counter

        query = b"select pay_batch(%s, %s, %s, %s::bigint[], %s)"
        with psycopg.connect(self.dsn, autocommit=True, prepare_threshold=1) as db:
            for at in range(0, len(share), batch):
                begin = perf_counter()
                columns = [list(column) for column in zip(*share[at : at + batch])]
                row = db.execute(query, (*columns, self.fee)).fetchone()
                took.append(perf_counter() - begin)
                assert row is not None
                assert row[0] == ["paid"] * len(columns[0]), row[0]
