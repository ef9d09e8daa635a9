"""Which requests are sent again, when, and what is looked up first."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.retry import (
    BACKOFF,
    Retry,
    after_failure,
    after_response,
    backoff_seconds,
    can_retry_when_slow,
    error_codes,
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
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code

LOST = ConnectionLost(address="a:1", reason="x")
LATE = CallTimedOut(api="X", address="a:1", seconds=1)
UNREACHABLE = BrokerUnreachable(address="a:1", reason="x")
UNKNOWN_NODE = BrokerUnknown(node=1, known="none")
# The node that did not respond may no longer be the leader or coordinator for the next request.
NOT_AGAIN = Retry(None, refresh_cluster=True, refresh_route=True)


def topics(*codes: int) -> dict[str, Any]:
    return {"Topics": [{"Name": str(i), "ErrorCode": code} for i, code in enumerate(codes)]}


@pytest.mark.parametrize("failure", [LOST, LATE])
def test_only_repeatable_requests_are_retried_after_they_may_have_arrived(failure: Exception) -> None:
    assert after_failure("DescribeGroups", failure, 0, 0.0) not in (None, NOT_AGAIN)
    assert after_failure("IncrementalAlterConfigs", failure, 0, 0.0) not in (None, NOT_AGAIN)
    assert after_failure("CreateTopics", failure, 0, 0.0) == NOT_AGAIN
    assert after_failure("InitProducerId", failure, 0, 0.0) == NOT_AGAIN


def test_a_request_that_did_not_arrive_is_retried_with_a_new_route() -> None:
    again = after_failure("CreateTopics", UNREACHABLE, 0, 0.0)

    assert again == Retry(backoff_seconds(0, 0.0), refresh_cluster=True, refresh_route=True)


def test_an_unknown_node_is_looked_up_a_few_times() -> None:
    attempts = [after_failure("CreateTopics", UNKNOWN_NODE, attempt, 0.0) for attempt in range(9)]

    assert [bool(again) for again in attempts] == [True, True, True, False, False, False, False, False, False]


def test_a_rejected_login_is_not_retried() -> None:
    refused = LoginRefused(address="a", user="u", mechanism="m", reason="r", offered="o")

    assert after_failure("DescribeGroups", refused, 0, 0.0) is None


@pytest.mark.parametrize(
    ("api", "response", "again", "cluster", "route"),
    [
        ("DescribeGroups", {"Groups": [{"ErrorCode": 16}]}, True, False, True),  # NOT_COORDINATOR
        ("DescribeGroups", {"Groups": [{"ErrorCode": 14}]}, True, False, False),  # still loading
        ("DescribeGroups", {"Groups": [{"ErrorCode": 0}, {"ErrorCode": 16}]}, True, False, True),
        ("DescribeGroups", {"Groups": [{"ErrorCode": 30}]}, False, False, False),  # denied
        ("CreateTopics", topics(41, 41), True, True, True),  # NOT_CONTROLLER, all of it
        ("CreateTopics", topics(0, 41), False, False, False),  # one item was done
        ("CreateTopics", topics(7), False, False, False),  # timed out: it may still take effect
        ("IncrementalAlterConfigs", {"Responses": [{"ErrorCode": 7}]}, True, False, False),
        ("ElectLeaders", {"ErrorCode": 0, "X": [{"ErrorCode": 84}]}, False, False, False),  # not needed
        ("Metadata", topics(5), False, False, False),  # evaluated by the caller
    ],
)
def test_error_codes_decide_about_the_retry(
    api: str, response: dict[str, Any], again: bool, cluster: bool, route: bool
) -> None:
    advice = after_response(api, response, 0, 0.5)

    assert (advice is not None) is again
    if advice is not None:
        assert (advice.refresh_cluster, advice.refresh_route) == (cluster, route)


def test_a_throttled_request_waits_for_the_throttle_time() -> None:
    advice = after_response("CreateTopics", {"ThrottleTimeMs": 2500, **topics(89)}, 0, 0.0)

    assert advice is not None
    assert advice.after_seconds == 2.5


def test_a_missing_topic_is_retried_a_few_times() -> None:
    response = {"Topics": [{"ErrorCode": 3}]}

    attempts = [after_response("DescribeTopicPartitions", response, attempt, 0.0) for attempt in range(5)]

    assert [again is not None for again in attempts] == [True, True, True, False, False]


def test_waits_grow_up_to_a_bound_and_are_spread() -> None:
    waits = [backoff_seconds(attempt, 1.0) for attempt in range(12)]

    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF.most_seconds
    assert backoff_seconds(3, 0.0) == backoff_seconds(3, 1.0) / 2


def test_error_codes_are_collected_at_any_depth() -> None:
    response = {"ErrorCode": 0, "Topics": [{"Partitions": [{"ErrorCode": 3}, {"ErrorCode": 0}]}]}

    assert sorted(error_codes(response)) == [0, 3]
    assert list(error_codes({"ErrorCode": 0})) == [0]


def test_no_api_that_changes_something_counts_as_a_read() -> None:
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


def test_long_polls_are_not_cut_short() -> None:
    assert can_retry_when_slow("DescribeGroups")
    assert not can_retry_when_slow("Fetch")
    assert not can_retry_when_slow("CreateTopics")


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
def test_an_error_code_becomes_an_error_of_its_kind(code: int, error: type[Exception]) -> None:
    broker_failure = broker_error("CreateTopics", code, "because", "topic 'orders'")

    assert type(broker_failure) is error
    assert str(broker_failure).startswith("topic 'orders': CreateTopics ")
    assert "(because)" in str(broker_failure)
    with pytest.raises(error):
        check("CreateTopics", code)
