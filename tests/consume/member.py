"""A group member as a separate process that tests kill: `python -m tests.consume.member JSON`.

Every handler call writes a line when it starts and when it ends, each with one write to a file
opened for appending. The lines of all members are therefore in the order of events, and kill -9
loses none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from random import Random
from typing import Any

from penstock.consume import Backoff, Output, ParallelConsumer, Record, Retry


def main(plan: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    journal = os.open(plan["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    random = Random(os.getpid())
    options = dict(plan.get("options", {}))
    if "retry_attempts" in options:
        options["retry"] = Retry(attempts=options.pop("retry_attempts"))
    consumer = ParallelConsumer(
        plan["properties"], topics=plan["topics"], restart=Backoff(0.2, 1.0), **options
    )
    output: Any = plan.get("output")
    wait_for, wait_value = plan.get("wait_for"), plan.get("wait_value")
    work_ms, wait_after, bug = plan.get("work_ms", 0), plan.get("wait_after"), plan.get("bug")

    def note(what: str, record: Record) -> None:
        key = (record.key or b"-").decode()
        line = f"{what} {os.getpid()} {record.partition} {record.offset} {key} {record.value.decode()}\n"
        os.write(journal, line.encode())

    def handle_batch(batch: list[Record]) -> list[Output]:
        for record in batch:
            note("start", record)
        while not os.path.exists(wait_for or ""):  # noqa: PTH110
            time.sleep(0.01)
        for record in batch:
            note("end", record)
        return [Output(output, record.value, key=record.key) for record in batch]

    if "batch_records" in plan:
        linger = plan.get("linger_seconds", 0.0)
        consumer.batch_handler(plan["batch_records"], linger_seconds=linger)(handle_batch)
        consumer.run()
        return

    @consumer.handler
    async def handle(record: Record) -> Output | None:
        note("start", record)
        value = record.value.decode()
        waits = wait_value == value or (wait_after is not None and int(value) > wait_after)
        while waits and not os.path.exists(wait_for or ""):  # noqa: ASYNC240, PTH110
            await asyncio.sleep(0.01)
        if bug is not None and int(value) % bug == bug - 1:
            raise ValueError("the bug")
        if work_ms:
            await asyncio.sleep(random.random() * work_ms / 500)
        note("end", record)
        return None if output is None else Output(output, record.value, key=record.key)

    consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
