"""`penstock health drill`: a fault on purpose, on a local fleet, that is always healed."""

from __future__ import annotations

import signal
import time
from enum import StrEnum
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.node import Node
from penstock.model.errors import Exit
from penstock.model.errors.health import DrillRefused
from penstock.platform.control_client import ControlClient

POLL_SECONDS = 0.5
SECONDS_MAX = 600.0
HEALED_SECONDS_MAX = 300.0  # for the broker to be healthy again
_STEPS = {"AFTER": "after", "WHAT": "what"}


class Fault(StrEnum):
    FREEZE = "freeze"  # SIGSTOP, later SIGCONT
    KILL = "kill"  # SIGKILL; the supervisor starts it again


def drill(
    *,
    fault: Annotated[Fault, Parameter(help="freeze or kill.")] = Fault.FREEZE,
    broker: Annotated[int, Parameter(help="The broker's id.")],
    seconds: Annotated[float, Parameter(help="How long a freeze lasts.")] = 30.0,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Freeze or kill a broker of the local fleet, show what health does about it, and heal it.

    Example:  penstock health drill --fault freeze --broker 2
    """
    control = connected(options)
    node = _node(options, broker)
    _check(control, broker, seconds)
    began = time.monotonic()
    rows: list[dict[str, Any]] = []

    def note(what: str) -> None:
        rows.append({"after": f"{time.monotonic() - began:.1f} s", "what": what})
        report(plain(f"{rows[-1]['after']:>8}  {what}"))

    note(f"{fault} broker {broker}")
    healthy = False
    try:
        _signal(node, signal.SIGSTOP if fault is Fault.FREEZE else signal.SIGKILL)
        _watch(control, broker, note, until=began + seconds)
    finally:
        if fault is Fault.FREEZE:
            _signal(node, signal.SIGCONT)
    note("healed")
    healthy = _watch(control, broker, note, until=time.monotonic() + HEALED_SECONDS_MAX, healed=True)
    show(rows, options.form, table_of([], _STEPS, empty="healthy again" if healthy else "not healthy yet"))
    return Exit.FINE if healthy else Exit.UNHEALTHY


def _node(options: RemoteOptions, broker: int) -> Node:
    for node in load_fleet(options.layout).nodes:
        if node.spec.is_broker and node.spec.id == broker:
            return node
    raise DrillRefused(broker=broker, reason="the local fleet has no such broker")


def _check(control: ControlClient, broker: int, seconds: float) -> None:
    if not 0 < seconds <= SECONDS_MAX:
        raise DrillRefused(broker=broker, reason=f"{seconds:g} s is not between 0 and {SECONDS_MAX:g}")
    (cluster,) = (c for c in control.get("/health") if any(b["broker"] == broker for b in c["brokers"]))
    if len(cluster["brokers"]) < 2:
        raise DrillRefused(broker=broker, reason="it is the only one")
    other = [b for b in cluster["brokers"] if b["health"] != "healthy" or b["steps"]]
    if other:
        shown = f"broker {other[0]['broker']} is {other[0]['health']}"
        raise DrillRefused(broker=broker, reason=f"{shown}; a drill needs a healthy cluster")


def _watch(control: ControlClient, broker: int, note: Any, *, until: float, healed: bool = False) -> bool:
    """Reports changes; returns at the time, or once the broker is healthy without a mitigation."""
    last: tuple[object, ...] = ()
    while time.monotonic() < until:
        known = next(b for c in control.get("/health") for b in c["brokers"] if b["broker"] == broker)
        now = (known["health"], tuple(known["steps"]), known["blocked"])
        if now != last and last:
            done = f", {', '.join(known['steps'])}" if known["steps"] else ""
            blocked = f" ({known['blocked']})" if known["blocked"] else ""
            note(f"{known['health']}{done}{blocked}")
        last = now
        if healed and known["health"] == "healthy" and not known["steps"]:
            return True
        time.sleep(POLL_SECONDS)
    return False


def _signal(node: Node, number: signal.Signals) -> None:
    identity = node.running()
    if identity is not None:
        identity.signal(number)
