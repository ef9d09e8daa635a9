"""The log on a real Kafka: appending, reading, markers, and topics that are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.model.errors.olep import AppendUnknown, LogMissing, LogUnavailable, TokenForeign
from penstock.olep import log as logs
from penstock.olep.event import Record, request
from penstock.olep.log import Appender, at_time, create_log, ends, open_log, read, starts
from penstock.olep.placing import partition_of
from penstock.olep.position import Position
from tests.olep.ground import created_anew, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.olep.log import Log
    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka


def appended(log: Log, *keys: str) -> list[Position]:
    appender = Appender(log)
    return [appender.append(key, request(f"{key}-{n}", "t", {}, time=0)) for n, key in enumerate(keys)]


def keys_of(log: Log, **bounds: Position) -> list[str]:
    return [record.key.decode() for _, record in read(log, **bounds) if record.key]


def test_an_append_answers_with_the_position_right_after_it(log: Log) -> None:
    first, second = appended(log, "a", "a")
    assert keys_of(log, start=first, until=second) == ["a"]
    assert ends(log).covers(second)


def test_what_is_read_up_to_a_token_is_what_was_there_when_it_was_made(log: Log) -> None:
    appended(log, "a", "b", "c", "d")
    token = ends(log).token()
    appended(log, "e", "f")
    assert sorted(keys_of(log, until=Position.parse(token))) == ["a", "b", "c", "d"]


def test_a_key_lives_where_other_clients_put_it(log: Log) -> None:
    producer = Producer({**log.config, "partitioner": "murmur2"})
    places: dict[bytes, int] = {}
    for number in range(50):
        producer.produce(
            log.topic, b"x", f"key-{number}", on_delivery=lambda _, m: places.update({m.key(): m.partition()})
        )
    producer.flush()
    assert places == {key: partition_of(key, 3) for key in places}
    assert len(places) == 50


def test_reading_passes_markers_and_leaves_out_what_was_aborted(
    log: Log, unique: Callable[[str], str]
) -> None:
    producer = Producer({**log.config, "transactional.id": unique("writer")})
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(log.topic, value, partition=partition)
        producer.flush()
        end()
    # An end is answered before its markers are written.
    wait_for(lambda: ends(log) == Position({log.topic_id: dict.fromkeys(range(3), 4)}), "the markers")
    found = [*read(log)]
    assert found == [(partition, Record(0, None, b"kept")) for partition, _ in found]
    assert len(found) == 3


def test_an_empty_log_is_read_at_once(log: Log) -> None:
    assert [*read(log)] == []


def test_positions_by_time_stand_before_the_first_record_that_is_not_older(log: Log) -> None:
    producer = Producer(log.config)
    for moment in (1000, 2000, 3000):
        producer.produce(log.topic, b"x", partition=0, timestamp=moment)
    producer.flush()
    assert [at_time(log, moment).of(log.topic_id, 0) for moment in (0, 2000, 2001, 9000)] == [0, 1, 2, 3]


def test_a_log_is_created_once_and_left_alone_after_that(log: Log) -> None:
    create_log(log.config, log.topic, 9)
    assert open_log(log.config, log.topic).partitions == 3


def test_a_token_of_a_topic_created_anew_is_refused(log: Log) -> None:
    (token,) = appended(log, "a")
    admin = AdminClient(dict(log.config))
    admin.delete_topics([log.topic])[log.topic].result()
    with pytest.raises(TokenForeign):
        [*read(created_anew(log), until=token)]


def test_a_topic_that_does_not_exist_is_named(fleet: Fleet) -> None:
    with pytest.raises(LogMissing, match="never-made"):
        open_log(fleet.client_config(), "never-made")


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CALL_SECONDS", 0.3)
    with pytest.raises(LogUnavailable):
        open_log({"bootstrap.servers": "127.0.0.1:1"}, "any")


def test_an_append_without_an_answer_is_unknown_and_not_failed(log: Log) -> None:
    elsewhere = replace(log, config={"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(AppendUnknown, match="no answer in"):
        Appender(elsewhere).append("a", request("r", "t", {}, time=0), timeout=0.2)


def test_the_start_moves_when_records_are_deleted(log: Log) -> None:
    from confluent_kafka import TopicPartition

    appended(log, "a", "a")
    partition = log.partition_of("a")
    admin = AdminClient(dict(log.config))
    for future in admin.delete_records([TopicPartition(log.topic, partition, 1)]).values():
        future.result()
    assert starts(log).of(log.topic_id, partition) == 1
