"""One contract, every store: all of a batch or nothing, epochs, and the same state everywhere."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import pytest

from penstock.model.errors.olep import LogGrown, LogReplaced, StoreFailed, StoreFenced, StoreMismatch
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
    from tests.ground.postgres import PostgresServer

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
    made: list[Store] = []

    def make(application: Application = APPLICATION, topic_id: str = TOPIC, partition: int = 0) -> Store:
        made.append(stores.open(application, topic_id, partition))
        return made[-1]

    yield make
    for each in made:
        each.close()


def batch(
    position: int, *rows: Pair, gone: tuple[tuple[str, int], ...] = (), entries: tuple[Entry, ...] = ()
) -> Batch:
    changes: dict[tuple[str, int], Pair | None] = {(row.left, row.right): row for row in rows}
    changes.update(dict.fromkeys(gone))
    outgoing = [Outgoing("out", b"key", f"value {position}".encode())]
    return Batch(position, {"pairs": changes}, {"entries": list(entries)}, outgoing)


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
    store.claim()  # by somebody who does not know
    store.claim(3)
    with pytest.raises(LogGrown, match=r"has 4 partitions, and .* was made when it had 3"):
        opened().claim(4)
    store.commit(batch(1, ROW), sent=0)
    assert store.position() == 1


def test_a_batch_of_many_rows_is_written_whole(opened: Callable[..., Store]) -> None:
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
    store.commit(batch(2, ROW._replace(note="new"), gone=(("b", 2), ("never", 0))), sent=0)
    assert [*store.scan(PAIRS)] == [("a", 1, "new", b"\x00\xff")]


def test_what_was_sent_leaves_the_outbox_with_the_next_commit(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    for position in (1, 2, 3):
        store.commit(batch(position), sent=0)
    store.commit(batch(4), sent=2)
    assert [entry.position for entry in store.unsent()] == [3, 4]


def test_a_commit_under_a_lower_epoch_is_refused_and_leaves_nothing(opened: Callable[..., Store]) -> None:
    paused, owner = opened(), opened()
    first = paused.claim()
    second = owner.claim()
    with pytest.raises(StoreFenced):
        paused.commit(batch(5, ROW), sent=0)
    assert (second.epoch > first.epoch, owner.load(PAIRS, ("a", 1)), owner.unsent()) == (True, None, [])


def test_a_position_never_goes_back(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    store.commit(batch(9), sent=0)
    with pytest.raises(StoreFenced):
        store.commit(batch(8, ROW), sent=0)


@pytest.mark.parametrize(
    "row", [ROW._replace(right=1 << 63), ROW._replace(right=None), ROW._replace(left="\ud800")], ids=str
)
def test_a_row_that_cannot_be_kept_refuses_the_whole_batch(opened: Callable[..., Store], row: Pair) -> None:
    store = opened()
    store.claim()
    with pytest.raises(RowsRefused):
        store.commit(batch(1, Pair("good", 0, None, b""), row), sent=0)
    assert ([*store.scan(PAIRS)], store.claim().position) == ([], 0)


def test_an_entry_that_exists_refuses_the_whole_batch(opened: Callable[..., Store]) -> None:
    store = opened()
    store.claim()
    store.commit(batch(1, entries=(Entry(1, "one"),)), sent=0)
    with pytest.raises(RowsRefused):
        store.commit(batch(2, ROW, entries=(Entry(1, "again"),)), sent=0)
    assert (store.load(PAIRS, ("a", 1)), store.claim().position) == (None, 1)


def test_partitions_do_not_see_one_another(opened: Callable[..., Store]) -> None:
    one, two = opened(partition=1), opened(partition=2)
    for store in (one, two):
        store.claim()
    one.commit(batch(3, ROW), sent=0)
    assert ([*two.scan(PAIRS)], two.claim().position) == ([], 0)


def test_a_store_of_a_topic_that_was_created_anew_is_refused(opened: Callable[..., Store]) -> None:
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
            batch(2, ROW._replace(note=Reason.RAISED), gone=(("b", 2),), entries=(Entry(2, "two"),)), sent=0
        )
    assert digest(store, APPLICATION) == digest(memory, APPLICATION)


def test_a_directory_that_cannot_hold_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pairs-0.sqlite").mkdir()
    with pytest.raises(StoreFailed, match=r"pairs-0\.sqlite"):
        SqliteStores(tmp_path).open(APPLICATION, TOPIC, 0)


def test_two_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    together, opened = threading.Barrier(2), []
    stores = SqliteStores(tmp_path)

    def open_all() -> None:
        for partition in range(100):
            together.wait(60)
            store = stores.open(APPLICATION, TOPIC, partition)
            opened.append(store.name)
            store.close()

    both = [threading.Thread(target=open_all) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert len(opened) == 200
