"""The `payments` command.

python -m examples.payments up                 start a bank; Kafka is local or --bootstrap
python -m examples.payments open ann --deposit 10000
python -m examples.payments pay ann bob 1250
python -m examples.payments statement ann
python -m examples.payments load --seconds 10
python -m examples.payments check
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from examples.launcher import (
    Bootstrap,
    Home,
    Option,
    TopicsName,
    example_app,
    run_cli,
    run_program,
    serve,
)
from examples.payments.bank import OUTCOME_TYPES
from examples.payments.bank_check import check_bank
from examples.payments.load import Load, open_accounts, run_load
from examples.payments.processes import run_bank, run_spending, run_views
from examples.payments.settings import Settings, load_settings
from examples.payments.statements import balances, statement
from penstock.model.errors import Exit
from penstock.olep.event import Event, request
from penstock.olep.outcome import Outcomes
from penstock.olep.replay import trace as trace_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOME = Path(".payments")
OUTCOME_SECONDS = 15.0

app = example_app("payments", "A bank that never loses a cent.", HOME)


@app.command
def up(
    *,
    home: Home = HOME,
    bootstrap: Bootstrap = None,
    option: Option = (),
    name: TopicsName = "payments",
    executors: Annotated[int, Parameter(help="Number of executors.")] = 2,
    partitions: Annotated[int, Parameter(help="Partitions of the accounts' log, at its first start.")] = 4,
    accounts: Annotated[int, Parameter(help="Number of sample accounts to open.")] = 10,
    port: Annotated[int, Parameter(help="Port of the HTTP service.")] = 8480,
    postgres: Annotated[str | None, Parameter(help="DSN of a database for state, instead of files.")] = None,
    redis: Annotated[str | None, Parameter(help="URL of a Valkey or Redis to cache balances in.")] = None,
    notify_above: Annotated[int, Parameter(help="Cents spent in a day that raise a notice.")] = 100_000,
) -> int:
    """Run the bank in the foreground: executors, views, HTTP service, notifier. Ctrl-C stops it."""

    def begin(config: dict[str, Any], start: Callable[[], None]) -> None:
        topics = (f"{name}.accounts", f"{name}.notices")
        settings = Settings(str(home), config, *topics, partitions, postgres=postgres, redis=redis)
        settings.create_logs()
        settings.save()
        start()
        open_accounts(settings.accounts_log(), accounts, deposit=100_000, overdraft=10_000)
        print(f"ready  http://127.0.0.1:{port}/docs  {accounts} accounts with 1000.00 each", flush=True)
        print(f"page   http://127.0.0.1:{port}/  both accounts of a payment, as of one position", flush=True)
        print(f"try    python -m examples.payments pay account-1 account-2 1250 --home {home}", flush=True)

    commands = {
        **{f"executor-{n}": ["executor", "--member", f"executor-{n}"] for n in range(executors)},
        "notifier": ["notifier", "--limit", str(notify_above)],
        "views": ["views"],
        "service": ["service", "--port", str(port)],
    }
    return run_program(
        "examples.payments", home, commands, port=port, bootstrap=bootstrap, option=option, begin=begin
    )


@app.command
def executor(
    *,
    home: Home = HOME,
    member: str | None = None,
    snapshots: bool = False,
    notify_above: int | None = None,
    metrics_port: Annotated[int | None, Parameter(help="Serve Prometheus metrics on this port.")] = None,
) -> int:
    """Run one executor of the bank. Any number of them share the partitions."""
    run_bank(
        load_settings(home),
        member=member,
        snapshots=snapshots,
        notify_above=notify_above,
        metrics_port=metrics_port,
    )
    return Exit.FINE


@app.command
def notifier(*, home: Home = HOME, limit: int = 100_000) -> int:
    """Run the notifier: an event in the notices log when an account spends more than this a day."""
    run_spending(load_settings(home), limit)
    return Exit.FINE


@app.command
def views(*, home: Home = HOME) -> int:
    """Run the views: statements, search, cached balances."""
    run_views(load_settings(home))
    return Exit.FINE


@app.command
def service(*, home: Home = HOME, port: int = 8480) -> int:
    """Run the HTTP service."""
    from examples.payments.service import service as bank_service

    return serve(bank_service(load_settings(home)), port)


@app.command(name="open")
def open_account(
    account: str, *, deposit: int = 0, overdraft: int = 0, ceiling: int | None = None, home: Home = HOME
) -> int:
    """Open an account; amounts in cents."""
    payload = {"deposit": deposit, "overdraft": overdraft, "ceiling": ceiling}
    return _show(_ask(home, account, f"open-{account}", "account.open", payload))


@app.command
def pay(
    source: str,
    to: str,
    amount: int,
    *,
    id: Annotated[str | None, Parameter(help="Id of the request; repeat a request with its id.")] = None,  # noqa: A002 - the flag's name
    agreement: Annotated[bool, Parameter(help="The destination must agree.", negative="")] = False,
    home: Home = HOME,
) -> int:
    """Pay cents from one account to another and wait for the outcome."""
    kind = "payment.offered" if agreement else "payment.requested"
    return _show(_ask(home, source, id or str(uuid.uuid4()), kind, {"to": to, "amount": amount}))


@app.command(name="balances")
def show_balances(*, home: Home = HOME) -> int:
    """Print every account."""
    for each in balances(load_settings(home)):
        print(f"{each.account:<20} {each.balance / 100:>14.2f}")
    return Exit.FINE


@app.command(name="statement")
def show_statement(account: str, *, lines: int = 20, home: Home = HOME) -> int:
    """Print an account's statement, newest first."""
    for line in statement(load_settings(home), account, lines=lines):
        moved, left = line.amount / 100, line.balance / 100
        print(f"{line.kind:<9} {line.counterparty:<20} {moved:>12.2f} {left:>14.2f}  {line.request}")
    return Exit.FINE


