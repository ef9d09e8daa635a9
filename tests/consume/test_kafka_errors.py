"""Which of Kafka's errors end the consumer, restart it, or are transient."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from penstock.consume.kafka_errors import as_consume_error, is_transient
from penstock.model.errors.consume import AccessDenied, ClientFailed, GroupRefused


def fatal_about(code: int) -> KafkaError:
    """As librdkafka delivers it to a consumer: the code is lost, the text names the error."""
    return KafkaError(KafkaError._FATAL, f"Fatal error: {KafkaError(code).str()}: heartbeat fatal error")


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), GroupRefused),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), AccessDenied),
        (fatal_about(KafkaError.FENCED_INSTANCE_ID), GroupRefused),
        (fatal_about(KafkaError.UNRELEASED_INSTANCE_ID), ClientFailed),
        (fatal_about(KafkaError.UNSUPPORTED_ASSIGNOR), GroupRefused),
        (KafkaError(KafkaError._FATAL, "whatever", True), ClientFailed),
        (KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), type(None)),
        (KafkaError(KafkaError._TRANSPORT), type(None)),
    ],
)
def test_kafka_errors_map_to_consumer_errors(error: KafkaError, ours: type) -> None:
    assert type(as_consume_error(error, "g")) is ours


def test_lost_connections_are_transient() -> None:
    assert is_transient(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert not is_transient(KafkaError(KafkaError._AUTHENTICATION))
