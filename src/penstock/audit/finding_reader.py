"""Follows the findings of one cluster, and records what operators do about them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from penstock.audit.lifecycle import FindingLog, handling_of
from penstock.audit.topics import FINDINGS
from penstock.kafka.append import append
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors.audit import FindingUnknown
from penstock.model.errors.wire import OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from penstock.model.durability import FindingRecord, FindingState

NOT_READ: Final = -1


class FindingReader:
    """`read` again costs what is new."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._log = FindingLog()
        self._position = NOT_READ
        self._reading = asyncio.Lock()

    async def read(self) -> FindingLog:
        """Everything that the topic has now; nothing if no audit ran here yet."""
        async with self._reading:
            if not await self._client.leaders([FINDINGS.topic], strict=False):
                self._log, self._position = FindingLog(), NOT_READ
                return self._log
            start, end = await bounds(self._client, FINDINGS)
            if not start <= self._position <= end:  # the first time, or the topic was created again
                self._log, self._position = FindingLog(), start
            while self._position < end:
                try:
                    fetched = await read(self._client, FINDINGS, self._position)
                except OffsetOutOfRange:
                    self._log, self._position = FindingLog(), (await bounds(self._client, FINDINGS))[0]
                    continue
                for record in fetched.records:
                    self._log.apply(record.key or b"", record.value)
                self._position = max(fetched.position, self._position)
            return self._log

    async def finding(self, finding_id: str) -> FindingRecord:
        """A finding by its id or the beginning of it."""
        return one_of((await self.read()).current(), finding_id)

    async def handle(self, finding_id: str, state: FindingState, actor: str, note: str) -> FindingRecord:
        """The finding in its new state, which is stored when this returns."""
        log = await self.read()
        finding = log.findings[one_of(log.current(), finding_id).id]
        handling = handling_of(finding, state, actor, note, int(time.time() * 1000))
        await append(self._client, FINDINGS, [(handling.key, handling.to_bytes())])
        log.handlings[finding.id] = handling
        (after,) = log.current([finding])
        return after


def one_of(findings: list[FindingRecord], finding_id: str) -> FindingRecord:
    """The only finding whose id starts so."""
    matches = [each for each in findings if finding_id and each.id.startswith(finding_id)]
    if len(matches) != 1:
        raise FindingUnknown(finding=finding_id)
    return matches[0]
