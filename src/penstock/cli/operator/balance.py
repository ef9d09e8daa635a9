"""`penstock balance`: how loaded brokers are, and why; and fitting the profile of load to the brokers."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.balance.broker_load import broker_load
from penstock.balance.load_calibration import Driver, Workload, measured_points
from penstock.balance.load_fit import Point, fit, quality
from penstock.cli.operator.balance_plans import COMMANDS
from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.control.physical.local import fleet_clusters
from penstock.model.errors import Exit
from penstock.model.errors.balance import CalibrationFailed, CalibrationWithTenants
from penstock.model.errors.settings import UsageInvalid

app = App(
    name="balance",
    help="Broker load, and plans: show, calibrate, plan, set, list, explain, run, pace, cancel.",
)
for _name, _command in COMMANDS.items():
    app.command(_command, name=_name)

Physical = Annotated[
    str | None, Parameter(help="Physical cluster, id or name.", show_default="every cluster")
]
_BROKERS = {
    "BROKER": "broker", "LOAD": "load", "HANDLERS": "handlers", "NETWORK": "network", "WAIT": "wait",
    "SERVICE": "service", "REQUESTS": "requests", "IN": "in", "OUT": "out", "REPLICAS": "replicas",
    "LEADERS": "leaders", "DISK": "disk", "AGE": "age", "UNKNOWN BECAUSE": "missing",
}  # fmt: skip
SECONDS_MIN = 2.0  # idle times are counted in steps of 0.3 s
_PROFILE = {"VALUE": "value", "FITTED": "fitted"}
_CONDITIONS = ("imbalanced", "balance-blocked", "balancing")
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@app.command(name="show")
def show_(cluster: Physical = None, *, options: RemoteOptions = RemoteOptions()) -> int:
    """Show the load of every broker, from idle (0 %) to saturated (100 %), and what it is made of.

    Values are averages over a minute. IN and OUT include replication.

    Example:  penstock balance show
    """
    control = connected(options)
    known = list(control.every("/physical-clusters"))
    chosen = [each for each in known if cluster in (None, each["id"], each["name"])]
    ids = [each["id"] for each in chosen] or [str(cluster)]  # an unknown one is the API's error
    loads = [control.get(f"/physical-clusters/{each}/load") for each in ids]
    show(loads, options.form, Group(*(part for load in loads for part in _parts(load))))
    for line in (line for each in chosen for line in _balancing(each)):
        report(plain(line))
    return Exit.FINE


@app.command
def calibrate(
    cluster: Annotated[
        str | None, Parameter(help="Physical cluster, id or name.", show_default="the first")
    ] = None,
    *,
    broker: Annotated[int | None, Parameter(help="Broker to drive.", show_default="the first")] = None,
    seconds: Annotated[float, Parameter(help="Seconds at each of eleven levels of load.")] = 15.0,
    with_tenants: Annotated[
        bool, Parameter(help="Also on a cluster with tenants, which it slows down.", negative="")
    ] = False,
    dry_run: Annotated[bool, Parameter(help="Fit the profile, but do not store it.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Fit the load profile of a local cluster: drive one broker up to its limit, and measure it.

    Takes about four minutes. The topic that it writes to is deleted at the end.

    Example:  penstock balance calibrate --dry-run
    """
    if seconds < SECONDS_MIN:
        raise UsageInvalid(reason=f"--seconds is {seconds:g}", way_out=f"Use {SECONDS_MIN:g} or more.")
    control = connected(options)
    provided = _provided(options, cluster)
    tenants = [each for each in control.every("/clusters") if each["physical_cluster"] == provided.id]
    if tenants and not with_tenants:
        raise CalibrationWithTenants(cluster=provided.id, count=len(tenants))
    agents = {number: (host, port) for number, host, port in provided.metrics}
    chosen = min(agents) if broker is None else broker
    if chosen not in agents:
        known = ", ".join(map(str, sorted(agents)))
        raise UsageInvalid(reason=f"{provided.id} has no broker {chosen}", way_out=f"Choose one of {known}.")
    points = asyncio.run(_points(provided, chosen, agents[chosen], seconds))
    try:
        profile = fit(points)
    except ValueError as failure:
        raise CalibrationFailed(broker=chosen, reason=str(failure)) from None
    fitted = quality(points, profile)
    rows = [
        {"offered": f"{each.offered:.0%}", "load": f"{broker_load(each.measured, profile):.0%}"}
        for each in points
    ]
    data = {"profile": asdict(profile), "r_squared": fitted.r_squared, "worst_error": fitted.worst_error}
    values = [{"value": name, "fitted": f"{value:.3g}"} for name, value in asdict(profile).items()]
    show(
        data,
        options.form,
        Group(table_of(rows, {"OFFERED": "offered", "LOAD": "load"}), table_of(values, _PROFILE)),
    )
    report(f"R² {fitted.r_squared:.3f}, largest error {fitted.worst_error:.2f}")
    if not dry_run:
        control.change("PUT", f"/physical-clusters/{provided.id}/load-profile", asdict(profile))
    return Exit.FINE


