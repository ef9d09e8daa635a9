"""`penstock fleet grow`, `fleet shrink`, `cell grow`, `cell add`: brokers that come and go."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from penstock.cli.output import show, table_of
from penstock.cli.remote import connected, physical_cluster, wait_for
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import Wait, finished
from penstock.model.errors import Exit
from penstock.platform.control_client import ControlClient

RESIZE_SECONDS = 24 * 3600.0  # copying takes as long as it takes
CELLS = {"CELL": "id", "PHYSICAL CLUSTER": "physical_cluster", "BROKERS": "brokers", "TENANTS": "clusters"}

Cluster = Annotated[
    str | None,
    Parameter(
        name="--physical-cluster",
        help="Id of the physical cluster.",
        show_default="the only one",
        negative="",
    ),
]
Timeout = Annotated[float, Parameter(help="Seconds to wait; the operation continues afterwards.")]


def grow(
    *,
    brokers: Annotated[
        int | None, Parameter(help="How many, the same number in every zone.", show_default="one a zone")
    ] = None,
    cell: Annotated[str | None, Parameter(help="The cell that grows.", show_default="the only one")] = None,
    physical: Cluster = None,
    wait: Wait = True,
    timeout: Timeout = RESIZE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Add brokers to a running cluster, and move replicas to them until each carries its share.

    Nothing restarts: gateways and clients carry on. With several cells and none named, the brokers become
    new cells. The brokers of an adopted cluster are started where it runs; this fills those that joined it.

    Example:  penstock fleet grow --brokers 3
    """
    control = connected(options)
    body = {"brokers": brokers or 0, "cell": cell}
    made = control.change("POST", f"{cluster_path(control, physical)}/grow", body)
    return finished(control, made["operation"], options, wait=wait, seconds=timeout)


def shrink(
    brokers: Annotated[tuple[int, ...], Parameter(help="Ids of the brokers that leave.", negative="")],
    *,
    physical: Cluster = None,
    wait: Wait = True,
    timeout: Timeout = RESIZE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Empty brokers, stop them, and remove them from Kafka and from the fleet file.

    Refused if the others could not carry everything: zones, replication factors, disks and load are checked
    first. The brokers of an adopted cluster are stopped where they run, once they are empty.

    Example:  penstock fleet shrink 4 5 6
    """
    control = connected(options)
    made = control.change("POST", f"{cluster_path(control, physical)}/shrink", {"brokers": list(brokers)})
    return finished(control, made["operation"], options, wait=wait, seconds=timeout)


def grow_cell(
    cell: Annotated[str, Parameter(help="Its id.")],
    *,
    brokers: Annotated[
        int | None, Parameter(help="How many, the same number in every zone.", show_default="one a zone")
    ] = None,
    physical: Cluster = None,
    wait: Wait = True,
    timeout: Timeout = RESIZE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Add brokers to a cell, the same number in every zone, and fill them with its tenants' replicas.

    Example:  penstock cell grow cell-1 --brokers 3
    """
    return grow(brokers=brokers, cell=cell, physical=physical, wait=wait, timeout=timeout, options=options)


def add_cell(
    *,
    physical: Cluster = None,
    timeout: Timeout = RESIZE_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Add a cell: as many brokers as a cell has, spread over the zones.

    Nothing restarts. Returns when tenants can be placed in the new cell.

    Example:  penstock cell add
    """
    control = connected(options)
    before = {(one["physical_cluster"], one["id"]) for one in control.every("/cells")}
    made = control.change("POST", f"{cluster_path(control, physical)}/grow", {"new_cell": True})
    wait_for(control, made["operation"], seconds=timeout)
    new = [one for one in control.every("/cells") if (one["physical_cluster"], one["id"]) not in before]
    rows = [one | {"brokers": ",".join(map(str, one["brokers"]))} for one in new]
    show(_only(new), options.form, table_of(rows, CELLS))
    return Exit.FINE


def _only(rows: list[dict[str, Any]]) -> Any:
    return rows[0] if len(rows) == 1 else rows


def cluster_path(control: ControlClient, physical: str | None) -> str:
    return f"/physical-clusters/{_shared(control, physical)}"


def _shared(control: ControlClient, physical: str | None) -> str:
    """The given one, or the only one that is not dedicated to a tenant."""
    if physical is not None:
        return physical
    shared = [one["id"] for one in control.every("/physical-clusters") if one["tenancy"] == "shared"]
    return str(shared[0]) if len(shared) == 1 else physical_cluster(control, None)
