"""The bank's processes: executors, the notifier, and the one that starts and restarts them all."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, start_http_server

from examples.payments.spending import Spending
from penstock.olep.executor import Executor, Tuning
from penstock.olep.metrics import ExecutorCollector
from penstock.olep.pipeline import Pipeline
from penstock.olep.snapshot import DirectoryShelf, Snapshots
from penstock.olep.view.runner import ViewRunner, rare_collections, run_together

if TYPE_CHECKING:
    from examples.payments.setting import Setting
    from penstock.olep.application import Application

RESTART_SECONDS: Final = 0.5  # between the end of a process and its next start
STOP_SECONDS: Final = 20.0
LIFELINE: Final = "PAYMENTS_LIFELINE"  # the descriptor by which a process notices that its crew is gone


def stop_on_signals() -> threading.Event:
    # Executors make no cycles and have large caches: looking for garbage seldom saves 5 % of their time.
    gc.set_threshold(50_000, 20, 100)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def run_bank(
    setting: Setting,
    *,
    member: str | None = None,
    snapshots: bool = False,
    notify_above: int | None = None,
    metrics_port: int | None = None,
) -> None:
    """One executor of the bank; with `notify_above` the notifier too, as the next stage in one process."""
    bank = _executor(setting, setting.bank.application(), member=member, snapshots=snapshots)
    if metrics_port is not None:
        REGISTRY.register(ExecutorCollector(bank))
        start_http_server(metrics_port, "127.0.0.1")
    if notify_above is None:
        bank.run(stop_on_signals())
    else:
        notifier = _executor(setting, Spending(notify_above).application(), member=member)
        Pipeline([bank, notifier]).run(stop_on_signals())


def run_views(setting: Setting) -> None:
    """All views of the bank, each at its own pace."""
    log = setting.accounts_log()
    runners = [ViewRunner(projection, log, stores) for projection, stores in setting.views.values()]
    with rare_collections():
        run_together(runners, stop_on_signals())


def run_spending(setting: Setting, limit: int) -> None:
    _executor(setting, Spending(limit).application()).run(stop_on_signals())


def _executor(
    setting: Setting, application: Application, *, member: str | None = None, snapshots: bool = False
) -> Executor:
    """`member` is a name that a process keeps over restarts: its partitions wait for it to come back."""
    home = Path(setting.home)
    return Executor(
        application,
        setting.accounts_log(),
        setting.stores,
        logs=[setting.notices_log()],
        group=f"{setting.accounts}.{application.name}",
        tuning=Tuning(batch_max=setting.batch_max, gather_seconds=setting.gather_seconds),
        client={} if member is None else {"group.instance.id": member},
        snapshots=Snapshots(DirectoryShelf(home / "shelf"), home / "scratch") if snapshots else None,
    )


def _soon() -> float:
    return time.monotonic() + RESTART_SECONDS


def hold_lifeline() -> None:
    """Ends this process as SIGTERM would once the crew that started it is gone, even if by kill -9.

    The crew holds the other end of a pipe and never writes to it; the kernel closes it with the crew."""
    if (found := os.environ.pop(LIFELINE, None)) is None:
        return
    descriptor = int(found)
    os.set_inheritable(descriptor, False)

    def wait() -> None:
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


class Crew:
    """Processes that are started again when they end, until all are stopped. None outlives us."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self._commands = commands
        self._lifeline, self._held = os.pipe()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._due: dict[str, float] = {}

    def look_after(self) -> list[str]:
        """Starts what should run and does not; returns the names of those."""
        started = []
        for name, command in self._commands.items():
            process = self._processes.get(name)
            if process is not None:
                if process.poll() is None or time.monotonic() < self._due.setdefault(name, _soon()):
                    continue
                del self._due[name]
            environment = {**os.environ, LIFELINE: str(self._lifeline)}
            self._processes[name] = subprocess.Popen(command, env=environment, pass_fds=(self._lifeline,))
            started.append(name)
        return started

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(self._held)
        os.close(self._lifeline)


class LocalKafka:
    """A Kafka of one node, for a bank that is given none. Its data outlives it."""

    def __init__(self, home: Path) -> None:
        self._home = str(home / "kafka")

    def start(self) -> dict[str, Any]:
        self._penstock("up", "--tiny", "--port", "0", "--detach")
        shown = self._penstock("fleet", "connect", "--client", "python", "--output", "json")
        config: dict[str, Any] = json.loads(shown)
        return config

    def stop(self) -> None:
        self._penstock("down")

    def keep(self) -> None:
        """Waits in a process of the crew, and stops this Kafka if the crew is gone and could not."""
        crew = os.getppid()
        stop_on_signals().wait()
        if os.getppid() != crew:
            self.stop()

    def _penstock(self, *words: str) -> str:
        command = [sys.executable, "-m", "penstock", *words, "--home", self._home]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(done.returncode)
        return done.stdout