@app.command
def load(
    *,
    home: Home = HOME,
    seconds: float = 10.0,
    accounts: int = 10,
    hot_share: float = 0.0,
    repeats: float = 0.01,
    agreements: float = 0.1,
    in_flight: int = 1000,
    rate: Annotated[
        float | None, Parameter(help="Requests a second; without it, as many as the bank takes.")
    ] = None,
    seed: int = 0,
    journal: Annotated[
        Path | None, Parameter(help="File to list every request in before it is sent.")
    ] = None,
) -> int:
    """Make random payments, and print the outcomes."""
    label = f"load-{uuid.uuid4().hex[:8]}"
    plan = Load(accounts, hot_share, repeats, agreements, in_flight, rate, seed=seed, label=label)
    result = run_load(load_settings(home).accounts_log(), plan, seconds=seconds, journal=journal)
    middle, slow = result.percentile(0.5) * 1000, result.percentile(0.99) * 1000
    a_second = result.requests / seconds
    print(f"{result.requests} requests, {a_second:.0f} a second, p50 {middle:.1f} ms, p99 {slow:.1f} ms")
    for state, count in sorted(result.states.items()):
        print(f"  {state:<20} {count}")
    return Exit.FINE


@app.command
def check(*, home: Home = HOME, journal: Path | None = None) -> int:
    """Check that state and log agree on every cent, once no payment is in progress."""
    findings = check_bank(load_settings(home), journal=journal)
    for each in findings:
        print(f"wrong: {each}")
    print("state and log differ" if findings else "state and log agree on every cent")
    return Exit.FAILED if findings else Exit.FINE


@app.command
def trace(request_id: str, *, home: Home = HOME) -> int:
    """Print every event that a request caused."""
    settings = load_settings(home)
    for each in trace_request([settings.accounts_log(), settings.notices_log()], request_id):
        event = each.event
        where = f"{event.key} {event.partition}/{event.offset}"
        print(f"{'  ' * each.depth}{event.type} {where} {dict(event.payload)}")
    return Exit.FINE


def _ask(home: Path, account: str, request_id: str, kind: str, payload: Mapping[str, object]) -> Event:
    event = request(request_id, kind, payload, time=time.time_ns() // 1_000_000)
    with Outcomes(load_settings(home).accounts_log(), OUTCOME_TYPES) as outcomes:
        return outcomes.ask(account, event, timeout=OUTCOME_SECONDS)


def _show(final: Event) -> int:
    print(f"{final.type} {dict(final.payload)}  request {final.request}")
    return Exit.FINE if final.type in {"payment.outgoing", "account.opened"} else Exit.FAILED


if __name__ == "__main__":
    sys.exit(run_cli(app))
