"""A member of a group as a process of its own, to be killed: `python -m tests.consume.member JSON`.

Every handler call leaves a line when it starts and when it ends; one write each, to a file opened
for appending, so that the lines of all members stand in the order in which they happened, and
none is lost by kill -9.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from random import Random
from typing import Any

from penstock.consume import Backoff, Output, ParallelConsumer, Record


def main(plan: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    journal = os.open(plan["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    random = Random(os.getpid())
    options = plan.get("options", {})
    consumer = ParallelConsumer(
        plan["properties"], topics=plan["topics"], restart=Backoff(0.2, 1.0), **options
    )
    output, wait_for, wait_value = plan.get("output"), plan.get("wait_for"), plan.get("wait_value")
    work_ms, wait_after = plan.get("work_ms", 0), plan.get("wait_after")

    def note(what: str, record: Record) -> None:
        key = (record.key or b"-").decode()
        line = f"{what} {os.getpid()} {record.partition} {record.offset} {key} {record.value.decode()}\n"
        os.write(journal, line.encode())

    @consumer.handler
    async def handle(record: Record) -> Output | None:
        note("start", record)
        value = record.value.decode()
        waits = wait_value == value or (wait_after is not None and int(value) > wait_after)
        while waits and not os.path.exists(wait_for or ""):  # noqa: ASYNC240, PTH110
            await asyncio.sleep(0.01)
        if work_ms:
            await asyncio.sleep(random.random() * work_ms / 500)
        note("end", record)
        return None if output is None else Output(output, record.value, key=record.key)

    consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
