"""The log on a real Kafka: appending, reading, markers, and topics that are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.model.errors.olep import AppendUnknown, LogMissing, LogUnavailable, TokenForeign
from penstock.olep import log as logs
from penstock.olep.event import Record, request
from penstock.olep.log import (
    Appender,
    create_log,
    end_position,
    open_log,
    position_at_time,
    read,
    start_position,
)
from penstock.olep.partitioner import partition_of
from penstock.olep.position import Position
from tests.olep.bank_harness import recreated, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.olep.log import Log
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


def appended(log: Log, *keys: str) -> list[Position]:
    appender = Appender(log)
    return [appender.append(key, request(f"{key}-{n}", "t", {}, time=0)) for n, key in enumerate(keys)]


def keys_of(log: Log, **bounds: Any) -> list[str]:
    return [record.key.decode() for _, record in read(log, **bounds) if record.key]


def test_an_append_returns_the_position_right_after_it(log: Log) -> None:
    first, second = appended(log, "a", "a")
    assert keys_of(log, start=first, until=second) == ["a"]
    assert end_position(log).covers(second)


def test_reading_up_to_a_token_gives_the_records_before_it(log: Log) -> None:
    appended(log, "a", "b", "c", "d")
    token = end_position(log).token()
    appended(log, "e", "f")
    assert sorted(keys_of(log, until=Position.parse(token))) == ["a", "b", "c", "d"]


def test_a_key_has_the_partition_that_other_clients_choose(log: Log) -> None:
    producer = Producer({**log.config, "partitioner": "murmur2"})
    places: dict[Any, Any] = {}
    for number in range(50):
        producer.produce(
            log.topic, b"x", f"key-{number}", on_delivery=lambda _, m: places.update({m.key(): m.partition()})
        )
    producer.flush()
    assert places == {key: partition_of(key, 3) for key in places}
    assert len(places) == 50


def test_reading_skips_markers_and_aborted_records(log: Log, unique: Callable[[str], str]) -> None:
    producer = Producer({**log.config, "transactional.id": unique("writer")})
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(log.topic, value, partition=partition)
        producer.flush()
        end()
    # The broker responds to the end of a transaction before it writes the markers.
    wait_for(lambda: end_position(log) == Position({log.topic_id: dict.fromkeys(range(3), 4)}), "the markers")
    records = [*read(log)]
    assert records == [(partition, Record(0, None, b"kept")) for partition, _ in records]
    assert len(records) == 3


def test_an_empty_log_is_read_at_once(log: Log) -> None:
    assert [*read(log)] == []


def test_a_position_by_time_is_before_the_first_record_that_is_not_older(log: Log) -> None:
    producer = Producer(dict(log.config))
    for moment in (1000, 2000, 3000):
        producer.produce(log.topic, b"x", partition=0, timestamp=moment)
    producer.flush()
    assert [position_at_time(log, moment).of(log.topic_id, 0) for moment in (0, 2000, 2001, 9000)] == [
        0,
        1,
        2,
        3,
    ]


def test_creating_an_existing_log_changes_nothing(log: Log) -> None:
    create_log(log.config, log.topic, 9)
    assert open_log(log.config, log.topic).partitions == 3


def test_a_token_of_a_recreated_topic_is_refused(log: Log) -> None:
    (token,) = appended(log, "a")
    admin = AdminClient(dict(log.config))
    admin.delete_topics([log.topic])[log.topic].result()
    with pytest.raises(TokenForeign):
        [*read(recreated(log), until=token)]


def test_a_missing_topic_is_an_error_with_its_name(fleet: Fleet) -> None:
    with pytest.raises(LogMissing, match="never-made"):
        open_log(fleet.client_config(), "never-made")


def test_an_unreachable_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CALL_SECONDS", 0.3)
    with pytest.raises(LogUnavailable):
        open_log({"bootstrap.servers": "127.0.0.1:1"}, "any")


def test_an_append_that_times_out_is_unknown_and_not_failed(log: Log) -> None:
    elsewhere = replace(log, config={"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(AppendUnknown, match="no response within"):
        Appender(elsewhere).append("a", request("r", "t", {}, time=0), timeout=0.2)


def test_the_start_moves_when_records_are_deleted(log: Log) -> None:
    from confluent_kafka import TopicPartition

    appended(log, "a", "a")
    partition = log.partition_of("a")
    admin = AdminClient(dict(log.config))
    for future in admin.delete_records([TopicPartition(log.topic, partition, 1)]).values():
        future.result()
    assert start_position(log).of(log.topic_id, partition) == 1
