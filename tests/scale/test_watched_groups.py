from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.errors.scale import (
    BrokersUnreachable,
    GroupEmpty,
    GroupNotSampled,
    GroupUnknown,
    SamplesPending,
    TopicUnknown,
)
from penstock.scale.decision.values import GroupState, Memory, Progress, offsets
from penstock.scale.sampler.records import Sampled, Watched, decoded, encoded
from penstock.scale.watched_groups import FORGET_SECONDS, Watch, WatchedGroups
from tests.scale.scenarios import INTERVAL, T0, Scenario

METADATA = {"group": "billing", "topic": "orders"}


def watches() -> WatchedGroups:
    return WatchedGroups({"default": INTERVAL})


def sampled(number: float, by: str = "one", **changed: object) -> Sampled:
    scenario = Scenario(at=T0 + number * INTERVAL)
    given = Sampled("default", int(number), scenario.at, by, {"billing": scenario.sample()})
    return replace(given, **changed)  # type: ignore[arg-type]  # fields of Sampled


def taken(among: WatchedGroups, record: Sampled) -> Watch:
    (watch,) = among.take(record, record.at)
    return watch


def test_a_record_survives_encoding_and_decoding() -> None:
    scenario = Scenario()
    sample = scenario.sample()
    progress = replace(
        sample.progress["orders"],
        completed_beyond=offsets([1, 0, 0, 0]),
        markers=offsets([0, 2, 0, 0]),
        owners=None,
    )
    full = Sampled(
        "default", 7, sample.at, "one",
        {"billing": replace(sample, progress={"orders": progress})},
        {"other": "group"},
        {"pool": "denied"},
        {"shop/billing#1": Memory(1.0, 4, 2.0, None, 99.5, 3.0)},
    )  # fmt: skip

    assert decoded(encoded(full, sample.at + 2.5), sample.at + 2.5) == full
    watched = Watched("shop/billing", METADATA)
    assert decoded(encoded(watched, 0.0), 5.0) == watched


def test_the_clock_of_a_writer_does_not_matter() -> None:
    scenario = Scenario(at=77.0)  # on a monotonic clock
    record = Sampled("default", 1, scenario.at, "one", {"billing": scenario.sample()})

    read = decoded(encoded(record, now=77.5), T0)

    assert isinstance(read, Sampled)
    assert (read.at, read.samples["billing"].at) == (T0 - 0.5, T0 - 0.5)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"v":1}', b'{"v":2,"kind":"new"}', b'{"v":2,"kind":"sampled"}', b"\xff"]
)
def test_a_record_of_another_version_is_skipped(data: bytes) -> None:
    assert decoded(data, T0) is None


def test_there_is_one_watch_for_each_scaled_object_and_metadata() -> None:
    among = watches()
    first = among.admit("shop/billing", METADATA, 0.0)

    assert among.admit("shop/billing", dict(METADATA), 5.0) is first
    assert among.admit("shop/billing", METADATA | {"lagThreshold": "9"}, 5.0) is not first
    assert len(among) == 2


def test_watches_without_calls_expire() -> None:
    among = watches()
    old, new = among.admit("shop/a", METADATA, 0.0), among.admit("shop/b", METADATA, 100.0)

    assert among.expire(FORGET_SECONDS + 50) == [old]
    assert list(among) == [new]
    assert list(among.of_group("default", "billing")) == [new]


def counts(among: WatchedGroups, record: Sampled) -> bool:
    return bool(among.take(record, record.at))


def test_of_two_writers_at_the_same_time_the_first_counts() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)

    assert counts(among, sampled(1, by="one"))
    assert not counts(among, sampled(1.2, by="two"))
    assert not counts(among, sampled(0.8, by="two"))  # sampled before, written after
    assert counts(among, sampled(2, by="two"))
    assert not counts(among, sampled(1, by="one"))


def test_all_parts_of_a_round_count() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)

    assert counts(among, sampled(1))
    assert counts(among, sampled(1))


