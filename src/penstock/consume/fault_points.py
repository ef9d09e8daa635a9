"""The consumer's fault points: where tests may kill the process (see `penstock.model.fault_points`)."""

from __future__ import annotations

from typing import Final

from penstock.model.fault_points import declare, reach

__all__ = ["reach"]

BEFORE_COMMIT: Final = declare("consume.commit.before", "records are done, their offsets not committed")
AFTER_COMMIT: Final = declare("consume.commit.after", "offsets are committed, the response is not processed")
AFTER_PRODUCE: Final = declare("consume.transaction.after-produce", "outputs are sent, offsets are not")
BEFORE_TRANSACTION_COMMIT: Final = declare(
    "consume.transaction.before-commit", "outputs and offsets are in an open transaction"
)
AFTER_TRANSACTION_COMMIT: Final = declare(
    "consume.transaction.after-commit", "the transaction is committed, the response is not processed"
)
DURING_REVOKE: Final = declare(
    "consume.revoke.during", "partitions are being revoked, their offsets not committed"
)
BEFORE_DEAD_LETTER_COMMIT: Final = declare(
    "consume.dead-letter.delivered", "a dead letter is written, its record's offset not committed"
)