def _provided(options: RemoteOptions, cluster: str | None) -> ProvidedCluster:
    """A cluster of this home: only its login is known here."""
    known = fleet_clusters(options.layout)
    for each in known:
        if cluster in (None, each.id, each.name):
            return each
    names = ", ".join(each.name for each in known)
    raise UsageInvalid(reason=f"{cluster} is no cluster of this home", way_out=f"Choose one of {names}.")


async def _points(
    provided: ProvidedCluster, broker: int, agent: tuple[str, int], seconds: float
) -> list[Point]:
    async with provided.client() as client:
        driver = Driver(client, broker, Workload())
        await driver.prepare()
        try:
            return await measured_points(
                driver, agent, seconds=seconds, report=lambda line: report(plain(line))
            )
        finally:
            await driver.clean_up()


def _parts(load: dict[str, Any]) -> list[Any]:
    rows = [_row(broker) for broker in load["brokers"]]
    columns = dict(_BROKERS)
    if not any(row["missing"] for row in rows):
        del columns["UNKNOWN BECAUSE"]
    return [plain(_summary(load)), table_of(rows, columns, empty="no broker has been observed yet")]


def _balancing(physical: dict[str, Any]) -> list[str]:
    """The mode of automatic balancing, if it is on, and its conditions."""
    if physical["balance_mode"] == "off":
        return []
    conditions = [c for c in physical["conditions"] if c["kind"] in _CONDITIONS]
    shown = [f"{c['kind']}: {c['detail']}" for c in conditions] or ["balanced"]
    return [f"{physical['id']} ({physical['balance_mode']}): {each}" for each in shown]


def _summary(load: dict[str, Any]) -> str:
    if load["load"] is None:
        return f"{load['physical_cluster']}: load unknown, because a broker's is"
    return (
        f"{load['physical_cluster']}: load {load['load']:.0%}, that of its most loaded broker, "
        f"{load['imbalance']:.2f} times the mean"
    )


def _row(broker: dict[str, Any]) -> dict[str, Any]:
    known = broker["load"] is not None
    used, total, age = broker["disk_used_bytes"], broker["disk_total_bytes"], broker["scrape_age_ms"]
    return {
        "broker": broker["broker"],
        "load": f"{broker['load']:.0%}" if known else "unknown",
        "handlers": f"{broker['handlers_busy']:.0%}" if known else None,
        "network": f"{broker['network_busy']:.0%}" if known else None,
        "wait": f"{broker['wait_ms']:.2f} ms" if known else None,
        "service": f"{broker['service_ms']:.2f} ms" if known else None,
        "requests": f"{broker['requests']:.0f}/s" if known else None,
        "in": f"{_size(broker['bytes_in'] + broker['replication_bytes_in'])}/s" if known else None,
        "out": f"{_size(broker['bytes_out'] + broker['replication_bytes_out'])}/s" if known else None,
        "replicas": broker["replicas"],
        "leaders": broker["leaders"],
        "disk": f"{_size(used)} of {_size(total)}" if used is not None and total is not None else "unknown",
        "age": "never measured" if age is None else f"{age / 1000:.0f} s",
        "missing": "; ".join(broker["missing"]) or None,
    }


def _size(value: float) -> str:
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"
