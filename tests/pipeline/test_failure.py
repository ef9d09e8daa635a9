"""Translating failures of Spark, Java and the disk."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.model.errors.olep import StoreFailed
from penstock.model.errors.pipeline import DiskFull, JobBusy, SparkFailed
from penstock.pipeline.spark.failure import CAUSES_MAX, translate_error, translate_errors


class Cause:
    """A Java throwable as Python sees it."""

    def __init__(self, text: str, cause: Cause | None) -> None:
        self.text, self.cause = text, cause

    def toString(self) -> str:
        return self.text

    def getCause(self) -> Cause | None:
        return self.cause


class Raised(Exception):
    def __init__(self, text: str, origin: Cause | None = None) -> None:
        super().__init__(text)
        self._origin = origin


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "state/status.json"),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        Raised("An error\nCaused by: java.io.IOException: No space left on device\n\tat a.b.c"),
        Raised("[SQLITE_FULL] Insertion failed because database is full"),
        StoreFailed(store="bank-0.sqlite", reason=sqlite3.OperationalError("database or disk is full")),
        Raised("Writing job aborted", Cause("a.b: failed", Cause("No space left on device", None))),
    ],
)
def test_a_full_disk_is_recognised_in_every_form(error: Exception) -> None:
    translated = translate_error(error, "orders")

    assert isinstance(translated, DiskFull)
    assert translated.exit_code == 5
    assert "orders" in str(translated)


def test_other_failures_are_reported_with_their_cause() -> None:
    translated = translate_error(
        Raised("An error occurred\nCaused by: java.lang.X: of mine\n\tat y"), "orders"
    )

    assert isinstance(translated, SparkFailed)
    assert "java.lang.X: of mine" in str(translated)


def test_an_error_of_a_python_worker_is_reported_without_its_stack_trace() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 7, in f\n    g()\nValueError: of mine\n'

    translated = translate_error(
        Raised(f"Thrown from the Python worker.\n{trace}\n\tat org.apache.x"), "orders"
    )

    assert str(translated).startswith("orders failed in Spark: ValueError: of mine")


def test_a_cyclic_cause_does_not_loop_forever() -> None:
    loop = Cause("again", None)
    loop.cause = loop

    assert isinstance(translate_error(Raised("x", loop), "orders"), SparkFailed)
    assert CAUSES_MAX < 100


def test_only_errors_of_spark_and_of_a_full_disk_are_translated() -> None:
    with pytest.raises(SparkFailed, match="orders"), translate_errors("orders"):
        raise Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(DiskFull), translate_errors("orders"):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(PermissionError), translate_errors("orders"):
        raise PermissionError(errno.EACCES, "no")
    with pytest.raises(JobBusy), translate_errors("orders"):
        raise JobBusy(job="orders", directory="d")
    with pytest.raises(StoreFailed), translate_errors("orders"):
        raise StoreFailed(store="bank-0.sqlite", reason="database is locked")
    with pytest.raises(ZeroDivisionError), translate_errors("orders"):
        raise ZeroDivisionError
