"""`penstock broker`: the brokers of a physical cluster, and what the platform does with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.operator.balance_plans import run_plan
from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected, physical_cluster
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import Wait, finished
from penstock.model.entities import BrokerStatus
from penstock.model.errors import Exit
from penstock.model.plural import counted
from penstock.platform.control_client import ControlClient

app = App(name="broker", help="Brokers: list, show, demote, restore, cordon, uncordon.")

_BROKERS = {"ID": "id", "ZONE": "zone", "CELL": "cell", "ADDRESS": "address", "STATE": "state"}
_CLAIMS = {"STATE": "status", "SET BY": "actor", "SINCE": "since", "REASON": "reason"}

Broker = Annotated[int, Parameter(help="Its id.")]
Cluster = Annotated[
    str | None,
    Parameter(
        name="--physical-cluster",
        help="Id of the physical cluster.",
        show_default="the only one",
        negative="",
    ),
]
Reason = Annotated[str, Parameter(help="Why; shown to other operators.")]


@app.command(name="list")
def list_(*, physical: Cluster = None, options: RemoteOptions = RemoteOptions()) -> int:
    """List the brokers with their zones, cells and states.

    Example:  penstock broker list
    """
    control = connected(options)
    rows = list(control.every(_brokers(control, physical)))
    show(rows, options.form, table_of([_row(row) for row in rows], _BROKERS, empty="no brokers"))
    return Exit.FINE


@app.command(name="show")
def show_(broker: Broker, *, physical: Cluster = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Show a broker's states: which component set each one, since when, and why.

    Example:  penstock broker show 2
    """
    control = connected(options)
    entity = control.get(f"{_brokers(control, physical)}/{broker}")
    claims = [
        claim | {"since": f"{datetime.fromtimestamp(claim['since_ms'] / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"}
        for claim in entity["claims"]
    ]
    empty = f"broker {broker} ({entity['zone']}, {entity['cell'] or 'no cell'}) is normal"
    show(entity, options.form, table_of(claims, _CLAIMS, empty=empty))
    return Exit.FINE


@app.command
def demote(
    broker: Broker,
    *,
    reason: Reason = "",
    physical: Cluster = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Give a broker no leadership: what it leads, and new partitions, are led by others.

    Example:  penstock broker demote 2 --reason "slow disk"
    """
    done = _set(broker, BrokerStatus.DEMOTED, reason, physical, options)
    _move_leadership(broker, "demote", physical, options, wait=wait)
    return done


@app.command
def restore(
    broker: Broker, *, physical: Cluster = None, wait: Wait = True, options: RemoteOptions = RemoteOptions()
) -> int:
    """Let a demoted broker lead again, and lead what it led before.

    Example:  penstock broker restore 2
    """
    done = _clear(broker, BrokerStatus.DEMOTED, physical, options)
    _move_leadership(broker, "restore", physical, options, wait=wait)
    return done


@app.command
def cordon(
    broker: Broker, *, reason: Reason = "", physical: Cluster = None, options: RemoteOptions = RemoteOptions()
) -> int:
    """Place no new replica on a broker. The replicas that it has stay.

    Example:  penstock broker cordon 2 --reason "to be replaced"
    """
    return _set(broker, BrokerStatus.CORDONED, reason, physical, options)


@app.command
def uncordon(broker: Broker, *, physical: Cluster = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Place replicas on a cordoned broker again.

    Example:  penstock broker uncordon 2
    """
    return _clear(broker, BrokerStatus.CORDONED, physical, options)


def _set(broker: int, status: BrokerStatus, reason: str, physical: str | None, options: RemoteOptions) -> int:
    control = connected(options)
    path = f"{_brokers(control, physical)}/{broker}/states/{status}"
    made = control.change("PUT", path, {"reason": reason})
    return finished(control, made["operation"], options, wait=True)


def _clear(broker: int, status: BrokerStatus, physical: str | None, options: RemoteOptions) -> int:
    control = connected(options)
    made = control.change("DELETE", f"{_brokers(control, physical)}/{broker}/states/{status}")
    return finished(control, made["operation"], options, wait=True)


def _move_leadership(
    broker: int, purpose: str, physical: str | None, options: RemoteOptions, *, wait: bool
) -> None:
    """Makes the plan that follows from a broker's new state, and runs it."""
    control = connected(options)
    body = {"physical_cluster": physical_cluster(control, physical), "purpose": purpose, "broker": broker}
    plan = control.change("POST", "/plans", body)
    if plan["moves"]:
        report(plain(f"leadership of {counted(plan['moves'], 'partition')} moves: {plan['id']}"))
        run_plan(control, plan["id"], wait=wait)


def _brokers(control: ControlClient, physical: str | None) -> str:
    """The path of a physical cluster's brokers."""
    return f"/physical-clusters/{physical_cluster(control, physical)}/brokers"


def _row(broker: dict[str, Any]) -> dict[str, Any]:
    return broker | {"address": f"{broker['host']}:{broker['port']}", "state": ",".join(broker["states"])}