def test_a_wrong_clock_hides_no_samples_after_its_instance_is_replaced() -> None:
    """An instance's clock steps 50 minutes ahead, it writes, and is replaced by one with the right time."""
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)
    broker, taken_samples = T0, 0
    for clock in (0.0, 3000.0, *(10.0 * number for number in range(2, 291))):
        broker += INTERVAL
        by = "b" if broker > T0 + 2 * INTERVAL else "a"
        record = Sampled("default", int(clock), clock, by, {"billing": Scenario(at=clock).sample()})
        read = decoded(encoded(record, clock), broker)
        assert isinstance(read, Sampled)
        taken_samples += counts(among, read)

    assert taken_samples == 291
    assert watch.window.restarted_at == T0 + INTERVAL  # one history, without a break


def test_samples_count_again_after_the_brokers_clock_was_set_back() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)

    assert counts(among, sampled(1000))
    assert counts(among, sampled(640))
    assert counts(among, sampled(641))


def test_the_memory_of_the_writer_is_used() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)

    taken(among, sampled(1, memories={watch.key: Memory(requested=9)}))

    assert watch.current_verdict(T0 + INTERVAL).replicas == 9


def test_history_gives_memory_but_no_verdict() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)
    for number in range(1, 5):
        among.take(sampled(number, memories={watch.key: Memory(requested=5)}), None)
    assert watch.verdict is None
    with pytest.raises(SamplesPending):
        watch.current_verdict(T0 + 4 * INTERVAL)  # it may be old

    assert watch.remembered().requested == 5
    assert taken(among, sampled(5)).current_verdict(T0 + 5 * INTERVAL).replicas == 5


def test_before_the_first_sample_the_verdict_is_pending() -> None:
    with pytest.raises(SamplesPending):
        watches().admit("shop/billing", METADATA, 0.0).current_verdict(0.0)


def test_an_old_sample_gives_no_verdict() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)
    watch = taken(among, sampled(1))

    assert watch.current_verdict(T0 + 4 * INTERVAL).replicas == 2
    with pytest.raises(BrokersUnreachable, match="for 40 s: down"):
        watch.current_verdict(T0 + 5 * INTERVAL, "down")


def test_a_missing_group_or_topic_is_named() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)
    watch = taken(among, sampled(1, samples={}, missing={"billing": "group"}))
    with pytest.raises(GroupUnknown):
        watch.current_verdict(T0 + INTERVAL)

    taken(among, sampled(2, samples={}, missing={"billing": "orders"}))
    with pytest.raises(TopicUnknown):
        watch.current_verdict(T0 + 2 * INTERVAL)


def test_a_group_that_cannot_be_sampled_has_the_reason_and_keeps_its_last_verdict_for_a_while() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)
    failures = {"billing": "DescribeGroups denied (PEN-3021)"}
    taken(among, sampled(1, samples={}, failures=failures))
    with pytest.raises(GroupNotSampled, match="group `billing` cannot be sampled: DescribeGroups denied"):
        watch.current_verdict(T0 + INTERVAL)

    taken(among, sampled(2))
    taken(among, sampled(3, samples={}, failures=failures))

    assert watch.current_verdict(T0 + 3 * INTERVAL).replicas == 2
    with pytest.raises(GroupNotSampled):
        watch.current_verdict(T0 + 9 * INTERVAL)
    taken(among, sampled(10))
    assert watch.current_verdict(T0 + 10 * INTERVAL).replicas == 2


def test_one_missing_topic_of_several_is_named() -> None:
    among = watches()
    among.admit("shop/billing", METADATA | {"topic": "orders,refunds"}, 0.0)
    watch = taken(among, sampled(1))

    with pytest.raises(TopicUnknown, match="`refunds`"):
        watch.current_verdict(T0 + INTERVAL)


def test_an_empty_group_has_a_verdict_only_with_memory() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)
    scenario = Scenario(members=0, state=GroupState.EMPTY, at=T0 + INTERVAL)
    empty = {"billing": scenario.sample()}
    taken(among, sampled(1, samples=empty))
    with pytest.raises(GroupEmpty):
        watch.current_verdict(T0 + INTERVAL)

    scenario.at += INTERVAL
    taken(
        among, sampled(2, samples={"billing": scenario.sample()}, memories={watch.key: Memory(requested=7)})
    )

    assert watch.current_verdict(T0 + 2 * INTERVAL).replicas == 7


def test_progress_without_extras_stays_small() -> None:
    assert b"null,null,null" in encoded(
        sampled(
            1, samples={"billing": replace(Scenario().sample(), progress={"orders": Progress(offsets([1]))})}
        ),
        T0,
    )
