from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.errors.scale import BrokersUnseen, GroupEmpty, GroupUnknown, SamplesPending, TopicUnknown
from penstock.scale.records import Sampled, Watched, decoded, encoded
from penstock.scale.values import GroupState, Memory, Progress, offsets
from penstock.scale.watches import FORGET_SECONDS, Watch, Watches, next_slot
from tests.scale.stories import INTERVAL, T0, Story

METADATA = {"group": "billing", "topic": "orders"}


def watches() -> Watches:
    return Watches({"default": INTERVAL})


def sampled(slot: int, by: str = "one", **changed: object) -> Sampled:
    story = Story(at=T0 + slot * INTERVAL)
    given = Sampled("default", slot, story.at, by, {"billing": story.sample()})
    return replace(given, **changed)  # type: ignore[arg-type]  # fields of Sampled


def taken(among: Watches, record: Sampled) -> Watch:
    (watch,) = among.take(record)
    return watch


def test_a_record_comes_back_as_it_went() -> None:
    story = Story()
    sample = story.sample()
    progress = replace(
        sample.progress["orders"], beyond=offsets([1, 0, 0, 0]), markers=offsets([0, 2, 0, 0]), owners=None
    )
    full = Sampled(
        "default", 7, sample.at, "one",
        {"billing": replace(sample, progress={"orders": progress})},
        {"other": "group"},
        {"shop/billing#1": Memory(1.0, 4, 2.0, None, 99.5, 3.0)},
    )  # fmt: skip

    assert decoded(encoded(full)) == full
    watched = Watched("shop/billing", METADATA, 5.0)
    assert decoded(encoded(watched)) == watched


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"v":2}', b'{"v":1,"kind":"new"}', b'{"v":1,"kind":"sampled"}', b"\xff"]
)
def test_a_record_of_another_version_is_passed_over(data: bytes) -> None:
    assert decoded(data) is None


def test_one_watch_for_each_wish_however_often_it_is_asked_for() -> None:
    among = watches()
    first = among.admit("shop/billing", METADATA, 0.0)

    assert among.admit("shop/billing", dict(METADATA), 5.0) is first
    assert among.admit("shop/billing", METADATA | {"lagThreshold": "9"}, 5.0) is not first
    assert len(among) == 2


def test_watches_nobody_asks_for_are_forgotten() -> None:
    among = watches()
    old, new = among.admit("shop/a", METADATA, 0.0), among.admit("shop/b", METADATA, 100.0)

    assert among.expire(FORGET_SECONDS + 50) == [old]
    assert list(among) == [new]
    assert list(among.of_group("default", "billing")) == [new]


def test_of_two_writers_in_a_slot_the_first_counts() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)

    assert list(among.take(sampled(1, by="one")))
    assert not list(among.take(sampled(1, by="two")))
    assert list(among.take(sampled(2, by="two")))
    assert not list(among.take(sampled(1, by="one")))


def test_the_writers_memory_is_taken_over() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)

    taken(among, sampled(1, memories={watch.key: Memory(asked=9)}))

    assert watch.answer(T0 + INTERVAL).replicas == 9


def test_history_is_read_without_judging_and_judged_when_asked() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)
    for slot in range(1, 5):
        list(among.take(sampled(slot, memories={watch.key: Memory(asked=5)}), judge=False))
    assert watch.verdict is None

    assert watch.answer(T0 + 4 * INTERVAL).replicas == 5


def test_before_the_first_sample_the_answer_is_pending() -> None:
    with pytest.raises(SamplesPending):
        watches().admit("shop/billing", METADATA, 0.0).answer(0.0)


def test_an_old_sample_is_no_answer() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)
    watch = taken(among, sampled(1))

    assert watch.answer(T0 + 4 * INTERVAL).replicas == 2
    with pytest.raises(BrokersUnseen, match="for 40 s: down"):
        watch.answer(T0 + 5 * INTERVAL, "down")


def test_what_is_missing_is_named() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)
    watch = taken(among, sampled(1, samples={}, missing={"billing": "group"}))
    with pytest.raises(GroupUnknown):
        watch.answer(T0 + INTERVAL)

    taken(among, sampled(2, samples={}, missing={"billing": "orders"}))
    with pytest.raises(TopicUnknown):
        watch.answer(T0 + 2 * INTERVAL)


def test_one_of_several_topics_missing_is_named() -> None:
    among = watches()
    among.admit("shop/billing", METADATA | {"topic": "orders,refunds"}, 0.0)
    watch = taken(among, sampled(1))

    with pytest.raises(TopicUnknown, match="`refunds`"):
        watch.answer(T0 + INTERVAL)


def test_an_empty_group_without_memory_is_no_answer_but_with_memory_holds() -> None:
    among = watches()
    watch = among.admit("shop/billing", METADATA, 0.0)
    story = Story(members=0, state=GroupState.EMPTY, at=T0 + INTERVAL)
    empty = {"billing": story.sample()}
    taken(among, sampled(1, samples=empty))
    with pytest.raises(GroupEmpty):
        watch.answer(T0 + INTERVAL)

    story.at += INTERVAL
    taken(among, sampled(2, samples={"billing": story.sample()}, memories={watch.key: Memory(asked=7)}))

    assert watch.answer(T0 + 2 * INTERVAL).replicas == 7


def test_progress_without_extras_stays_small() -> None:
    assert b"null,null,null" in encoded(
        sampled(
            1, samples={"billing": replace(Story().sample(), progress={"orders": Progress(offsets([1]))})}
        )
    )


def test_a_writer_whose_clock_was_set_back_goes_on() -> None:
    among = watches()
    among.admit("shop/billing", METADATA, 0.0)

    assert list(among.take(sampled(1000, by="one")))
    assert not list(among.take(sampled(700, by="two")))  # another's slow clock counts for nothing
    assert list(among.take(sampled(640, by="one")))
    assert list(among.take(sampled(641, by="one")))


@pytest.mark.parametrize(
    ("now", "last", "slot"),
    [
        (105.0, 10, 11),
        (105.0, 11, 12),  # each slot once, though a round was quick
        (155.0, 11, 16),  # a round took long: what was missed is not made up for
        (105.0, 400, 11),  # set back by an hour: not waited for
    ],
)
def test_the_next_slot(now: float, last: int, slot: int) -> None:
    assert next_slot(now, 10.0, last) == slot
