"""What a rebuild does when its steps take long: readers never go back."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from penstock.olep.position import Position
from penstock.olep.view import ViewBatch, rebuild
from penstock.olep.view.stores.memory import MemoryViews
from tests.olep.counting_view import COUNTING

if TYPE_CHECKING:
    import pytest

    from penstock.olep.log import Log

TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"
LOG = cast("Log", SimpleNamespace(topic_id=TOPIC, partitions=1))


def write(stores: MemoryViews, generation: int, until: int) -> None:
    """Claims a generation and moves it forward."""
    store = stores.open(COUNTING, TOPIC, 1, generation=generation)
    position = store.claim()[0]
    if position < until:
        store.commit([ViewBatch(0, position, until)])


def test_a_generation_that_was_written_again_is_followed_before_the_swap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer claims a retired generation again if the swap does not come in time."""
    stores, runs = MemoryViews(), []
    write(stores, 1, 5)
    stores.serve(COUNTING.name, 1)

    class Catching:
        def __init__(self, *_: object, generation: int, **__: object) -> None:
            self.generation = generation

        def run(self, _: object, *, until: Position) -> None:
            runs.append(until.offsets[TOPIC][0])
            if len(runs) == 3:  # the old generation is retired, and this takes long
                write(stores, 1, 8)
            write(stores, self.generation, runs[-1])

    monkeypatch.setattr(rebuild, "ViewRunner", Catching)
    monkeypatch.setattr(rebuild, "end_position", lambda _: Position.at(TOPIC, 0, 5))
    done: Any = rebuild.rebuild(COUNTING, LOG, stores, threading.Event())
    assert (stores.serving(COUNTING.name), done.position) == (2, Position.at(TOPIC, 0, 8))
