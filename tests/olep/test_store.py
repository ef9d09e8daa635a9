"""The contract of every store: atomic batches, epochs, and the same state everywhere."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from penstock.model.errors.olep import (
    LogGrown,
    LogReplaced,
    StoreFailed,
    StoreFenced,
    StoreMismatch,
    StoreUnavailable,
)
from penstock.olep.application import Application, Reason
from penstock.olep.fold import Batch, Outgoing
from penstock.olep.store import RowsRefused, digest
from penstock.olep.store.memory import MemoryStore
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.olep.store import Store, Stores
    from tests.harness.postgres import PostgresServer

TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"
OTHER_TOPIC = "BAAAAAAAAAAAAAAAAAAAAA"


class Pair(NamedTuple):
    left: str
    right: int
    note: str | None
    blob: bytes


class Entry(NamedTuple):
    number: int
    text: str


PAIRS = Table("pairs", Pair, key=2)
ENTRIES = Table("entries", Entry, append_only=True)
APPLICATION = Application("pairs", lambda state, event: ((), ()), (PAIRS, ENTRIES), handles={})
WIDER = Application("pairs", lambda state, event: ((), ()), (PAIRS,), handles={})


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "sqlite":
        return SqliteStores(tmp_path)
    import psycopg

    from penstock.olep.store.postgres import PostgresStores

    server: PostgresServer = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute('drop schema if exists "pairs" cascade')
    return PostgresStores(server.dsn)


@pytest.fixture
def opened(stores: Stores) -> Iterator[Callable[..., Store]]:
    stores_opened: list[Store] = []

    def open_store(
        application: Application = APPLICATION, topic_id: str = TOPIC, partition: int = 0
    ) -> Store:
        stores_opened.append(stores.open(application, topic_id, partition))
        return stores_opened[-1]

    yield open_store
    for each in stores_opened:
        each.close()


def batch(
    position: int,
    *rows: Pair,
    start: int = 0,
    removed: tuple[tuple[str, int], ...] = (),
    entries: tuple[Entry, ...] = (),
) -> Batch:
    changes: dict[Any, tuple[Any, ...] | None] = {(row.left, row.right): row for row in rows}
    changes.update(dict.fromkeys(removed))
    outgoing = [Outgoing("out", b"key", f"value {position}".encode())]
    return Batch(start, position, {"pairs": changes}, {"entries": list(entries)}, outgoing)


ROW = Pair("a", 1, None, b"\x00\xff")


def test_a_committed_batch_is_there_when_the_store_is_opened_again(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    store.commit(batch(7, ROW, entries=(Entry(1, "one"),)), sent=0)
    again = opened()
    assert (again.claim().position, again.load(PAIRS, ("a", 1)), [*again.scan(ENTRIES)], again.unsent()) == (
        7,
        tuple(ROW),
        [(1, "one")],
        [(7, [Outgoing("out", b"key", b"value 7")])],
    )


def test_a_store_refuses_a_log_that_has_grown_and_keeps_its_owner(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()  # without the number of partitions
    store.claim(3)
    with pytest.raises(LogGrown, match=r"has 4 partitions, and .* was created when it had 3"):
        opened().claim(4)
    store.commit(batch(1, ROW), sent=0)
    assert store.position() == 1


def test_a_batch_of_many_rows_is_written_completely(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    rows = [ROW._replace(right=number) for number in range(77)]
    entries = tuple(Entry(number, "x") for number in range(111))
    store.commit(batch(1, *rows, entries=entries), sent=0)
    assert (sorted(store.scan(PAIRS)), sorted(store.scan(ENTRIES))) == (sorted(rows), sorted(entries))


def test_rows_are_replaced_and_removed_by_key(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    store.commit(batch(1, ROW, Pair("b", 2, "x", b"")), sent=0)
    store.commit(batch(2, ROW._replace(note="new"), start=1, removed=(("b", 2), ("never", 0))), sent=0)
    assert [*store.scan(PAIRS)] == [("a", 1, "new", b"\x00\xff")]


def test_sent_events_leave_the_outbox_with_the_next_commit(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    for position in (1, 2, 3):
        store.commit(batch(position, start=position - 1), sent=0)
    store.commit(batch(4, start=3), sent=2)
    assert [entry.position for entry in store.unsent()] == [3, 4]


def test_a_commit_under_a_lower_epoch_is_refused_and_leaves_nothing(opened: Callable[..., Store]) -> None:
    paused, owner = opened(), opened()
    first = paused.claim()
    second = owner.claim()
    with pytest.raises(StoreFenced):
        paused.commit(batch(5, ROW), sent=0)
    assert (second.epoch > first.epoch, owner.load(PAIRS, ("a", 1)), owner.unsent()) == (True, None, [])


@pytest.mark.parametrize("at", [8, 12], ids=["ahead", "rolled-back"])
def test_a_batch_that_does_not_start_where_the_store_is_changes_nothing(
    opened: Callable[..., Store], at: int
) -> None:
    """A store that a failover or a restored file rolled back must not skip what is between."""
    store = opened()
    store.claim()
    store.commit(batch(9), sent=0)
    with pytest.raises(StoreFenced, match=f"at position 9, and this executor epoch 1 at position {at}"):
        store.commit(batch(14, ROW, start=at), sent=0)
    assert (store.position(), [*store.scan(PAIRS)], len(store.unsent())) == (9, [], 1)


@pytest.mark.parametrize(
    "row",
    [
        ROW._replace(right=1 << 63),
        ROW._replace(right=cast("Any", None)),
        ROW._replace(right=cast("Any", 1j)),
        ROW._replace(left="\ud800"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_stored_refuses_the_whole_batch(opened: Callable[..., Store], row: Pair) -> None:
    store = opened()
    store.claim()
    with pytest.raises(RowsRefused):
        store.commit(batch(1, Pair("good", 0, None, b""), row), sent=0)
    assert ([*store.scan(PAIRS)], store.claim().position) == ([], 0)


def test_an_existing_append_only_row_refuses_the_whole_batch(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    store.commit(batch(1, entries=(Entry(1, "one"),)), sent=0)
    with pytest.raises(RowsRefused):
        store.commit(batch(2, ROW, start=1, entries=(Entry(1, "again"),)), sent=0)
    assert (store.load(PAIRS, ("a", 1)), store.claim().position) == (None, 1)


def test_partitions_do_not_see_one_another(opened: Callable[..., Store]) -> None:
    one, two = opened(partition=1), opened(partition=2)
    for store in (one, two):
        store.claim()
    one.commit(batch(3, ROW), sent=0)
    assert ([*two.scan(PAIRS)], two.claim().position) == ([], 0)


def test_a_store_of_a_recreated_topic_is_refused(opened: Callable[..., Store]) -> None:
    opened().claim()
    with pytest.raises(LogReplaced):
        opened(topic_id=OTHER_TOPIC)


def test_a_store_made_for_other_tables_is_refused(opened: Callable[..., Store]) -> None:
    opened().claim()
    with pytest.raises(StoreMismatch):
        opened(application=WIDER)


def test_every_store_holds_the_same_state_as_memory(opened: Callable[..., Store]) -> None:
    store, memory = opened(), MemoryStore(APPLICATION)
    for each in (store, memory):
        each.claim()
        each.commit(batch(1, ROW, Pair("b", 2, "x", b""), entries=(Entry(1, "one"),)), sent=0)
        each.commit(
            batch(
                2, ROW._replace(note=Reason.RAISED), start=1, removed=(("b", 2),), entries=(Entry(2, "two"),)
            ),
            sent=0,
        )
    assert digest(store, APPLICATION) == digest(memory, APPLICATION)


def test_a_file_that_cannot_be_opened_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "pairs-0.sqlite").mkdir()
    with pytest.raises(StoreFailed, match=r"pairs-0\.sqlite"):
        SqliteStores(tmp_path).open(APPLICATION, TOPIC, 0)


def test_every_failed_read_of_a_file_names_it(tmp_path: Path) -> None:
    store = SqliteStores(tmp_path).open(APPLICATION, TOPIC, 0)
    with sqlite3.connect(store.path) as damaging:
        for name in (ENTRIES.name, "olep_meta", "olep_outbox"):
            damaging.execute(f'drop table "{name}"')
    reads: list[Callable[[], object]] = [
        lambda: store.load(ENTRIES, 1), lambda: store.scan(ENTRIES), store.position, store.unsent
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(StoreFailed, match=r"pairs-0\.sqlite"):
            read()


def test_a_postgres_that_is_down_is_unavailable() -> None:
    from penstock.olep.store.postgres import PostgresStores

    with pytest.raises(StoreUnavailable):
        PostgresStores("host=127.0.0.1 port=1 connect_timeout=5").open(APPLICATION, TOPIC, 0)


def test_a_connection_that_is_cut_is_unavailable_and_a_wrong_statement_is_not(
    postgres: PostgresServer,
) -> None:
    import psycopg

    from penstock.olep.store.postgres import PostgresStores

    store = PostgresStores(postgres.dsn).open(APPLICATION, TOPIC, 7)
    store.claim()
    with pytest.raises(StoreFailed, match="does not exist") as failed:
        store.load(Table("missing", Entry), 1)
    assert not isinstance(failed.value, StoreUnavailable)
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
    with pytest.raises(StoreUnavailable):
        store.load(ENTRIES, 1)
    with pytest.raises(StoreUnavailable):
        store.commit(batch(1), sent=0)


def test_two_threads_can_open_a_new_file_at_once(tmp_path: Path) -> None:
    barrier, opened = threading.Barrier(2), []
    stores = SqliteStores(tmp_path)

    def open_all() -> None:
        for partition in range(100):
            barrier.wait(60)
            store = stores.open(APPLICATION, TOPIC, partition)
            opened.append(store.name)
            store.close()

    both = [threading.Thread(target=open_all) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert len(opened) == 200
