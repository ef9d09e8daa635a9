"""A bank of real processes on a real Kafka, for tests that kill them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg

from examples.payments.load import Load, account
from examples.payments.settings import Settings
from penstock.model.errors.olep import LogMissing
from penstock.model.fault_points import FAULT_VARIABLE
from penstock.olep.event import request
from penstock.olep.executor import Executor, Tuning
from penstock.olep.log import Appender, create_log, end_position, open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.olep.application import Application
    from penstock.olep.log import Log
    from penstock.olep.position import Position
    from penstock.olep.state_snapshot import StateSnapshots
    from penstock.olep.store import Stores
    from tests.harness.postgres import PostgresServer

ROOT = Path(__file__).resolve().parent.parent.parent


class Process:
    """One process of the bank, started with `python -m examples.payments`."""

    def __init__(self, *words: str, fault: str | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        environment.pop(FAULT_VARIABLE, None)
        if fault is not None:
            environment[FAULT_VARIABLE] = fault
        self.words = words
        command = [sys.executable, "-m", "examples.payments", *words]
        self.popen = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def running(self) -> bool:
        return self.popen.poll() is None

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit status, once it has ended."""
        return self.popen.wait(seconds)

    def paused(self) -> bool:
        """Whether it has sent itself SIGSTOP."""
        stat = Path(f"/proc/{self.popen.pid}/stat").read_text(encoding="utf-8")
        return stat.rsplit(")", 1)[1].split()[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self) -> str:
        """kill -9 if it still runs; returns its output."""
        if self.running():
            self.popen.send_signal(signal.SIGKILL)
        return self.popen.communicate(timeout=60)[0].decode(errors="replace")


class InThread:
    """Runs something in a thread of this process until it is stopped."""

    def __init__(self, run: Callable[[threading.Event], object]) -> None:
        self._work = run
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "it does not stop"

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work(self._stopping)
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            self.failure = error


class RunningExecutor(InThread):
    """An executor in a thread of this process."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor.run)
        self.executor = executor


def executor(
    application: Application,
    log: Log,
    stores: Stores,
    *,
    member: str | None = None,
    logs: tuple[Log, ...] = (),
    snapshots: StateSnapshots | None = None,
    **tuning: Any,
) -> Executor:
    client = {} if member is None else {"group.instance.id": member}
    group = f"{log.topic}.{application.name}"
    keys = {"group_seconds": 0.1, "batch_max": 10, **tuning}
    return Executor(
        application,
        log,
        stores,
        logs=logs,
        group=group,
        tuning=Tuning(**keys),
        client=client,
        snapshots=snapshots,
    )


class BankHarness:
    """A bank's topics and home directory, and the processes that a test starts on them."""

    def __init__(self, home: Path, config: Mapping[str, Any], name: str, **keys: Any) -> None:
        keys = {"partitions": 3, "batch_max": 10, "fee": 1, **keys}
        self.settings = Settings(
            str(home), dict(config), accounts=f"{name}.accounts", notices=f"{name}.notices", **keys
        )
        self.settings.create_logs()
        self.settings.save()
        self.processes: list[Process] = []

    def move_to(self, server: PostgresServer) -> None:
        """Keeps state in an empty database instead of in files."""
        with psycopg.connect(server.dsn, autocommit=True) as db:
            db.execute('drop schema if exists "bank" cascade')
        self.settings = replace(self.settings, postgres=server.dsn)
        self.settings.save()

    def start(self, *words: str, fault: str | None = None) -> Process:
        self.processes.append(Process(words[0], "--home", self.settings.home, *words[1:], fault=fault))
        return self.processes[-1]

    def executing(self, **keys: Any) -> RunningExecutor:
        """An executor of the bank in this process, by default as the static member `only`."""
        log, bank = self.settings.accounts_log(), self.settings.application
        return RunningExecutor(executor(bank, log, self.settings.stores, **{"member": "only", **keys}))

    def append(self, load: Load, count: int, seed: int | str) -> None:
        """Appends accounts and payments between them to the log, without waiting for outcomes."""
        dice, load = random.Random(seed), replace(load, label=f"r{seed}")
        appender = Appender(self.settings.accounts_log())
        terms = {"deposit": 5000, "overdraft": 500, "ceiling": 9000}
        for number in range(load.accounts):
            appender.submit(account(number), request(f"open-{number}", "account.open", terms, time=0))
        for number in range(count):
            key, event = load.payment(number, dice)
            for _ in range(2 if dice.random() < load.repeats else 1):
                appender.submit(key, event)
        assert appender.flush() == 0

    def end(self) -> None:
        for process in self.processes:
            if process.running():
                process.signal(signal.SIGCONT)
            process.end()


def recreated(log: Log) -> Log:
    """Recreates a deleted topic; waits for brokers that still report the old one."""
    new = log

    def is_new() -> bool:
        nonlocal new
        try:
            create_log(log.config, log.topic, log.partitions)
            new = open_log(log.config, log.topic, name=log.name)
        except LogMissing:
            return False
        return new.topic_id != log.topic_id

    wait_for(is_new, "the new topic")
    return new


def wait_until_reached(
    log: Log, position: Callable[[], Position], *, until: Position | None = None, timeout: float = 60.0
) -> None:
    """Waits until `position()` covers `until`, by default the current end of the log."""
    target = until or end_position(log)
    wait_for(lambda: position().covers(target), f"{target} to be reached", timeout)


def all_acknowledged(executor: Executor) -> bool:
    return not any(task.unacknowledged for task in executor.tasks())


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
