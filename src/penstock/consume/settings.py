"""Every option of the consumer, with its default, its range and what it is for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.consume.retry import Backoff, Retry
from penstock.consume.schedule import NullKeys, Order
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
    """Units are in the names; a bound is a bound, never a hint."""

    order: Order = Order.KEY
    concurrency: int = 100  # records handled at once
    workers: Workers = Workers.AUTO
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    null_keys: NullKeys = NullKeys.UNORDERED

    commit_records: int = 10_000  # commit after so many finished records …
    commit_seconds: float = 1.0  # … or so much time, whichever is first
    exposure_records: int = (
        0  # most records that a kill can make run twice; 0: 2 × commit_records + concurrency
    )
    buffer_records: int = 0  # most records in memory; 0: 20 × concurrency, at least 50,000
    buffer_bytes: int = 64 * MEBIBYTE  # most bytes of keys and values in memory

    retry: Retry = field(default_factory=Retry)
    dead_letter_topic: str | None = None
    filter: Callable[[Record], bool] | None = None
    key_deserializer: Callable[[bytes], Any] | None = None
    value_deserializer: Callable[[bytes], Any] | None = None
    handler_seconds_max: float | None = None  # a handler that takes longer is cancelled and has failed
    stuck_seconds: float = 30.0  # from then on a running handler is reported

    transactional_id: str | None = None  # set: outputs and offsets are one transaction
    transaction_seconds: float = 0.1
    producer: Mapping[str, Any] = field(default_factory=dict)  # further properties for the producer

    revoke_seconds: float = 5.0  # how long a rebalance waits for running handlers
    drain_seconds: float = 30.0  # how long stop() waits for them
    blocked_seconds: float = 5.0  # the event loop standing still so long is reported
    restart: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))

    client: Callable[[dict[str, Any]], Any] | None = None  # makes the Kafka consumer; default confluent_kafka
    producer_client: Callable[[dict[str, Any]], Any] | None = None

    @property
    def exposure(self) -> int:
        return self.exposure_records or 2 * self.commit_records + self.concurrency

    @property
    def records_max(self) -> int:
        return self.buffer_records or max(50_000, 20 * self.concurrency)


_POSITIVE: Final = (
    "concurrency", "processes", "commit_records", "commit_seconds", "buffer_bytes", "stuck_seconds",
    "transaction_seconds", "blocked_seconds",
)  # fmt: skip
_NOT_NEGATIVE: Final = ("exposure_records", "buffer_records", "revoke_seconds", "drain_seconds")
_CALLABLE: Final = ("filter", "key_deserializer", "value_deserializer", "client", "producer_client")


def settled(options: Mapping[str, Any]) -> Settings:
    """The options checked one by one; the first that is wrong is named."""
    known = [each.name for each in fields(Settings)]
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=3) or known
            raise OptionUnknown(option=option, near=", ".join(f"`{name}`" for name in near))
    chosen = dict(options)
    for option, kind in (("order", Order), ("workers", Workers), ("null_keys", NullKeys)):
        if option in chosen:
            chosen[option] = _member(option, kind, chosen[option])
    settings = Settings(**chosen)
    for option in (*_POSITIVE, *_NOT_NEGATIVE):
        _check_number(option, getattr(settings, option), floor_open=option in _POSITIVE)
    if settings.handler_seconds_max is not None:
        _check_number("handler_seconds_max", settings.handler_seconds_max, floor_open=True)
    for option in _CALLABLE:
        value = getattr(settings, option)
        if value is not None and not callable(value):
            raise OptionInvalid(option=option, value=value, expected="expected a callable or None")
    for option, shape in (("retry", Retry), ("restart", Backoff), ("producer", Mapping)):
        value = getattr(settings, option)
        if not isinstance(value, shape):
            raise OptionInvalid(option=option, value=value, expected=f"expected a {shape.__name__}")
    floor = max(BUFFER_RECORDS_MIN, settings.concurrency)
    if settings.records_max < floor:
        expected = f"expected at least {floor}: {BUFFER_RECORDS_MIN}, and no less than concurrency"
        raise OptionInvalid(option="buffer_records", value=settings.buffer_records, expected=expected)
    return settings


def _member(option: str, kind: type[StrEnum], value: object) -> StrEnum:
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


# librdkafka's own defaults idle on small records: after a full queue it waits a second before it fetches
# again. A smaller fetch per partition interleaves partitions, so that the window holds more keys.
CLIENT_DEFAULTS: Final[dict[str, Any]] = {
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 2,
    "max.partition.fetch.bytes": 128 * 1024,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 32 * 1024,
}
# Ours to decide: offsets are committed by the offset controller and nobody else.
CLIENT_FIXED: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}


def client_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What the Kafka consumer is made with: our defaults, the user's wishes, and what must be."""
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
    """Whether partitions come and go one by one, or all at once."""
    if str(properties.get("group.protocol", "classic")).lower() == "consumer":
        return True
    return "cooperative" in str(properties.get("partition.assignment.strategy", ""))


_SHARED_PREFIXES: Final = (
    "bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl", "client.", "broker.", "socket.", "metadata.",
    "oauth", "reconnect.", "allow.auto.create", "log", "api.version",
)  # fmt: skip


def producer_properties(properties: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The consumer's connection properties, idempotence, and whatever the user adds."""
    shared = {name: value for name, value in properties.items() if name.startswith(_SHARED_PREFIXES)}
    chosen = {**shared, "enable.idempotence": True, "linger.ms": 5, **settings.producer}
    if settings.transactional_id is not None:
        chosen["transactional.id"] = settings.transactional_id
        chosen.setdefault("transaction.timeout.ms", 10_000)
    return chosen
