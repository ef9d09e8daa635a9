"""The consumer's options: defaults, checks, and the properties passed to the Kafka clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.consume.retry import DelayedRetry, Retry
from penstock.consume.schedule import NullKeys, Order
from penstock.model.backoff import Backoff
from penstock.model.errors.consume import GroupMissing, OptionInvalid, OptionUnknown

if TYPE_CHECKING:
    from penstock.consume.record import Record

MEBIBYTE: Final = 1 << 20
BUFFER_RECORDS_MIN: Final = 100


class Workers(StrEnum):
    """Where handlers run."""

    AUTO = "auto"  # coroutine functions on the event loop, plain functions on threads
    THREADS = "threads"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a ParallelConsumer. Units are in the names; bounds are hard."""

    order: Order = Order.KEY
    concurrency: int = 100  # records handled at once
    workers: Workers = Workers.AUTO
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    null_keys: NullKeys = NullKeys.UNORDERED

    commit_records: int = 10_000  # commit after this many finished records …
    commit_seconds: float = 1.0  # … or this long, whichever comes first
    # Most records started and not committed, so most that a kill can make run twice.
    uncommitted_records_max: int = 0  # 0: 2 × commit_records + concurrency
    buffer_records: int = 0  # most records in memory; 0: 20 × concurrency, at least 50,000
    buffer_bytes: int = 64 * MEBIBYTE  # most bytes of keys and values in memory

    retry: Retry = field(default_factory=Retry)
    delayed_retries: Sequence[DelayedRetry] = ()  # after `retry`, one after the other, before the dead letter
    dead_letter_topic: str | None = None
    filter: Callable[[Record], bool] | None = None
    middleware: Sequence[Callable[..., Any]] = ()  # each `(record, call_next)`; the first is outermost
    key_deserializer: Callable[[bytes], Any] | None = None
    value_deserializer: Callable[[bytes], Any] | None = None
    handler_seconds_max: float | None = None  # a handler that takes longer is cancelled and fails
    stuck_seconds: float = 30.0  # report a handler that runs this long

    transactional_id: str | None = None  # if set, outputs and offsets are one transaction
    transaction_seconds: float = 0.1
    producer: Mapping[str, Any] = field(default_factory=dict)  # further properties for the producer

    revoke_seconds: float = 5.0  # how long a rebalance waits for running handlers
    drain_seconds: float = 30.0  # how long stop() waits for running handlers
    blocked_seconds: float = 5.0  # report an event loop blocked this long
    restart: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))

    # These create the Kafka clients; by default those of confluent_kafka.
    client: Callable[[dict[str, Any]], Any] | None = None
    producer_client: Callable[[dict[str, Any]], Any] | None = None

    @property
    def uncommitted_max(self) -> int:
        return self.uncommitted_records_max or 2 * self.commit_records + self.concurrency

    @property
    def records_max(self) -> int:
        return self.buffer_records or max(50_000, 20 * self.concurrency)


_POSITIVE: Final = (
    "concurrency", "processes", "commit_records", "commit_seconds", "buffer_bytes", "stuck_seconds",
    "transaction_seconds", "blocked_seconds",
)  # fmt: skip
_NOT_NEGATIVE: Final = ("uncommitted_records_max", "buffer_records", "revoke_seconds", "drain_seconds")
_CALLABLE: Final = ("filter", "key_deserializer", "value_deserializer", "client", "producer_client")


