"""`penstock cluster`: logical clusters, each an ordinary Kafka cluster to its tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.flags import Yes, confirmed
from penstock.cli.output import Format, home_flag, plain, report, show, table_of, this_command
from penstock.cli.remote import connected, tenant_key, wait_for
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.client_settings import ClientChoice, To, client_settings, hand_out
from penstock.control.capacity_units import parse_rate
from penstock.model.entities import Tenancy, Zones
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.control import KeyNotStored
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted
from penstock.platform.control_client import ControlClient
from penstock.platform.keyring import SavedKey, create_key, delete_key, save_key

app = App(name="cluster", help="Logical clusters: create, show, change, move, delete, connect.")

COLUMNS = {
    "ID": "id", "NAME": "name", "STATE": "state", "UNITS": "units", "TENANCY": "tenancy", "ZONES": "zones",
    "CELL": "cell", "BOOTSTRAP": "bootstrap",
}  # fmt: skip

Wait = Annotated[bool, Parameter(help="Wait until it is done.")]
Which = Annotated[str, Parameter(help="Id or name.")]
_NEEDS = {
    "ingress": "ingress_bytes",
    "egress": "egress_bytes",
    "partitions": "partitions",
    "connections": "connections",
    "requests": "requests",
}


@app.command
def create(
    name: Annotated[str, Parameter(help="Its name.")],
    *,
    units: Annotated[int | None, Parameter(help="Size in capacity units.")] = None,
    ingress: Annotated[str | None, Parameter(help="Required write rate, such as 20MB/s.")] = None,
    egress: Annotated[str | None, Parameter(help="Required read rate, such as 60MB/s.")] = None,
    partitions: Annotated[str | None, Parameter(help="Required partitions, before replication.")] = None,
    connections: Annotated[str | None, Parameter(help="Required concurrent connections.")] = None,
    requests: Annotated[str | None, Parameter(help="Required requests per second.")] = None,
    tenancy: Annotated[Tenancy, Parameter(help="Share brokers with other tenants or not.")] = Tenancy.SHARED,
    adopted: Annotated[
        str | None, Parameter(help="The adopted cluster to use.", show_default="any with room")
    ] = None,
    zones: Annotated[Zones, Parameter(help="Spread over zones, or in one.")] = Zones.MULTI,
    allow: Annotated[
        list[str] | None, Parameter(help="Network that may connect; repeatable.", negative="")
    ] = None,
    deny: Annotated[
        list[str] | None, Parameter(help="Network that may not; repeatable.", negative="")
    ] = None,
    auto_create_topics: Annotated[
        bool, Parameter(help="Create a topic when a client asks for one that does not exist.")
    ] = False,
    key: Annotated[bool, Parameter(help="Create an API key and save it here.")] = True,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Create a logical cluster for a workload, and an API key for it.

    Example:  penstock cluster create shop --ingress 20MB/s --partitions 300
    """
    given = {"ingress": ingress, "egress": egress, "partitions": partitions, "connections": connections}
    given["requests"] = requests
    needs = {
        _NEEDS[flag]: parse_rate(value, where="penstock cluster create", key=f"--{flag}")
        for flag, value in given.items()
        if value is not None
    }
    body: dict[str, Any] = {
        "name": name,
        "tenancy": str(tenancy),
        "zones": str(zones),
        "needs": needs,
        "network": {"allow": allow or [], "deny": deny or []},
        "auto_create_topics": auto_create_topics,
    }
    if units is not None:
        body["units"] = units
    if adopted is not None:
        body["adopted"] = adopted
    control = connected(options)
    made = control.change("POST", "/clusters", body)
    if wait or key:
        wait_for(control, made["operation"])
        made["cluster"] = control.get(f"/clusters/{made['cluster']['id']}")
    data = dict(made["cluster"])
    _report_rounding(name, data, given)
    if key:
        saved = create_key(
            control, options.layout, data, description="created with the cluster", wait=wait_for
        )
        data |= {"key": saved.key, "secret": saved.secret}
    shown = {k: data.get(k) for k in ("id", "name", "state", "units", "bootstrap", "key", "secret")}
    if options.form is not Format.TABLE:
        show(shown, options.form, "")
        return Exit.FINE
    rows = [{"what": what, "value": value} for what, value in shown.items() if value is not None]
    show(shown, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    if key:
        report("The secret is shown once. These commands use a copy that is stored on this machine.")
        report("Next:")
        for step in (f"topic create orders --cluster {name}", f"produce orders hello --cluster {name}"):
            report(plain(f"  {this_command()} {step}{home_flag(options.layout)}"))
    return Exit.FINE


@app.command(name="list")
def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """List the logical clusters.

    Example:  penstock cluster list -o json
    """
    rows = list(connected(options).every("/clusters"))
    show(rows, options.form, table_of(rows, COLUMNS, empty="no logical clusters"))
    return Exit.FINE


@app.command(name="show")
def show_(cluster: Which, *, options: RemoteOptions = RemoteOptions()) -> int:
    """Show a logical cluster: size, quota, network rules, cell.

    Example:  penstock cluster show shop
    """
    entity = connected(options).get(f"/clusters/{cluster}")
    rows = [{"what": what, "value": _flat(value)} for what, value in entity.items()]
    show(entity, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command
def update(
    cluster: Which,
    *,
    name: Annotated[str | None, Parameter(help="A new name.")] = None,
    units: Annotated[int | None, Parameter(help="A new size.")] = None,
    allow: Annotated[list[str] | None, Parameter(help="Networks that may connect; repeatable.")] = None,
    deny: Annotated[list[str] | None, Parameter(help="Networks that may not; repeatable.")] = None,
    auto_create_topics: Annotated[
        bool | None, Parameter(help="Create a topic when a client asks for one that does not exist.")
    ] = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Change a logical cluster. --allow and --deny replace the whole list.

    Example:  penstock cluster update shop --units 2
    """
    control = connected(options)
    before, version = control.read(f"/clusters/{cluster}")
    given = {"name": name, "units": units, "auto_create_topics": auto_create_topics}
    body: dict[str, Any] = {k: v for k, v in given.items() if v is not None and v != before[k]}
    if allow is not None or deny is not None:
        network = before["network"]
        body["network"] = {
            "allow": network["allow"] if allow is None else allow,
            "deny": network["deny"] if deny is None else deny,
        }
    if not body:
        raise UsageInvalid(
            reason=f"nothing to change: {before['name']} is already like that",
            way_out="Name a change: --name, --units, --allow, --deny or --auto-create-topics.",
        )
    made = control.change("PATCH", f"/clusters/{before['id']}", body, version=version)
    return finished(control, made["operation"], options, wait=wait)


@app.command
def delete(
    cluster: Which, *, yes: Yes = False, wait: Wait = True, options: RemoteOptions = RemoteOptions()
) -> int:
    """Delete a logical cluster with its topics, groups, accounts and keys.

    Example:  penstock cluster delete shop --yes
    """
    control = connected(options)
    name = control.get(f"/clusters/{cluster}")["name"]
    if not confirmed(f"This deletes logical cluster {name} and all its data.", yes=yes):
        return Exit.FAILED
    made = control.change("DELETE", f"/clusters/{cluster}")
    code = finished(control, made["operation"], options, wait=wait)
    delete_key(options.layout, made["operation"]["subject"])
    return code


@app.command
def move(
    cluster: Which,
    *,
    cell: Annotated[str | None, Parameter(help="The target cell.", show_default="one with room")] = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Move a logical cluster to another cell while its clients keep working.

    Example:  penstock cluster move shop --cell cell-2
    """
    control = connected(options)
    made = control.change("POST", f"/clusters/{cluster}/move", {"cell": cell})
    return finished(control, made["operation"], options, wait=wait, seconds=3600)


@app.command
def connect(
    cluster: Annotated[str | None, Parameter(help="Id or name.", show_default="the only one")] = None,
    *,
    client: ClientChoice = "java",
    to: To = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Print settings for a client, with the API key stored on this machine.

    Example:  penstock cluster connect shop --client python
    """
    try:
        saved = tenant_key(options, cluster)
    except KeyNotStored:
        if cluster is not None:
            connected(options).get(f"/clusters/{cluster}")  # raises if it does not exist
        raise
    saved = _with_current_addresses(saved, options)
    settings = client_settings(saved.bootstrap, saved.login, client, tls=saved.tls, ca=saved.ca or None)
    hand_out(settings, client, options.form, to)
    return Exit.FINE


def _with_current_addresses(saved: SavedKey, options: RemoteOptions) -> SavedKey:
    """The key with the addresses of its gateways now; the stored ones if no control plane responds."""
    if not saved.cluster:
        return saved
    try:
        cluster = connected(options).get(f"/clusters/{saved.cluster}")
    except PenstockError:
        return saved
    if not cluster["bootstrap"]:
        return saved
    current = replace(saved, bootstrap=cluster["bootstrap"], tls=saved.tls or cluster["tls"])
    if current != saved:
        save_key(options.layout, current)
    return current


def _report_rounding(name: str, cluster: dict[str, Any], given: Mapping[str, str | None]) -> None:
    """A cluster has whole capacity units: report what was requested and what they give."""
    more = {
        flag: cluster["quota"][_NEEDS[flag]]
        for flag, text in given.items()
        if text is not None
        and cluster["quota"][_NEEDS[flag]] > parse_rate(text, where="penstock cluster create", key=flag)
    }
    if more:
        units = counted(cluster["units"], "capacity unit")
        rounded = ", ".join(
            f"{flag} {given[flag]} to {_rate_text(flag, value)}" for flag, value in more.items()
        )
        limits = " ".join(f"--{flag} {given[flag]}" for flag in more)
        report(f"rounded up to {units}: {plain(rounded)}")
        report(plain(f"  For the requested limits: {this_command()} quota set {name} {limits}"))


def _rate_text(flag: str, value: float) -> str:
    return f"{value / 1e6:,g}MB/s" if flag in ("ingress", "egress") else f"{value:,.0f}"


def finished(
    control: ControlClient,
    operation: dict[str, Any],
    options: RemoteOptions,
    *,
    wait: bool,
    seconds: float = 120.0,
) -> int:
    """Show the operation; with `wait`, once it has ended."""
    if wait:
        operation = wait_for(control, operation, seconds=seconds)
    columns = {"OPERATION": "id", "ACTION": "action", "SUBJECT": "subject", "STATE": "state"}
    show(operation, options.form, table_of([operation], columns))
    return Exit.FINE


def _flat(value: Any) -> Any:
    """A value for the table; of an object, what is set."""
    if isinstance(value, dict):
        return ", ".join(f"{k}={_flat(v)}" for k, v in value.items() if v not in (None, [], {}))
    if isinstance(value, list):
        return ",".join(map(str, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value
