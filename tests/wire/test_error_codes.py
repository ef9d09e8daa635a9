"""Kafka's error codes agree with two independent tables."""

from __future__ import annotations

from kafka.errors import BrokerResponseError, for_code
from kio.schema.errors import ErrorCode

from penstock.wire.error_codes import DENIED, MISSING, RETRIABLE, STALE_METADATA, Code, name_of


def test_every_code_has_the_name_that_kio_gives_it() -> None:
    assert {int(code.value): code.name.lower() for code in ErrorCode} == {
        int(code): code.name.lower() for code in Code
    }


def test_codes_that_kafka_python_retries_are_retriable_here() -> None:
    theirs = {code for code in Code if issubclass(for_code(int(code)), BrokerResponseError)}
    retried = {code for code in theirs if getattr(for_code(int(code)), "retriable", False)}
    # kafka-python retries these by choice; Kafka's own classes call them final.
    by_choice = retried - RETRIABLE

    assert by_choice <= {Code.BROKER_NOT_AVAILABLE, Code.UNKNOWN_SERVER_ERROR, Code.OFFSET_OUT_OF_RANGE}


def test_codes_of_denied_and_missing_are_disjoint() -> None:
    assert not DENIED & RETRIABLE
    assert not DENIED & MISSING
    assert STALE_METADATA <= RETRIABLE


def test_a_code_newer_than_the_table_shows_its_number() -> None:
    assert (name_of(3), name_of(9999)) == ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_9999")
