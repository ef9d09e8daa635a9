"""Money is conserved in every interleaving that hypothesis can think of."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.payments.bank import Bank
from examples.payments.check import Books, findings
from tests.olep.world import World

ACCOUNTS = ("ann", "bob", "cy", "dot", "nobody", "fees")
PARTITIONS = 3

lane = st.integers(0, PARTITIONS - 1)
count = st.integers(1, 4)
payment = st.tuples(
    st.just("pay"),
    st.integers(0, 30).map("r-{}".format),  # few ids, so that callers repeat themselves
    st.sampled_from(["payment.requested", "payment.offered"]),
    st.sampled_from(ACCOUNTS),
    st.sampled_from(ACCOUNTS),
    st.integers(-5, 120),
)
action = st.one_of(
    payment,
    payment,
    st.tuples(st.sampled_from(["step", "send", "die"]), lane, count),
    st.tuples(st.sampled_from(["crash", "remember", "roll-back"]), lane),
)


def opened(world: World) -> World:
    for name, ceiling in (("ann", None), ("bob", 150), ("cy", None), ("dot", 60)):
        world.ask(f"open-{name}", "account.open", name, {"deposit": 100, "overdraft": 30, "ceiling": ceiling})
    return world


def act(world: World, action: tuple[object, ...]) -> None:
    match action:
        case ("pay", str(request_id), str(kind), str(source), str(to), int(amount)):
            # A request's id is the caller's to keep unique: it belongs to one account.
            world.ask(f"{request_id}-{source}", kind, source, {"to": to, "amount": amount})
        case ("step", int(lane), int(count)):
            world.lanes[lane].step(count)
        case ("send", int(lane), int(count)):
            world.lanes[lane].send(count)
        case ("die", int(lane), int(count)):
            world.lanes[lane].die_before_commit(count)
        case ("crash", int(lane)):
            world.lanes[lane].start()
        case ("remember", int(lane)):
            world.lanes[lane].remember()
        case ("roll-back", int(lane)):
            world.lanes[lane].roll_back()
        case _:
            raise AssertionError(action)


def books(world: World) -> Books:
    held = Books()
    for lane in world.lanes:
        held.add(lane.store)
    return held


def wrong(world: World) -> list[str]:
    world.settle()
    found = findings(world.events(), books(world))
    if world.digests() != world.replayed():
        found.append("the state differs from the replayed log")
    return found


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(action, max_size=80))
def test_no_interleaving_of_crashes_repeats_and_rollbacks_loses_or_doubles_a_cent(
    actions: list[tuple[object, ...]],
) -> None:
    world = opened(World(Bank(fee=1).application()))
    for each in actions:
        act(world, each)
    assert wrong(world) == []