def checked_settings(options: Mapping[str, Any]) -> Settings:
    """Builds the settings; raises for the first unknown or invalid option."""
    known = [each.name for each in fields(Settings)]
    for option in options:
        if option not in known:
            similar = get_close_matches(option, known, n=3) or known
            raise OptionUnknown(option=option, similar=", ".join(f"`{name}`" for name in similar))
    chosen = dict(options)
    for option, kind in (("order", Order), ("workers", Workers), ("null_keys", NullKeys)):
        if option in chosen:
            chosen[option] = _enum_member(option, kind, chosen[option])
    settings = Settings(**chosen)
    for option in (*_POSITIVE, *_NOT_NEGATIVE):
        _check_number(option, getattr(settings, option), floor_open=option in _POSITIVE)
    if settings.handler_seconds_max is not None:
        _check_number("handler_seconds_max", settings.handler_seconds_max, floor_open=True)
    for option in _CALLABLE:
        value = getattr(settings, option)
        if value is not None and not callable(value):
            raise OptionInvalid(option=option, value=value, expected="expected a callable or None")
    for option, name, check in (
        ("delayed_retries", "DelayedRetry", _is_delay),
        ("middleware", "callable", callable),
    ):
        value = getattr(settings, option)
        if not isinstance(value, list | tuple) or not all(map(check, value)):
            raise OptionInvalid(option=option, value=value, expected=f"expected a list of {name}s")
    for option, shape in (("retry", Retry), ("restart", Backoff), ("producer", Mapping)):
        value = getattr(settings, option)
        if not isinstance(value, shape):
            raise OptionInvalid(option=option, value=value, expected=f"expected a {shape.__name__}")
    floor = max(BUFFER_RECORDS_MIN, settings.concurrency)
    if settings.records_max < floor:
        expected = f"expected at least {floor}: {BUFFER_RECORDS_MIN}, and no less than concurrency"
        raise OptionInvalid(option="buffer_records", value=settings.buffer_records, expected=expected)
    return settings


def _is_delay(value: object) -> bool:
    return isinstance(value, DelayedRetry) and bool(value.topic) and value.seconds > 0


def _enum_member(option: str, kind: type[StrEnum], value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        expected = "expected one of " + ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise OptionInvalid(option=option, value=value, expected=expected) from None


def _check_number(option: str, value: object, *, floor_open: bool) -> None:
    whole = isinstance(getattr(Settings(), option), int)
    kinds = (int,) if whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise OptionInvalid(
            option=option, value=value, expected=f"expected {'an integer' if whole else 'a number'}"
        )
    if value < 0 or (floor_open and value == 0):
        raise OptionInvalid(
            option=option, value=value, expected=f"expected {'more than 0' if floor_open else 'at least 0'}"
        )


# With librdkafka's defaults, small records leave it idle: after a full queue it waits a second before
# it fetches again. Smaller fetches interleave partitions, so that more keys are in memory.
CLIENT_DEFAULTS: Final[dict[str, Any]] = {
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 2,
    "max.partition.fetch.bytes": 128 * 1024,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 32 * 1024,
}
# Not configurable: only the offset controller commits offsets.
CLIENT_FIXED: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}


def client_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of the Kafka consumer: defaults, overridden by the user's, then the fixed ones."""
    group = properties.get("group.id")
    if not isinstance(group, str) or not group:
        raise GroupMissing
    for name, value in CLIENT_FIXED.items():
        if name in properties and str(properties[name]).lower() != str(value).lower():
            raise OptionInvalid(
                option=name, value=properties[name], expected=f"the parallel consumer needs it to be {value}"
            )
    chosen = dict(CLIENT_DEFAULTS)
    if not any(key in properties for key in ("group.protocol", "partition.assignment.strategy")):
        chosen["partition.assignment.strategy"] = "cooperative-sticky"
    return {**chosen, **properties, **CLIENT_FIXED}


def cooperative(properties: Mapping[str, Any]) -> bool:
    """Whether rebalances are incremental: they revoke single partitions, not all at once."""
    if str(properties.get("group.protocol", "classic")).lower() == "consumer":
        return True
    return "cooperative" in str(properties.get("partition.assignment.strategy", ""))


_SHARED_PREFIXES: Final = (
    "bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl", "client.", "broker.", "socket.", "metadata.",
    "oauth", "reconnect.", "allow.auto.create", "log", "api.version",
)  # fmt: skip


def producer_properties(properties: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Properties of the producer: the consumer's connection properties, idempotence, the user's own."""
    shared = {name: value for name, value in properties.items() if name.startswith(_SHARED_PREFIXES)}
    chosen = {**shared, "enable.idempotence": True, "linger.ms": 5, **settings.producer}
    if settings.transactional_id is not None:
        chosen["transactional.id"] = settings.transactional_id
        chosen.setdefault("transaction.timeout.ms", 10_000)
    return chosen
