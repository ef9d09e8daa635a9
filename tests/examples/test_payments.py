"""The bank as its user runs it: one command, HTTP, and processes that are killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.examples.programs import START_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.programs import BankProgram

pytestmark = pytest.mark.kafka


@pytest.mark.timeout(300)  # a dozen processes start, one after the other
def test_the_bank_serves_http_and_survives_the_death_of_its_processes(bank: BankProgram) -> None:
    bank.wait()
    status, paid = bank.pay("k1", **{"from": "account-1", "to": "account-2", "amount": 5000})
    assert (status, paid["state"]) == (200, "paid")
    status, both = bank.get(f"/payments/k1?after={paid['token']}")
    assert (status, {name: each["balance"] for name, each in both["accounts"].items()}) == (
        200,
        {"account-1": 95_000, "account-2": 105_000},
    )
    assert [each["request"] for each in bank.get(f"/search?q=account-2&after={paid['token']}")[1]] == ["k1"]
    page = bank.page("/payments/k1")
    assert ("950.00" in page, "1050.00" in page) == (True, True)
    assert "All accounts: 4000.00" in bank.page("/?q=k1")
    bank.kill("executor")
    bank.kill("service")
    bank.wait()
    # Executors may take longer than a caller waits; a repeat with the same id gets the outcome.
    again = {"from": "account-1", "to": "account-2", "amount": 5000}
    _wait_for(lambda: bank.pay("k1", **again) == (status, paid), "the same outcome")
    declined = (409, "insufficient funds")
    large = {"from": "account-1", "to": "account-2", "amount": 10**9}
    _wait_for(lambda: _status_and_reason(bank.pay("k2", **large)) == declined, "a payment to be declined")
    for amount in (-5, 0, 1.5, "7"):
        assert bank.pay("k3", **{"from": "account-1", "to": "account-2", "amount": amount})[0] == 422
    assert (
        bank.pay("=k4", **{"from": "account-1", "to": "account-2", "amount": 5})[1]["error"]["code"]
        == "PEN-7002"
    )
    assert bank.get("/accounts/unknown")[0] == 404
    assert [line["amount"] for line in bank.get("/accounts/account-1/statement")[1]] == [-5000, 100_000]
    agreed = ("pay", "account-2", "account-3", "25", "--agreement", "--id", "k5")
    _wait_for(lambda: "payment.outgoing" in bank.command(*agreed).stdout, "an agreement")
    _wait_for(lambda: "spending.reached" in bank.command("trace", "k1").stdout, "a notice")
    checked = bank.command("check")
    assert (checked.returncode, checked.stdout) == (0, "state and log agree on every cent\n")


def _status_and_reason(response: tuple[int, Any]) -> tuple[int, str | None]:
    return response[0], response[1].get("reason")


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {START_SECONDS:g} s for {what}"
        time.sleep(0.1)
