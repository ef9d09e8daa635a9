"""Scenarios for applications: given events, when a request, then events and state. Without Kafka.

    def test_a_payment_reaches_its_destination() -> None:
        scenario = Scenario(bank, log="accounts")
        scenario.given("ann", "paid-in", {"cents": 100})
        scenario.when("ann", "pay", {"to": "bob", "cents": 30})
        scenario.then(Emit("accounts", "bob", "paid-in", {"cents": 30}))
        assert scenario.row(ACCOUNTS, "bob") == Account("bob", 30)

It runs the fold of real executors on one partition, with every decision checked for purity. Events that the
application emits to `log` come back to it, until nothing is left to decide. `then` also compares the state
with a replay of the whole log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.olep.application import Emit
from penstock.olep.codec import JsonCodec
from penstock.olep.event import VERSION, Event, Record, derived_id, request
from penstock.olep.fold import REJECTED_EVENTS, Fold, PurityChecks, RejectedEvent, Source
from penstock.olep.store import digest
from penstock.olep.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.olep.application import Application
    from penstock.olep.codec import Codec
    from penstock.olep.fold import Batch, Outgoing
    from penstock.olep.table import Key, Row, Table

_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


class Scenario:
    """One partition of `application`, in memory. `log` is the name it uses for the log it reads."""

    def __init__(self, application: Application, *, log: str, codec: Codec | None = None) -> None:
        self.application = application
        self.emitted: list[Emit] = []  # since the last `when`, in the order they were emitted
        self._log = log
        self._codec = codec or JsonCodec()
        self._records: list[Record] = []
        self._store = MemoryStore(application)
        self._fold = self._new_fold(self._store)
        if application.version > 1:
            payload = {"application": application.name, "version": application.version}
            self.given("", VERSION, payload)

    def given(
        self, key: str, kind: str, payload: Mapping[str, Any], *, version: int = 1, time: int = 0
    ) -> None:
        """An event of the past, as another decision would have emitted it."""
        stream, number = "=given:scenario.0", len(self._records)
        event = Event(derived_id(stream, number, 0), kind, payload, version, "given", "given", time)
        self._append(key, event)

    def when(
        self,
        key: str,
        kind: str,
        payload: Mapping[str, Any],
        *,
        request_id: str | None = None,
        version: int = 1,
        time: int = 0,
    ) -> None:
        """A request. Give it the id of an earlier one to repeat that."""
        request_id = request_id or f"request-{len(self._records)}"
        self.emitted = []
        self._append(key, request(request_id, kind, payload, time=time, version=version))

    def then(self, *expected: Emit) -> None:
        """Asserts that these events were emitted since the last `when`, and that a replay has the same state.

        The replay folds the whole log as one batch, as an executor with an empty store does."""
        assert self.emitted == [*expected], f"emitted {self.emitted}, expected {[*expected]}"
        replayed = MemoryStore(self.application)
        self._process(self._new_fold(replayed), replayed, self._records)
        assert digest(replayed, self.application) == digest(self._store, self.application), (
            "the state differs from a replay of the log"
        )

    def row(self, table: Table[Row], key: Key) -> Row | None:
        values = self._store.load(table, key)
        return None if values is None else table.row_type(*values)

    def rows(self, table: Table[Row]) -> list[Row]:
        return [table.row_type(*values) for values in self._store.scan(table)]

    def rejected(self) -> list[RejectedEvent]:
        return self.rows(REJECTED_EVENTS)

    def _append(self, key: str, event: Event) -> None:
        waiting = [(key.encode(), self._codec.encode(event))]
        while waiting:
            record = Record(len(self._records), *waiting.pop(0))
            self._records.append(record)
            batch = self._process(self._fold, self._store, [record])
            self.emitted += map(self._emit, batch.outgoing)
            waiting += [(out.key, out.value) for out in batch.outgoing if out.log == self._log]

    def _process(self, fold: Fold, store: MemoryStore, records: Sequence[Record]) -> Batch:
        batch = fold.process(records, store.at)
        if batch.stopped is not None:
            raise batch.stopped
        store.commit(batch, sent=0)
        fold.committed()
        return batch

    def _new_fold(self, store: MemoryStore) -> Fold:
        store.claim()
        source = Source(self._log, _TOPIC_ID, 0)
        return Fold(self.application, source, self._codec, store, purity_checks=PurityChecks.ALWAYS)

    def _emit(self, out: Outgoing) -> Emit:
        event = self._codec.decode(out.value, out.key.decode(), 0, 0)
        return Emit(out.log, event.key, event.type, event.payload, event.version)
