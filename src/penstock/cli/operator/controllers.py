"""`penstock fleet controllers`: the KRaft controllers of a physical cluster."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from penstock.cli.flags import Yes, confirmed
from penstock.cli.operator.resize import Cluster, cluster_path
from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import Wait, finished
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid

CHANGE_SECONDS = 600.0
COLUMNS = {
    "CONTROLLER": "id", "ZONE": "zone", "ROLE": "role", "BEHIND": "behind", "ADDRESS": "address",
    "DISK": "directory_id",
}  # fmt: skip

app = App(name="controllers", help="The KRaft controllers of a physical cluster: list, add, remove, replace.")

Timeout = Annotated[float, Parameter(help="Seconds to wait; the operation continues afterwards.")]
Controller = Annotated[str, Parameter(help="Its name or id: c1002 or 1002.")]


@app.command(name="list")
def list_(*, physical: Cluster = None, options: RemoteOptions = RemoteOptions()) -> int:
    """List the voters of the quorum, and controllers that are none.

    Example:  penstock fleet controllers list
    """
    control = connected(options)
    rows = control.get(f"{cluster_path(control, physical)}/controllers")["controllers"]
    show(rows, options.form, table_of(rows, COLUMNS))
    return Exit.FINE


@app.command
def add(
    *,
    count: Annotated[int, Parameter(help="How many.")] = 2,
    physical: Cluster = None,
    wait: Wait = True,
    timeout: Timeout = CHANGE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Start further controllers of a local cluster, and make them voters one after the other.

    Brokers and gateways carry on. With three voters, the cluster survives the loss of one.

    Example:  penstock fleet controllers add
    """
    control = connected(options)
    made = control.change("POST", f"{cluster_path(control, physical)}/controllers", {"count": count})
    done = finished(control, made["operation"], options, wait=wait, seconds=timeout)
    report(plain("Running nodes look for the new ones after their next restart: penstock fleet roll"))
    return done


@app.command
def remove(
    controllers: Annotated[tuple[str, ...], Parameter(help="Names or ids: c1002 or 1002.", negative="")],
    *,
    physical: Cluster = None,
    yes: Yes = False,
    wait: Wait = True,
    timeout: Timeout = CHANGE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Take controllers out of the quorum one after the other, stop them, and delete their disks.

    Refused if a majority of the voters would not be caught up meanwhile.

    Example:  penstock fleet controllers remove c1002 c1003
    """
    if not confirmed(f"This deletes {', '.join(controllers)} with all data on their disks.", yes=yes):
        return Exit.FAILED
    control = connected(options)
    body = {"controllers": [_id(each) for each in controllers]}
    made = control.change("POST", f"{cluster_path(control, physical)}/controllers/remove", body)
    return finished(control, made["operation"], options, wait=wait, seconds=timeout)


@app.command
def replace(
    controller: Controller,
    *,
    physical: Cluster = None,
    yes: Yes = False,
    wait: Wait = True,
    timeout: Timeout = CHANGE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Give a controller an empty disk: for one whose disk is lost or damaged.

    It leaves the quorum, copies the metadata log, and joins as a new voter with its id and its ports.

    Example:  penstock fleet controllers replace c1002
    """
    if not confirmed(f"This deletes what is left on the disk of {controller}.", yes=yes):
        return Exit.FAILED
    control = connected(options)
    path = f"{cluster_path(control, physical)}/controllers/{_id(controller)}/replace"
    made = control.change("POST", path)
    return finished(control, made["operation"], options, wait=wait, seconds=timeout)


def _id(name: str) -> int:
    digits = name.removeprefix("c")
    if not digits.isdecimal():
        raise UsageInvalid(reason=f"{name!r} is no controller", way_out="Name it like c1002 or 1002.")
    return int(digits)
