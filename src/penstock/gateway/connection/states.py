"""The states of a client connection: which event leads from which state to which.

    new ── accepted ──► handshake ── logged in ──► linking ── linked ──► serving ── drain ──► draining
     │                      │                         │                     │                    │
     └──────────────────────┴─────────────────────────┴─────── close ───────┴────────────────────┴──► closed

The data path does not come here: a connection stays in `serving` until an event occurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.errors.gateway import EventOutOfPlace

if TYPE_CHECKING:
    from penstock.gateway.config import Principal


class State(StrEnum):
    NEW = "new"  # admitted by address; TLS, if any, is under way
    HANDSHAKE = "handshake"  # may ask for API versions and log in, nothing else
    LINKING = "linking"  # authenticated; the gateway connects to the broker as its user
    SERVING = "serving"
    DRAINING = "draining"  # completes what is in flight, accepts nothing new
    CLOSED = "closed"


class Event(StrEnum):
    ACCEPTED = "accepted"
    LOGGED_IN = "logged in"
    LINKED = "linked"
    LOGGED_IN_AGAIN = "logged in again"
    DRAIN = "drain"
    CLOSE = "close"


# Reasons why a client is not read, as bits.
LOCAL_WORK: Final = 1  # the gateway is working on one of its requests
BROKER_FULL: Final = 2
IN_FLIGHT: Final = 4
DRAINING: Final = 8
CLIENT_FULL: Final = 16  # it does not read its responses
THROTTLED: Final = 32  # it waits in a throttle queue
MUTED: Final = 64  # it changed too many partitions, or sent too many requests that were refused
CLOSED: Final = 128  # what was read with the frame that closed it is not served
# Processor time: what was read from a side waits in the ready queue, and neither side is read meanwhile.
CLIENT_SLICE: Final = 256
BROKER_SLICE: Final = 512
HELD: Final = 1024  # the tenant's connections hold too many bytes; what was read is served
RESPONSE_MEMORY: Final = 2048  # a large response waits for memory, and neither side is read
REQUEST_MEMORY: Final = 4096  # a large request waits for memory of the broker
SLICED: Final = CLIENT_SLICE | BROKER_SLICE
# The next frame stays unread.
NO_NEW_FRAMES: Final = LOCAL_WORK | DRAINING | IN_FLIGHT | CLIENT_FULL | THROTTLED | MUTED | CLOSED

NEXT: Final[dict[tuple[State, Event], State]] = {
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
    principal: Principal | None = None  # from login on
    close_reason: str = ""

    @property
    def serves(self) -> bool:
        return self.state in (State.SERVING, State.DRAINING)


def advance(life: Life, event: Event, *, principal: Principal | None = None, close_reason: str = "") -> Life:
    """The connection after an event; raises `EventOutOfPlace` if the event cannot happen in this state."""
    state = NEXT.get((life.state, event))
    if state is None:
        raise EventOutOfPlace(event=event, state=life.state)
    if event is Event.LOGGED_IN_AGAIN and principal is not None and life.principal is not None:
        same = (principal.tenant, principal.account) == (life.principal.tenant, life.principal.account)
        if not same:
            raise EventOutOfPlace(event="login as another account", state=life.state)
    return Life(life.address, state, principal or life.principal, close_reason or life.close_reason)
