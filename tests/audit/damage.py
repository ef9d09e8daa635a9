"""Damages the log files of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.records import batches

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.wire.records import Batch
    from tests.harness.fleet import Fleet


def first_segment(fleet: Fleet, node: str, topic: str) -> Path:
    """The oldest log file of partition 0."""
    return min((fleet.node(node).layout.data / f"{topic}-0").glob("*.log"))


def located(path: Path, offset: int) -> tuple[int, Batch]:
    """Where the batch with this offset begins, and the batch."""
    at = 0
    for batch in batches(path.read_bytes()):
        if batch.base_offset <= offset <= batch.last_offset:
            return at, batch
        at += len(batch.raw)
    raise AssertionError(f"{path} has no offset {offset}")


def flip_bit(path: Path, offset: int) -> None:
    """In the middle of a batch, of a broker that may be running: the length of the file stays."""
    at, batch = located(path, offset)
    with path.open("r+b") as file:
        file.seek(at + len(batch.raw) // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 8]))


def remove_batch(path: Path, offset: int) -> None:
    """Of a broker that is stopped. Its indexes go too: it builds them again."""
    at, batch = located(path, offset)
    data = path.read_bytes()
    path.write_bytes(data[:at] + data[at + len(batch.raw) :])
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink(missing_ok=True)
