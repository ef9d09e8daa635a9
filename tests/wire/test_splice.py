"""Splicing changes exactly the names, and no other byte, however the input is cut."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors.plans import ResponseRefused
from penstock.wire.codegen import whole
from penstock.wire.definitions import load
from penstock.wire.frames import decode_request, decode_response
from penstock.wire.names import Names
from penstock.wire.plans import Direction, Plan, surface
from penstock.wire.splice import Limits, Program, Requests, Responses, program
from tests.harness.splice_reference import (
    ALL_KINDS,
    Dropped,
    Inward,
    Outward,
    Recorder,
    frame,
    random_body,
    random_frame,
    renamed,
    spliced,
)

NEVER_STREAM = Limits(whole_bytes_max=2**30)
PLANS: dict[str, list[Plan]] = {}
for _plan in surface(load()):
    PLANS.setdefault(_plan.message, []).append(_plan)

seeds = st.integers(min_value=0, max_value=2**63)  # of a generator that is much faster than draws
pieces_of = (1, 2, 3, 7, 64, 700, 5000)


def program_of(plan: Plan, *, observed: bool = False) -> Program:
    return program(plan.api_key, plan.version, plan.direction, ALL_KINDS, observed=observed)


def decoded(plan: Plan, data: bytes) -> Any:
    if plan.direction is Direction.REQUEST:
        return decode_request(data[4:])
    return decode_response(plan.api, plan.version, data[4:])


def cut(random: Random, data: bytes) -> list[bytes]:
    pieces, start = [], 0
    while start < len(data):
        size = random.choice(pieces_of)
        pieces.append(data[start : start + size])
        start += size
    return pieces


@pytest.mark.parametrize("message", PLANS)
@settings(max_examples=10)
@given(seed=seeds)
def test_splicing_equals_decoding_renaming_and_encoding(message: str, seed: int) -> None:
    random = Random(seed)
    plan = random.choice(PLANS[message])
    names = random.choice((Outward(), Inward()))
    body = random_body(random, plan)
    sent = frame(Random(seed), plan, body)

    out, recorder = spliced(program_of(plan), names, [sent], NEVER_STREAM)

    try:
        expected = frame(Random(seed), plan, renamed(plan, body, names))
    except Dropped:
        assert out == b""
        assert recorder.refusals[0][0] == sent[4:]
    else:
        # A tagged array stays when all of its elements are omitted; the codec would not write it.
        assert out == expected or (len(out) > len(expected) and decoded(plan, out) == decoded(plan, expected))
        assert recorder.ended == [None]


class Slicing(Recorder):
    """Counts slices."""

    slices = 0

    def sliced(self) -> None:
        self.slices += 1


@pytest.mark.parametrize("message", [message for message in PLANS if message.endswith("Response")])
def test_slices_equal_the_whole(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "SLICE_ELEMENTS", 0)  # after each element
    plan = PLANS[message][-1]
    for seed in range(20):
        sent = random_frame(Random(seed), plan)
        at_once, recorder = spliced(program_of(plan), Inward(), [sent], NEVER_STREAM)
        handler = Slicing(Program(plan, ALL_KINDS))
        splicer = Responses(handler, Inward(), Limits(whole_bytes_max=2**30 if plan.streams else 0))
        splicer.slice_work = 1
        out: list[Any] = []
        try:
            splicer.feed(sent[:9], out)
            splicer.feed(sent[9:] + sent, out)
            done = 0
            while done < handler.slices:
                done = handler.slices
                splicer.proceed(out)
        except ResponseRefused:
            assert recorder.refusals
            continue

        assert b"".join(map(bytes, out)) == at_once * 2
        assert len(handler.ended) == (0 if recorder.refusals else 2)


@pytest.mark.parametrize("message", PLANS)
@settings(max_examples=4)
@given(seed=seeds)
def test_renaming_inward_inverts_renaming_outward(message: str, seed: int) -> None:
    random = Random(seed)
    plan = random.choice(PLANS[message])
    sent = random_frame(random, plan)

    there, _ = spliced(program_of(plan), Outward(), [sent], NEVER_STREAM)
    back, recorder = spliced(program_of(plan), Inward(), [there], NEVER_STREAM)

    assert not recorder.refusals
    assert back == sent


@pytest.mark.parametrize("message", PLANS)
@settings(max_examples=3)
@given(seed=seeds)
def test_a_program_without_kinds_changes_nothing(message: str, seed: int) -> None:
    random = Random(seed)
    plan = random.choice(PLANS[message])
    sent = random_frame(random, plan)
    unchanging = program(plan.api_key, plan.version, plan.direction, frozenset())

    out, _ = spliced(unchanging, Names(), [sent], NEVER_STREAM)

    assert out == sent


@pytest.mark.parametrize("message", PLANS)
def test_bytes_that_arrive_one_by_one_give_the_same_output(message: str) -> None:
    random = Random(message)
    for plan in PLANS[message]:
        sent = random_frame(random, plan)
        names = Outward()

        at_once, _ = spliced(program_of(plan), names, [sent])
        trickled, _ = spliced(program_of(plan), names, [sent[i : i + 1] for i in range(len(sent))])

        assert trickled == at_once


@pytest.mark.parametrize("message", PLANS)
def test_a_small_frame_split_at_any_position_gives_the_same_output(message: str) -> None:
    plan = PLANS[message][-1]
    random = Random(message)
    sent = min((random_frame(random, plan) for _ in range(30)), key=lambda one: abs(len(one) - 120))
    names = Outward()
    at_once, _ = spliced(program_of(plan), names, [sent])

    for position in range(1, len(sent)):
        split, _ = spliced(program_of(plan), names, [sent[:position], sent[position:]])
        assert split == at_once


@settings(max_examples=60)
@given(seed=seeds, whole=st.sampled_from((0, 300, 32 * 1024)))
def test_pipelined_requests_give_the_same_output_however_they_are_cut(seed: int, whole: int) -> None:
    random = Random(seed)
    limits = Limits(whole_bytes_max=whole)
    requests = [plans for message, plans in PLANS.items() if message.endswith("Request")]
    chosen = [random.choice(random.choice(requests)) for _ in range(random.randrange(1, 7))]
    produce = random.choice(PLANS["ProduceRequest"])
    chosen.insert(random.randrange(len(chosen) + 1), produce)
    frames = [random_frame(random, plan) for plan in chosen]
    alone = b"".join(
        spliced(program_of(plan), Outward(), [one], limits)[0] for plan, one in zip(chosen, frames)
    )
    handler = ByHead()

    out = fed(Requests(handler, Outward(), limits), cut(random, b"".join(frames)))

    assert out == alone
    assert handler.requests == [(plan.api_key, plan.version) for plan in chosen]
    assert handler.ended == len(chosen)


@settings(max_examples=60)
@given(seed=seeds, whole=st.sampled_from((0, 300, 32 * 1024)))
def test_pipelined_responses_give_the_same_output_however_they_are_cut(seed: int, whole: int) -> None:
    random = Random(seed)
    limits = Limits(whole_bytes_max=whole)
    responses = [plans for message, plans in PLANS.items() if message.endswith("Response")]
    chosen = [random.choice(random.choice(responses)) for _ in range(random.randrange(1, 7))]
    chosen.insert(random.randrange(len(chosen) + 1), random.choice(PLANS["FetchResponse"]))
    # Renamed outward first, so that every name is the tenant's and none is refused in a stream.
    frames = [
        spliced(program_of(plan), Outward(), [random_frame(random, plan)], NEVER_STREAM)[0] for plan in chosen
    ]
    alone = b"".join(
        spliced(program_of(plan), Inward(), [one], limits)[0] for plan, one in zip(chosen, frames)
    )
    handler = InOrder(chosen)

    out = fed(Responses(handler, Inward(), limits), cut(random, b"".join(frames)))

    assert out == alone
    assert handler.ended == len(chosen)


class ByHead:
    """Chooses the program by the head of a request, as a gateway does."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.ended = 0

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program:
        self.requests.append((api_key, version))
        return program(api_key, version, Direction.REQUEST, ALL_KINDS)

    def end(self, seen: Any) -> None:
        self.ended += 1

    def taken(self, frame: bytes) -> None:
        raise AssertionError("nothing is taken here")

    def refused(self, frame: bytes, error: Exception) -> None:
        raise error


class InOrder(ByHead):
    """Chooses the programs of responses in the order of their requests."""

    def __init__(self, plans: list[Plan]) -> None:
        super().__init__()
        self.waiting = deque(plans)

    def begin(self, *head: int) -> Program:
        return program_of(self.waiting.popleft())


def fed(splicer: Requests | Responses, pieces: list[bytes]) -> bytes:
    out: list[Any] = []
    for piece in pieces:
        splicer.feed(piece, out)
    return b"".join(map(bytes, out))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("message", PLANS)
def test_splicing_many_frames_equals_decoding_renaming_and_encoding(message: str) -> None:
    random = Random(message)
    for _ in range(500):
        plan = random.choice(PLANS[message])
        names = random.choice((Outward(), Inward()))
        body, seed = random_body(random, plan), random.random()
        sent = frame(Random(seed), plan, body)
        out, recorder = spliced(program_of(plan), names, [sent], NEVER_STREAM)
        try:
            expected = frame(Random(seed), plan, renamed(plan, body, names))
        except Dropped:
            assert recorder.refusals
        else:
            assert out == expected or decoded(plan, out) == decoded(plan, expected)
