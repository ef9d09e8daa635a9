"""`penstock fleet advise`, `cost`, `profiles` and `set`: the size, hardware and cost of physical clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter
from rich.console import Group

from penstock.balance.cost import EXAMPLE
from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import finished
from penstock.model.errors import Exit
from penstock.model.errors.balance import ProfileRejected
from penstock.model.errors.settings import UsageInvalid
from penstock.platform.control_client import ControlClient

profiles = App(name="profiles", help="Hardware profiles: list, show, check against a cluster.")

Cluster = Annotated[str | None, Parameter(help="Physical cluster, id or name.", show_default="every cluster")]
_ADVICE: Final = {
    "CLUSTER": "physical_cluster", "VERDICT": "verdict", "BROKERS": "brokers", "TARGET": "target",
    "DUE": "due", "MONTH": "month", "AFTER": "after", "BOUNDED BY": "bounded",
}  # fmt: skip
_PROFILES: Final = {
    "PROFILE": "name", "PROCESSORS": "processors", "MEMORY": "memory", "ZONES": "zones",
    "MEASURED": "measured",
}  # fmt: skip
_SHORTFALLS: Final = {"BOUND": "bound", "NEEDED": "needed", "AVAILABLE": "available"}


def advise(
    cluster: Cluster = None,
    *,
    explain: Annotated[
        bool, Parameter(help="Add what decides, and what would change the verdict.", negative="")
    ] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Show whether clusters are too small, too large or on the wrong hardware.

    Takes a day of load history; costs take a price file and the cluster's hardware profile.

    Example:  penstock fleet advise --explain
    """
    control = connected(options)
    rows = [control.get(f"/physical-clusters/{each}/advice") for each in _ids(control, cluster)]
    shown = [
        row
        | {"due": _days(row["due_days"]), "month": _money(row["month"]), "after": _money(row["month_after"])}
        for row in rows
    ]
    parts: list[Any] = [table_of(shown, _ADVICE, empty="no physical clusters")]
    for row in rows if explain else ():
        parts.append(f"[bold]{row['physical_cluster']}[/]: {plain(row['number'])}")
        parts.append(f"  It would change with {plain(row['changes'])}.")
    show(rows, options.form, Group(*parts))
    return Exit.FINE


