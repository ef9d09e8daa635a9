"""The consumer's fault points: where a test may kill the process (see `penstock.model.faults`)."""

from __future__ import annotations

from typing import Final

from penstock.model.faults import declare, reach

__all__ = ["POINTS", "reach"]

BEFORE_COMMIT: Final = declare("consume.commit.before", "records are done, their offsets not committed")
AFTER_COMMIT: Final = declare("consume.commit.after", "offsets are committed, nobody here knows yet")
AFTER_PRODUCE: Final = declare("consume.transaction.after-produce", "outputs are sent, no offset is")
BEFORE_TRANSACTION_COMMIT: Final = declare(
    "consume.transaction.before-commit", "outputs and offsets are in an open transaction"
)
AFTER_TRANSACTION_COMMIT: Final = declare(
    "consume.transaction.after-commit", "the transaction is committed, nobody here knows yet"
)
DURING_REVOKE: Final = declare("consume.revoke.during", "partitions are being taken, their work not flushed")
BEFORE_DEAD_LETTER_COMMIT: Final = declare(
    "consume.dead-letter.delivered", "a dead letter is written, its record's offset not committed"
)

POINTS: Final = (
    BEFORE_COMMIT,
    AFTER_COMMIT,
    AFTER_PRODUCE,
    BEFORE_TRANSACTION_COMMIT,
    AFTER_TRANSACTION_COMMIT,
    DURING_REVOKE,
    BEFORE_DEAD_LETTER_COMMIT,
)
