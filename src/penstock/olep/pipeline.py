"""Runs executors over several logs together, for decisions that need more than one log.

Each stage decides on one log and passes the result on by events, so no stage waits for another. A
pipeline starts and stops its stages together; a stage may also run as a separate process, or several.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.model.errors.olep import ApplicationInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.executor import Executor


class Pipeline:
    """Runs each stage in a thread. If one fails, stops all and raises its error."""

    def __init__(self, stages: Sequence[Executor]) -> None:
        names = [stage.application.name for stage in stages]
        if len(set(names)) != len(names):
            # Ids are derived from the name: stages with the same name would share a stream.
            raise ApplicationInvalid(application=names[0], reason=f"stages need distinct names, not {names}")
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
        except BaseException as error:  # noqa: BLE001 - raised by `run`, in the thread of its caller
            self._failures.append(error)
        finally:
            ending.set()
