"""What fails in Spark, Java or on a disk has one name."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.model.errors.olep import StoreFailed
from penstock.model.errors.pipeline import JobBusy, RoomMissing, SparkFailed
from penstock.pipeline.failure import CAUSES_MAX, named, naming


class Cause:
    """A throwable of Java as Python sees it."""

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
def test_a_full_disk_is_named_in_whatever_form_it_comes(error: Exception) -> None:
    found = named(error, "orders")

    assert isinstance(found, RoomMissing)
    assert found.exit_code == 5
    assert "orders" in str(found)


def test_other_failures_are_told_by_their_cause() -> None:
    found = named(Raised("An error occurred\nCaused by: java.lang.X: of mine\n\tat y"), "orders")

    assert isinstance(found, SparkFailed)
    assert "java.lang.X: of mine" in str(found)


def test_what_a_python_worker_raised_is_told_without_its_stack() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 7, in f\n    g()\nValueError: of mine\n'

    found = named(Raised(f"Thrown from the Python worker.\n{trace}\n\tat org.apache.x"), "orders")

    assert str(found).startswith("orders failed in Spark: ValueError: of mine")


def test_a_cause_that_is_its_own_comes_to_an_end() -> None:
    loop = Cause("again", None)
    loop.cause = loop

    assert isinstance(named(Raised("x", loop), "orders"), SparkFailed)
    assert CAUSES_MAX < 100


def test_only_spark_and_the_disk_are_renamed() -> None:
    with pytest.raises(SparkFailed, match="orders"), naming("orders"):
        raise Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(RoomMissing), naming("orders"):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(PermissionError), naming("orders"):
        raise PermissionError(errno.EACCES, "no")
    with pytest.raises(JobBusy), naming("orders"):
        raise JobBusy(job="orders", directory="d")
    with pytest.raises(StoreFailed), naming("orders"):
        raise StoreFailed(store="bank-0.sqlite", reason="database is locked")
    with pytest.raises(ZeroDivisionError), naming("orders"):
        raise ZeroDivisionError
