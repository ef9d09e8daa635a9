"""Generations: what a node runs with, and what a restart would change."""

from __future__ import annotations

from penstock.fleet.generation import (
    Generation,
    PartDifference,
    differences,
    digest_of,
    dynamic_changes,
    generation_of,
)

PROPERTIES = {"socket.send.buffer.bytes": "4", "sasl.jaas.config": 'username="u" password="p";'}


def test_equal_settings_are_the_same_generation_in_any_order() -> None:
    one = generation_of("4.3.1", ("-Xmx384m",), PROPERTIES)
    other = generation_of("4.3.1", ("-Xmx384m",), dict(reversed(PROPERTIES.items())))

    assert one.digest == other.digest
    assert one.kafka == "4.3.1"
    assert differences(one, other) == ()


def test_every_difference_is_listed_by_its_part() -> None:
    running = generation_of("4.2.1", ("-Xmx384m",), PROPERTIES)
    desired = generation_of(
        "4.3.1", ("-Xmx512m",), PROPERTIES | {"socket.send.buffer.bytes": "8", "a": "b"}, b"ca"
    )

    assert [each.part for each in differences(running, desired)] == [
        "a", "ca", "flags", "kafka", "socket.send.buffer.bytes",
    ]  # fmt: skip
    assert PartDifference("kafka", "4.2.1", "4.3.1") in differences(running, desired)
    assert PartDifference("a", "", "b") in differences(running, desired)


def test_passwords_are_compared_and_never_shown() -> None:
    one = generation_of("4.3.1", (), PROPERTIES)
    other = generation_of("4.3.1", (), PROPERTIES | {"sasl.jaas.config": 'password="q";'})

    (changed,) = differences(one, other)

    assert changed.running.startswith("sha256:")
    assert "p" not in changed.running.removeprefix("sha256:")


def test_properties_that_change_at_run_time_are_no_part_of_a_generation() -> None:
    one = generation_of("4.3.1", (), PROPERTIES | {"num.io.threads": "4"})
    other = generation_of("4.3.1", (), PROPERTIES | {"num.io.threads": "8"})

    assert one.digest == other.digest
    changes = dynamic_changes(
        {"num.io.threads": "4", "log.retention.ms": "1"}, {"num.io.threads": "8", "a": "b"}
    )
    assert changes == {"num.io.threads": "8", "log.retention.ms": None}


def test_a_node_of_an_earlier_release_recorded_no_version() -> None:
    assert Generation({}).kafka == ""


def test_the_digest_of_a_document_does_not_depend_on_the_order_of_its_keys() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}) != digest_of({"a": 1})