def cost(
    cluster: Cluster = None,
    *,
    by: Annotated[
        Literal["driver", "tenant", "zone"], Parameter(help="What the cost is split by.")
    ] = "driver",
    example: Annotated[
        bool, Parameter(help="Print an example of a price file, and nothing else.", negative="")
    ] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Show what clusters cost a month, at the traffic of the last week and the prices of your file.

    Example:  penstock fleet cost --example
    """
    if example:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return Exit.FINE
    control = connected(options)
    rows = [control.get(f"/physical-clusters/{each}/cost") for each in _ids(control, cluster)]
    parts: list[Any] = []
    for row in rows:
        lines = [{"what": name, "month": _money(value)} for name, value in _split(row, by).items()]
        parts.append(
            f"[bold]{row['physical_cluster']}[/], {row['currency']} at prices of {row['price_date']}"
        )
        parts.append(table_of(lines, {by.upper(): "what", "MONTH": "month"}))
        parts.append(f"A single zone would save {_money(row['savings']['single_zone'])} a month.")
    show(rows, options.form, Group(*parts))
    return Exit.FINE


def _split(row: dict[str, Any], by: str) -> dict[str, float]:
    """The cost of a cluster by what it is split by, and the total: by zone, of what crosses zones."""
    if by == "driver":
        return {**row["drivers"], "total": row["total"]}
    if by == "tenant":
        return {tenant: sum(part.values()) for tenant, part in row["tenants"].items()} | {
            "total": row["total"]
        }
    pairs = {
        f"{each['client_zone']} with brokers in {each['broker_zone']}": each["month"] for each in row["zones"]
    }
    return {**pairs, "total between zones": sum(pairs.values())}


def set_(
    cluster: Annotated[str, Parameter(help="Physical cluster, id or name.")],
    *,
    size: Annotated[
        Literal["advise", "auto"] | None, Parameter(help="What a size that does not fit leads to.")
    ] = None,
    hardware: Annotated[str | None, Parameter(help="Hardware profile of its brokers.")] = None,
    brokers_min: Annotated[int | None, Parameter(help="Fewest brokers.")] = None,
    brokers_max: Annotated[int | None, Parameter(help="Most brokers.")] = None,
    budget: Annotated[
        float | None,
        Parameter(help="Most that its machines may cost a month, in the currency of the prices."),
    ] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Set a cluster's hardware profile, and within which bounds it is sized.

    Example:  penstock fleet set main --size auto --brokers-min 3 --brokers-max 12
    """
    given = {
        "mode": size, "hardware": hardware, "brokers_min": brokers_min, "brokers_max": brokers_max,
        "budget_month": budget,
    }  # fmt: skip
    body = {key: value for key, value in given.items() if value is not None}
    if not body:
        raise UsageInvalid(reason="nothing to set", way_out="Give --size, --hardware or a bound.")
    control = connected(options)
    made = control.change("PUT", f"/physical-clusters/{_ids(control, cluster)[0]}/sizing", body)
    return finished(control, made["operation"], options, wait=True)


@profiles.command(name="list")
def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """List the hardware profiles on the control plane's host.

    Example:  penstock fleet profiles list
    """
    rows = connected(options).get("/profiles")["items"]
    shown = [
        {
            **{key: row["document"][key] for key in ("name", "processors", "memory")},
            "zones": ",".join(row["document"]["zones"]),
            "measured": row["document"]["measured"]["date"] if row["measured"] else "no",
        }
        for row in rows
    ]
    show(rows, options.form, table_of(shown, _PROFILES, empty="no profiles"))
    return Exit.FINE


@profiles.command(name="show")
def show_(
    name: Annotated[str, Parameter(help="Name of the profile.")], *, options: RemoteOptions = RemoteOptions()
) -> int:
    """Show a hardware profile: declared and measured values.

    Example:  penstock fleet profiles show memory-4
    """
    row = connected(options).get(f"/profiles/{name}")
    lines = [{"key": key, "value": plain(str(value))} for key, value in row["document"].items()]
    show(row, options.form, table_of(lines, {"KEY": "key", "VALUE": "value"}))
    return Exit.FINE


@profiles.command(name="check")
def check(
    name: Annotated[str, Parameter(help="Name of the profile.")],
    cluster: Annotated[str, Parameter(help="Physical cluster, id or name.")],
    *,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Check whether a cluster's brokers on a profile carry its last four weeks. Fails if they do not.

    Example:  penstock fleet profiles check memory-4 main
    """
    control = connected(options)
    row = control.get(f"/physical-clusters/{_ids(control, cluster)[0]}/profiles/{name}")
    lines = [
        {"bound": each["bound"], "needed": f"{each['needed']:.4g}", "available": f"{each['available']:.4g}"}
        for each in row["shortfalls"]
    ]
    show(row, options.form, table_of(lines, _SHORTFALLS, empty="no shortfall"))
    if not row["measured"]:
        report(f"{name} has not been measured: only its declared values count")
    report(f"the smallest fleet of {name} has {row['brokers']} brokers")
    if lines:
        short = "; ".join(f"{each['bound']} {each['needed']} of {each['available']}" for each in lines)
        raise ProfileRejected(
            brokers=row["current"], profile=name, cluster=row["physical_cluster"], shortfalls=short
        )
    return Exit.FINE


COMMANDS: dict[str, Callable[..., int]] = {"advise": advise, "cost": cost, "set": set_}


def _ids(control: ControlClient, cluster: str | None) -> list[str]:
    known = list(control.every("/physical-clusters"))
    chosen = [each["id"] for each in known if cluster in (None, each["id"], each["name"])]
    return chosen or ([cluster] if cluster else [])  # an unknown one is the API's error


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _days(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} days"
