"""Emits a notice when an account spends more than a limit in a day.

A subscriber of the bank's log with separate state and position. It can be added at any time: it starts at
the beginning of the log, and the bank need not know of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from examples.payments.bank import OUTCOME_TYPES, REQUESTS
from penstock.olep.application import NOTHING, Application, Decision, Emit, State
from penstock.olep.table import Put, Table

if TYPE_CHECKING:
    from penstock.olep.event import Event

NOTICES_LOG: Final = "notices"
DAY_MS: Final = 86_400_000


class Spent(NamedTuple):
    account: str
    day: int  # days since 1970
    cents: int


SPENT: Final = Table("spent", Spent, key=2)


@dataclass(frozen=True, slots=True)
class Spending:
    limit: int  # cents a day

    def application(self, name: str = "spending") -> Application:
        others = {
            "payment.proposed",
            "payment.agreed",
            "payment.refused",
            "payment.incoming",
            "payment.returned",
        }
        fees = {"fee.incoming", "fee.outgoing"}
        return Application(
            name=name,
            decide=self.decide,
            tables=(SPENT,),
            handles={"payment.outgoing": 1},
            ignores=(OUTCOME_TYPES | REQUESTS | others | fees) - {"payment.outgoing"},
            logs={NOTICES_LOG},
        )

    def decide(self, state: State, event: Event) -> Decision:
        day = event.time // DAY_MS
        before = state.get(SPENT, (event.key, day))
        spent = Spent(event.key, day, (before.cents if before else 0) + event.payload["amount"])
        emits = []
        if spent.cents >= self.limit > (before.cents if before else 0):
            emits.append(Emit(NOTICES_LOG, event.key, "spending.reached", {"day": day, "cents": spent.cents}))
        return ((Put(SPENT, spent),), emits) if event.payload["amount"] else NOTHING
