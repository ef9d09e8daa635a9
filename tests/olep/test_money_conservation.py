"""Money is conserved in every interleaving that hypothesis generates."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.payments.bank import Bank
from examples.payments.findings import Books, findings
from tests.olep.memory_cluster import MemoryCluster

ACCOUNTS = ("ann", "bob", "cy", "dot", "unopened", "fees")
PARTITIONS = 3

task = st.integers(0, PARTITIONS - 1)
count = st.integers(1, 4)
payment = st.tuples(
    st.just("pay"),
    st.integers(0, 30).map("r-{}".format),  # few ids, so that requests repeat
    st.sampled_from(["payment.requested", "payment.offered"]),
    st.sampled_from(ACCOUNTS),
    st.sampled_from(ACCOUNTS),
    st.integers(-5, 120),
)
action = st.one_of(
    payment,
    payment,
    st.tuples(st.sampled_from(["step", "send", "die"]), task, count),
    st.tuples(st.sampled_from(["crash", "remember", "roll-back"]), task),
)


def opened(cluster: MemoryCluster) -> MemoryCluster:
    for name, ceiling in (("ann", None), ("bob", 150), ("cy", None), ("dot", 60)):
        cluster.request(
            f"open-{name}", "account.open", name, {"deposit": 100, "overdraft": 30, "ceiling": ceiling}
        )
    return cluster


def act(cluster: MemoryCluster, action: tuple[object, ...]) -> None:
    match action:
        case ("pay", str(request_id), str(kind), str(source), str(to), int(amount)):
            # Callers keep request ids unique, so an id belongs to one account.
            cluster.request(f"{request_id}-{source}", kind, source, {"to": to, "amount": amount})
        case ("step", int(task), int(count)):
            cluster.tasks[task].step(count)
        case ("send", int(task), int(count)):
            cluster.tasks[task].send(count)
        case ("die", int(task), int(count)):
            cluster.tasks[task].die_before_commit(count)
        case ("crash", int(task)):
            cluster.tasks[task].start()
        case ("remember", int(task)):
            cluster.tasks[task].remember()
        case ("roll-back", int(task)):
            cluster.tasks[task].roll_back()
        case _:
            raise AssertionError(action)


def books(cluster: MemoryCluster) -> Books:
    all_books = Books()
    for task in cluster.tasks:
        all_books.add(task.store)
    return all_books


def wrong(cluster: MemoryCluster) -> list[str]:
    cluster.settle()
    problems = findings(cluster.events(), books(cluster))
    if cluster.digests() != cluster.replayed():
        problems.append("the state differs from the replayed log")
    return problems


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(action, max_size=80))
def test_no_interleaving_of_crashes_repeats_and_rollbacks_loses_or_doubles_a_cent(
    actions: list[tuple[object, ...]],
) -> None:
    cluster = opened(MemoryCluster(Bank(fee=1).application()))
    for each in actions:
        act(cluster, each)
    assert wrong(cluster) == []
