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
from penstock.platform.drill_guard import Standstill, sole_drill, standing_still

POLL_SECONDS = 0.5
SECONDS_MAX = 600.0
HEALED_SECONDS_MAX = 300.0  # for the broker to be healthy again
_STEPS = {"AFTER": "after", "WHAT": "what"}


class Fault(StrEnum):
    FREEZE = "freeze"  # SIGSTOP, later SIGCONT
    SLOW = "slow"  # frozen four fifths of the time
    KILL = "kill"  # SIGKILL; the supervisor starts it again


def drill(
    *,
    fault: Annotated[Fault, Parameter(help="freeze, slow or kill.")] = Fault.FREEZE,
    broker: Annotated[int, Parameter(help="The broker's id.")],
    seconds: Annotated[float, Parameter(help="How long the fault lasts, unless it is kill.")] = 30.0,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Freeze, slow down or kill a broker of the local fleet, show what health does, and heal it.

    Example:  penstock health drill --fault freeze --broker 2
    """
    control = connected(options)
    node = _node(options, broker)
    with sole_drill(options.layout, broker) as lock:
        _check(control, node.cluster.id, broker, seconds)
        began = time.monotonic()

        def note(what: str) -> None:
            report(plain(f"{time.monotonic() - began:>6.1f} s  {what}"))
            rows.append({"after": f"{time.monotonic() - began:.1f} s", "what": what})

        rows: list[dict[str, Any]] = []
        process = node.running()
        if process is None:
            raise DrillRefused(broker=broker, reason="it does not run")
        note(f"{fault} broker {broker}")
        if fault is Fault.KILL:
            process.signal(signal.SIGKILL)
            _watch(control, node.cluster.id, broker, note, until=began + seconds)
        else:
            with standing_still(process, Standstill(str(fault)), seconds, lock):
                _watch(control, node.cluster.id, broker, note, until=began + seconds)
            note("healed")
        until = time.monotonic() + HEALED_SECONDS_MAX
        healthy = _watch(control, node.cluster.id, broker, note, until=until, healed=True)
    show(rows, options.form, table_of([], _STEPS, empty="healthy again" if healthy else "not healthy yet"))
    return Exit.FINE if healthy else Exit.UNHEALTHY


def _node(options: RemoteOptions, broker: int) -> Node:
    for node in load_fleet(options.layout).nodes:
        if node.spec.is_broker and node.spec.id == broker:
            return node
    raise DrillRefused(broker=broker, reason="the local fleet has no such broker")


def _check(control: ControlClient, cluster: str, broker: int, seconds: float) -> None:
    if not 0 < seconds <= SECONDS_MAX:
        raise DrillRefused(broker=broker, reason=f"{seconds:g} s is not between 0 and {SECONDS_MAX:g}")
    brokers = _brokers(control, cluster)
    own = next((each for each in brokers if each["broker"] == broker), None)
    if own is None:
        raise DrillRefused(broker=broker, reason="health does not judge it")
    if len(brokers) < 2:
        raise DrillRefused(broker=broker, reason="it is the only one")
    sick = [b for b in brokers if b["health"] != "healthy" or b["steps"]]
    if sick:
        shown = f"broker {sick[0]['broker']} is {sick[0]['health']}"
        raise DrillRefused(broker=broker, reason=f"{shown}; a drill needs a healthy cluster")
    others = [b for b in brokers if b["zone"] == own["zone"] and b is not own]
    if others and not any(b["states"] == ["normal"] for b in others):
        raise DrillRefused(broker=broker, reason=f"it is the last of zone {own['zone']} that may lead")


def _brokers(control: ControlClient, cluster: str) -> list[dict[str, Any]]:
    """Of one cluster: another, such as an adopted one, may have the same ids."""
    known = (each for each in control.get("/health") if each["physical_cluster"] == cluster)
    return [dict(broker) for each in known for broker in each["brokers"]]


def _watch(
    control: ControlClient, cluster: str, broker: int, note: Any, *, until: float, healed: bool = False
) -> bool:
    """Reports changes; returns at the time, or once the broker is healthy without a mitigation."""
    last: tuple[object, ...] = ()
    while time.monotonic() < until:
        known = next(each for each in _brokers(control, cluster) if each["broker"] == broker)
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
