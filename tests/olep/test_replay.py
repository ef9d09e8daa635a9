"""Replay and trace on a real log, in this process and by the command in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition

from examples.payments.bank import ACCOUNTS, Bank
from examples.payments.bank_check import check_bank
from examples.payments.load import Load
from penstock.model.errors.olep import HistoryMissing, RequestMissing
from penstock.olep.event import RETRY, request
from penstock.olep.log import Appender, end_position, position_at_time, read
from penstock.olep.replay import replay, trace
from penstock.olep.store import digest
from tests.olep.bank_harness import ROOT
from tests.olep.test_fold import COUNTS, add, counting

if TYPE_CHECKING:
    from penstock.olep.log import Log
    from tests.olep.bank_harness import BankHarness

pytestmark = pytest.mark.kafka

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)
COUNT_ONLY = counting(lambda state, event: (add(state, event)[0], ()))


def penstock(log: Log, *words: str, seed: str = "0") -> Any:
    """Runs `penstock olep …` in a separate process; returns its JSON, or exit status and error."""
    options = [word for key, value in log.config.items() for word in ("-X", f"{key}={value}")]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "penstock", "olep", *words, *options, "-o", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        return done.returncode, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def test_executor_state_equals_a_replay_under_other_hash_seeds(harness: BankHarness) -> None:
    bank = Bank().application()
    harness.settings = replace(harness.settings, fee=0)  # the tariff of `examples.payments.bank:BANK`
    harness.append(PAYMENTS, 60, 1)
    with harness.executing():
        assert check_bank(harness.settings) == []
    log = harness.settings.accounts_log()
    stores = [harness.settings.stores.open(bank, log.topic_id, partition) for partition in range(3)]
    digests = [digest(store, bank) for store in stores]
    for store in stores:
        store.close()
    for seed in ("1", "2"):
        words = ("--application", "examples.payments.bank:BANK", "--topic", log.topic, "--log", "accounts")
        assert [row["digest"] for row in penstock(log, "replay", *words, seed=seed)] == digests


def counts(log: Log, **bounds: Any) -> int | None:
    replayed = replay(COUNT_ONLY, log, **bounds)
    row = replayed.stores[log.partition_of("k")].load(COUNTS, "k")
    return None if row is None else row[1]


def test_a_replay_stops_at_a_position_or_a_time(log: Log) -> None:
    producer = Producer(dict(log.config))
    for number in range(5):
        value = log.codec.encode(request(f"r{number}", "add", {"by": 1}, time=0))
        producer.produce(log.topic, value, b"k", log.partition_of("k"), timestamp=1000 * (number + 1))
    producer.flush()
    middle = position_at_time(log, 3000)
    assert (counts(log), counts(log, until=middle), counts(log, until=position_at_time(log, 1))) == (
        5,
        2,
        None,
    )
    words = (
        "--application",
        "tests.olep.test_replay:COUNT_ONLY",
        "--topic",
        log.topic,
        "--log",
        "counts",
        "--table",
        "counts",
    )
    for until in (middle.token(), "1970-01-01T00:00:03Z"):
        assert penstock(log, "replay", *words, "--until", until) == [
            {"partition": log.partition_of("k"), "key": "k", "value": 2}
        ]


def test_a_replay_refuses_a_log_whose_start_was_deleted(log: Log) -> None:
    appender = Appender(log)
    for number in range(2):
        appender.append("k", request(f"r{number}", "add", {"by": 1}, time=0))
    places = [TopicPartition(log.topic, log.partition_of("k"), 1)]
    for future in log.admin.delete_records(places).values():
        future.result()
    with pytest.raises(HistoryMissing):
        replay(COUNT_ONLY, log)


def test_a_trace_shows_every_event_of_a_request_under_its_cause(harness: BankHarness) -> None:
    harness.append(PAYMENTS, 0, 0)
    log = harness.settings.accounts_log()
    payment = request("traced", "payment.offered", {"to": "account-2", "amount": 100}, time=0)
    Appender(log).append("account-1", payment)
    with harness.executing():
        assert check_bank(harness.settings) == []
    events = trace([log, harness.settings.notices_log()], "traced")
    assert [(each.depth, each.event.type, each.event.key) for each in events] == [
        (0, "payment.offered", "account-1"),
        (1, "payment.proposed", "account-2"),
        (2, "payment.agreed", "account-1"),
        (3, "payment.outgoing", "account-1"),
        (3, "fee.outgoing", "account-1"),
        (3, "fee.incoming", "fees"),
    ]
    shown = penstock(log, "trace", "traced", "--topic", log.topic)
    assert [row["event"].strip() for row in shown] == [each.event.type for each in events]


def test_an_unknown_request_has_no_trace(log: Log) -> None:
    with pytest.raises(RequestMissing):
        trace([log], "unknown")


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("replay", "--application", "nowhere:app", "--topic", "{topic}"), 2, "PEN-1002"),
        (("replay", "--application", "os:sep", "--topic", "{topic}"), 2, "PEN-1002"),
        (
            (
                "replay",
                "--application",
                "examples.payments.bank:BANK",
                "--topic",
                "{topic}",
                "--until",
                "no-token",
            ),
            2,
            "PEN-7003",
        ),
        (("replay", "--application", "examples.payments.bank:BANK", "--topic", "never-made"), 3, "PEN-7005"),
        (("rejected", "--application", "examples.payments.bank:BANK", "--topic", "{topic}"), 2, "PEN-1002"),
        (("trace", "unknown", "--topic", "{topic}"), 3, "PEN-7050"),
    ],
    ids=["module", "kind", "token", "topic", "state", "request"],
)
def test_a_failed_command_prints_the_error_code(
    log: Log, words: tuple[str, ...], status: int, code: str
) -> None:
    actual = penstock(log, *(word.format(topic=log.topic) for word in words))
    assert (actual[0], code in actual[1]) == (status, True), actual


def test_the_command_shows_the_end_and_retries_rejected_events(harness: BankHarness) -> None:
    log = harness.settings.accounts_log()
    Appender(log).append("account-1", request("odd", "payment.unknown", {}, time=0))
    with harness.executing():
        assert check_bank(harness.settings) == []
    state = (
        "--application",
        "examples.payments.bank:BANK",
        "--topic",
        log.topic,
        "--state",
        str(harness.settings.state),
    )
    (row,) = penstock(log, "rejected", *state)
    assert (row["reason"], row["key"]) == ("unknown-type", "account-1")
    before = end_position(log)
    assert penstock(log, "position", "--topic", log.topic)["token"] == before.token()
    assert penstock(log, "retry", str(row["partition"]), str(row["offset"]), *state) is None
    ((partition, record),) = read(log, start=before)
    retried = log.decode(partition, record)
    assert (partition, retried.type, retried.payload) == (row["partition"], RETRY, {"offset": row["offset"]})


def test_accounts_are_shown_as_rows(harness: BankHarness) -> None:
    harness.append(PAYMENTS, 0, 0)
    log = harness.settings.accounts_log()
    replayed = replay(Bank(fee=1).application(), log)
    rows = sorted(row for store in replayed.stores.values() for row in store.scan(ACCOUNTS))
    assert [row[1] for row in rows] == [5000] * 6
