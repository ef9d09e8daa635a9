"""A pipeline: executors over several logs, for decisions that need more than one of them.

Each stage serialises a request with respect to one log and hands on by events, so that no stage
ever waits for another. This module joins stages into one thing that runs and ends together; a
stage may just as well be a process of its own, or many.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.model.errors.olep import ApplicationInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.executor import Executor


class Pipeline:
    """Runs each stage in a thread; when one ends with an error, all are stopped and it is raised."""

    def __init__(self, stages: Sequence[Executor]) -> None:
        names = [stage.application.name for stage in stages]
        if len(set(names)) != len(names):
            # Ids are derived from the name: two stages of one name would overwrite each other's streams.
            raise ApplicationInvalid(application=names[0], reason=f"stages need names of their own: {names}")
        self.stages = tuple(stages)
        self._failures: list[BaseException] = []

    def run(self, stopping: threading.Event) -> None:
        ending = threading.Event()
        threads = [
            threading.Thread(target=self._run, args=(stage, ending), name=f"olep-{stage.application.name}")
            for stage in self.stages
        ]
        for thread in threads:
            thread.start()
        try:
            while not (stopping.wait(0.1) or ending.is_set()):
                continue
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, stage: Executor, ending: threading.Event) -> None:
        try:
            stage.run(ending)
        except BaseException as error:  # noqa: BLE001 - raised by `run`, in the thread that called it
            self._failures.append(error)
        finally:
            ending.set()
