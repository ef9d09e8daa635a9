"""One connection's life as immutable values: which events it may meet in which state.

    new ── accepted ──► handshake ── logged in ──► linking ── linked ──► serving ── drain ──► draining
     │                      │                         │                     │                    │
     └──────────────────────┴─────────────────────────┴─────── close ───────┴────────────────────┴──► closed

The data path does not come here: a connection that serves goes on serving until something happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.errors.gateway import EventOutOfPlace

if TYPE_CHECKING:
    from penstock.gateway.config import Holder


class State(StrEnum):
    NEW = "new"  # admitted by its address; TLS, if any, is under way
    HANDSHAKE = "handshake"  # may ask for versions and log in, nothing else
    LINKING = "linking"  # its key is right; the broker is being dialled as its user
    SERVING = "serving"
    DRAINING = "draining"  # answers what is in flight, takes nothing new
    CLOSED = "closed"


class Event(StrEnum):
    ACCEPTED = "accepted"
    LOGGED_IN = "logged in"
    LINKED = "linked"
    LOGGED_IN_AGAIN = "logged in again"
    DRAIN = "drain"
    CLOSE = "close"


# Why a client is not read, as bits; several at once.
HELD: Final = 1  # one of its requests is being worked on here
BROKER_FULL: Final = 2
IN_FLIGHT: Final = 4
DRAINING: Final = 8
CLIENT_FULL: Final = 16  # it does not read its answers, so it is not read either
IN_LINE: Final = 32  # it has used up a limit, and waits for its turn
NOT_NOW: Final = HELD | DRAINING | IN_FLIGHT | CLIENT_FULL | IN_LINE  # its next frame is left where it is

_NEXT: Final[dict[tuple[State, Event], State]] = {
    (State.NEW, Event.ACCEPTED): State.HANDSHAKE,
    (State.HANDSHAKE, Event.LOGGED_IN): State.LINKING,
    (State.LINKING, Event.LINKED): State.SERVING,
    (State.SERVING, Event.LOGGED_IN_AGAIN): State.SERVING,
    (State.SERVING, Event.DRAIN): State.DRAINING,
    (State.NEW, Event.DRAIN): State.CLOSED,
    (State.HANDSHAKE, Event.DRAIN): State.CLOSED,
    (State.LINKING, Event.DRAIN): State.CLOSED,
    (State.DRAINING, Event.DRAIN): State.DRAINING,
    **{(state, Event.CLOSE): State.CLOSED for state in State},
    (State.CLOSED, Event.DRAIN): State.CLOSED,
}


@dataclass(frozen=True, slots=True)
class Life:
    address: str
    state: State = State.NEW
    holder: Holder | None = None  # from the login on
    why: str = ""  # it was closed

    @property
    def serves(self) -> bool:
        return self.state in (State.SERVING, State.DRAINING)


def advance(life: Life, event: Event, *, holder: Holder | None = None, why: str = "") -> Life:
    """The life after an event; `EventOutOfPlace` if it cannot happen now."""
    state = _NEXT.get((life.state, event))
    if state is None:
        raise EventOutOfPlace(event=event, state=life.state)
    if event is Event.LOGGED_IN_AGAIN and holder is not None and life.holder is not None:
        same = (holder.tenant, holder.account) == (life.holder.tenant, life.holder.account)
        if not same:
            raise EventOutOfPlace(event="login as another account", state=life.state)
    return Life(life.address, state, holder or life.holder, why or life.why)
