"""A notifier added later: who spent more than a limit in a day?

A subscriber of the bank's log like any other. It has a state and a position of its own, starts at
the log's beginning whenever it is first run, and the bank does not know that it exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from examples.payments.bank import ANSWERS, REQUESTS
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
            "payment.asked",
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
            ignores=(ANSWERS | REQUESTS | others | fees) - {"payment.outgoing"},
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
