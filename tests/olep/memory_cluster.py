"""Executors in memory, for tests that choose every interleaving and every crash.

They run the `Fold` and `MemoryStore` that real executors run; only the log is a list. A crash has the same
effects: it loses uncommitted changes, forgets acknowledgements that were not stored, and may roll a store
back to an older commit.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from penstock.olep.codec import JsonCodec
from penstock.olep.event import Event, Record
from penstock.olep.event import request as new_request
from penstock.olep.fold import Fold, Outgoing, PurityChecks, Source
from penstock.olep.partitioner import partition_of
from penstock.olep.store import digest
from penstock.olep.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.olep.application import Application

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
CODEC = JsonCodec()


class MemoryTask:
    """One partition's executor."""

    def __init__(self, cluster: MemoryCluster, partition: int) -> None:
        self.cluster = cluster
        self.partition = partition
        self.store = MemoryStore(cluster.application, partition)
        self.older = copy.deepcopy(self.store)
        self.start()

    def start(self) -> None:
        self.position = self.store.claim().position
        source = Source(self.cluster.log, TOPIC_ID, self.partition)
        self.fold = Fold(
            self.cluster.application, source, CODEC, self.store, purity_checks=PurityChecks.NEVER
        )
        self.to_send = [(unsent.position, out) for unsent in self.store.unsent() for out in unsent.outgoing]
        self.sent = 0

    def step(self, count: int) -> None:
        records = self.cluster.records[self.partition][self.position : self.position + count]
        batch = self.fold.process(records, self.position)
        assert batch.stopped is None, batch.stopped
        self.store.commit(batch, sent=self.sent)
        self.fold.committed()
        self.position = batch.position
        self.to_send += [(batch.position, out) for out in batch.outgoing]

    def send(self, count: int) -> None:
        for position, out in self.to_send[:count]:
            self.cluster.append(out)
            # A batch is acknowledged when the last of its events is.
            self.sent = position - 1
        del self.to_send[:count]
        if not self.to_send:
            self.sent = self.position

    def die_before_commit(self, count: int) -> None:
        self.fold.process(
            self.cluster.records[self.partition][self.position : self.position + count], self.position
        )
        self.start()

    def remember(self) -> None:
        """A copy of the store as it is now, for `roll_back`."""
        self.older = copy.deepcopy(self.store)

    def roll_back(self) -> None:
        self.store = copy.deepcopy(self.older)
        self.start()


class MemoryCluster:
    def __init__(self, application: Application, partitions: int = 3, log: str = "accounts") -> None:
        self.application = application
        self.log = log
        self.records: list[list[Record]] = [[] for _ in range(partitions)]
        self.others: list[Outgoing] = []
        self.requests: set[str] = set()
        self.tasks = [MemoryTask(self, partition) for partition in range(partitions)]

    def append(self, out: Outgoing) -> None:
        if out.log != self.log:
            self.others.append(out)
            return
        records = self.records[partition_of(out.key, len(self.records))]
        records.append(Record(len(records), out.key, out.value))

    def request(
        self, request_id: str, kind: str, key: str, payload: Mapping[str, object], time: int = 0
    ) -> None:
        self.requests.add(request_id)
        event = new_request(request_id, kind, payload, time=time)
        self.append(Outgoing(self.log, key.encode(), CODEC.encode(event)))

    def settle(self) -> None:
        """Runs all tasks until nothing is left to do."""
        while any(task.to_send or task.position < len(self.records[task.partition]) for task in self.tasks):
            for task in self.tasks:
                task.step(1000)
                task.send(1000)

    def events(self) -> Iterator[Event]:
        for partition, records in enumerate(self.records):
            for record in records:
                assert record.key is not None
                assert record.value is not None
                yield CODEC.decode(record.value, record.key.decode(), partition, record.offset)

    def replayed(self, purity_checks: PurityChecks = PurityChecks.NEVER) -> list[str]:
        """The digests of a replay of the whole log, with one batch for each partition."""
        digests = []
        for partition, records in enumerate(self.records):
            store = MemoryStore(self.application, partition)
            store.claim()
            source = Source(self.log, TOPIC_ID, partition)
            batch = Fold(self.application, source, CODEC, store, purity_checks=purity_checks).process(
                records, 0
            )
            if batch.stopped is not None:
                raise batch.stopped
            store.commit(batch, sent=0)
            digests.append(digest(store, self.application))
        return digests

    def check_purity(self) -> None:
        """A replay with every decision checked for purity. Raises DecideImpure."""
        self.replayed(PurityChecks.ALWAYS)

    def digests(self) -> list[str]:
        return [digest(task.store, self.application) for task in self.tasks]
