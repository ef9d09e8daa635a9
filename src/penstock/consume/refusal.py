"""Which of Kafka's errors end the consumer, which restart it, and which pass by themselves. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from penstock.model.errors.consume import AccessDenied, ClientFailed, GroupRefused

if TYPE_CHECKING:
    from penstock.model.errors.consume import ConsumeError

_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_GROUP: Final = frozenset(
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
# A static member that died holds its name until its session ends (KIP-848): its successor tries again.
_LATER: Final = frozenset({KafkaError.UNRELEASED_INSTANCE_ID})
_PASSING: Final = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


def refusal(error: Any, group: str) -> ConsumeError | None:
    """The error of ours that this error of Kafka's amounts to; None: it passes."""
    code, reason = error.code(), error.str()
    if code == KafkaError._FATAL:  # what it was about only the text tells
        code = next((each for each in _GROUP if KafkaError(each).str() in reason), code)
    if code in _GROUP:
        return GroupRefused(group=group, reason=reason)
    if code in _DENIED:
        return AccessDenied(reason=reason)
    if error.fatal() or code == KafkaError._FATAL or code in _LATER:
        return ClientFailed(reason=reason)
    return None


def is_passing(error: Any) -> bool:
    """Whether librdkafka mends this by reconnecting."""
    return error.code() in _PASSING
