"""What is sent again, when, and what is looked up before."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kafka.refusals import check, refusal
from penstock.kafka.retry import (
    BACKOFF_SECONDS_MAX,
    Again,
    after_answer,
    after_failure,
    backoff_seconds,
    error_codes,
    is_impatient,
    is_read,
    is_repeatable,
)
from penstock.model.errors.wire import (
    BrokerUnknown,
    BrokerUnreachable,
    CallTimedOut,
    ConnectionLost,
    KafkaBusy,
    KafkaDenied,
    KafkaMissing,
    KafkaRefused,
    LoginRefused,
)
from penstock.wire.codes import Code
from penstock.wire.definitions import load

LOST = ConnectionLost(address="a:1", reason="x")
LATE = CallTimedOut(api="X", address="a:1", seconds=1)
UNREACHABLE = BrokerUnreachable(address="a:1", reason="x")
UNKNOWN_NODE = BrokerUnknown(node=1, known="none")


def topics(*codes: int) -> dict[str, Any]:
    return {"Topics": [{"Name": str(i), "ErrorCode": code} for i, code in enumerate(codes)]}


@pytest.mark.parametrize("failure", [LOST, LATE])
def test_only_what_can_be_repeated_is_sent_again_after_it_may_have_arrived(failure: Exception) -> None:
    assert after_failure("DescribeGroups", failure, 0, 0.0)
    assert after_failure("IncrementalAlterConfigs", failure, 0, 0.0)
    assert after_failure("CreateTopics", failure, 0, 0.0) is None
    assert after_failure("InitProducerId", failure, 0, 0.0) is None


def test_what_surely_did_not_arrive_is_always_sent_again_by_another_way() -> None:
    again = after_failure("CreateTopics", UNREACHABLE, 0, 0.0)

    assert again == Again(backoff_seconds(0, 0.0), renew_cluster=True, renew_route=True)


def test_a_node_that_is_not_known_yet_is_looked_for_a_few_times() -> None:
    tries = [after_failure("CreateTopics", UNKNOWN_NODE, attempt, 0.0) for attempt in range(9)]

    assert [bool(again) for again in tries] == [True, True, True, False, False, False, False, False, False]


def test_a_refused_login_is_final() -> None:
    refused = LoginRefused(address="a", user="u", mechanism="m", reason="r", offered="o")

    assert after_failure("DescribeGroups", refused, 0, 0.0) is None


@pytest.mark.parametrize(
    ("api", "answer", "again", "cluster", "route"),
    [
        ("DescribeGroups", {"Groups": [{"ErrorCode": 16}]}, True, False, True),  # NOT_COORDINATOR
        ("DescribeGroups", {"Groups": [{"ErrorCode": 14}]}, True, False, False),  # still loading
        ("DescribeGroups", {"Groups": [{"ErrorCode": 0}, {"ErrorCode": 16}]}, True, False, True),
        ("DescribeGroups", {"Groups": [{"ErrorCode": 30}]}, False, False, False),  # denied
        ("CreateTopics", topics(41, 41), True, True, True),  # NOT_CONTROLLER, all of it
        ("CreateTopics", topics(0, 41), False, False, False),  # a part was done
        ("CreateTopics", topics(7), False, False, False),  # timed out: it may be done yet
        ("IncrementalAlterConfigs", {"Responses": [{"ErrorCode": 7}]}, True, False, False),
        ("ElectLeaders", {"ErrorCode": 0, "X": [{"ErrorCode": 84}]}, False, False, False),  # not needed
        ("Metadata", topics(5), False, False, False),  # judged by the caller
    ],
)
def test_codes_decide_by_their_kind(
    api: str, answer: dict[str, Any], again: bool, cluster: bool, route: bool
) -> None:
    advice = after_answer(api, answer, 0, 0.5)

    assert (advice is not None) is again
    if advice is not None:
        assert (advice.renew_cluster, advice.renew_route) == (cluster, route)


def test_a_throttled_change_waits_as_long_as_it_is_told() -> None:
    advice = after_answer("CreateTopics", {"ThrottleTimeMs": 2500, **topics(89)}, 0, 0.0)

    assert advice is not None
    assert advice.after_seconds == 2.5


def test_what_is_missing_is_believed_after_a_few_times() -> None:
    answer = {"Topics": [{"ErrorCode": 3}]}

    tries = [after_answer("DescribeTopicPartitions", answer, attempt, 0.0) for attempt in range(5)]

    assert [again is not None for again in tries] == [True, True, True, False, False]


def test_waits_grow_up_to_a_bound_and_are_spread() -> None:
    waits = [backoff_seconds(attempt, 1.0) for attempt in range(12)]

    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_SECONDS_MAX
    assert backoff_seconds(3, 0.0) == backoff_seconds(3, 1.0) / 2


def test_codes_are_found_at_any_depth() -> None:
    answer = {"ErrorCode": 0, "Topics": [{"Partitions": [{"ErrorCode": 3}, {"ErrorCode": 0}]}]}

    assert sorted(error_codes(answer)) == [0, 3]
    assert list(error_codes({"ErrorCode": 0})) == [0]


def test_every_api_that_changes_something_is_not_a_read() -> None:
    changing = (
        "Create",
        "Delete",
        "Alter",
        "Incremental",
        "Update",
        "Unregister",
        "Write",
        "Add",
        "Elect",
        "Init",
    )
    apis = [api for api in load().apis().values() if api.startswith(changing)]

    assert not [api for api in apis if is_read(api)]
    assert not is_repeatable("CreateTopics")


def test_a_long_poll_is_left_its_time() -> None:
    assert is_impatient("DescribeGroups")
    assert not is_impatient("Fetch")
    assert not is_impatient("CreateTopics")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.TOPIC_AUTHORIZATION_FAILED, KafkaDenied),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, KafkaMissing),
        (Code.NOT_CONTROLLER, KafkaBusy),
        (Code.TOPIC_ALREADY_EXISTS, KafkaRefused),
        (9999, KafkaRefused),
    ],
)
def test_a_code_becomes_the_error_of_its_kind(code: int, error: type[Exception]) -> None:
    made = refusal("CreateTopics", code, "because", "topic 'orders'")

    assert type(made) is error
    assert str(made).startswith("topic 'orders': CreateTopics ")
    assert "(because)" in str(made)
    with pytest.raises(error):
        check("CreateTopics", code)
