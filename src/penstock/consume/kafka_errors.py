"""Map Kafka's errors: which end the consumer, which restart it, which the client retries. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from penstock.model.errors.consume import (
    AccessDenied,
    ClientFailed,
    GroupRefused,
    OutputRefused,
    OutputUndelivered,
)

if TYPE_CHECKING:
    from penstock.consume.record import Record
    from penstock.model.errors.consume import ConsumeError

_ACCESS_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_GROUP_REFUSED: Final = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.UNSUPPORTED_ASSIGNOR,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INVALID_REGULAR_EXPRESSION,
    }
)
# A dead static member keeps its instance id until its session ends (KIP-848); its successor retries.
_RETRIABLE: Final = frozenset({KafkaError.UNRELEASED_INSTANCE_ID})
_OUTPUT_REFUSED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,  # a name that no topic can have
        KafkaError._INVALID_ARG,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_TRANSIENT: Final = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


def as_consume_error(error: Any, group: str) -> ConsumeError | None:
    """The consumer's error for this error of Kafka; None if the client recovers from it."""
    code, reason = error.code(), error.str()
    if code == KafkaError._FATAL:  # the original code is only in the text
        code = next((each for each in _GROUP_REFUSED if KafkaError(each).str() in reason), code)
    if code in _GROUP_REFUSED:
        return GroupRefused(group=group, reason=reason)
    if code in _ACCESS_DENIED:
        return AccessDenied(reason=reason)
    if error.fatal() or code == KafkaError._FATAL or code in _RETRIABLE:
        return ClientFailed(reason=reason)
    return None


def output_error(record: Record, topic: str, error: Any) -> ConsumeError:
    """The error of an output, from a delivery report or from what `produce` raised."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(cause, KafkaError):
        kind = OutputRefused if cause.code() in _OUTPUT_REFUSED else OutputUndelivered
        return kind(record=record, topic=topic, reason=cause.str())
    return OutputRefused(record=record, topic=topic, reason=repr(cause))


def is_transient(error: Any) -> bool:
    """Whether librdkafka recovers from this by reconnecting."""
    return error.code() in _TRANSIENT
