"""`penstock cluster`: logical clusters, each an ordinary Kafka cluster to its tenant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from penstock.cli.keyring import Kept, forget, keep, kept_for
from penstock.cli.output import Format, home_flag, plain, show, table_of, tell, this_command
from penstock.cli.remote import Control, connected
from penstock.cli.settings import RemoteOptions
from penstock.control.units import parse_rate
from penstock.model.entities import Tenancy, Zones
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid

app = App(name="cluster", help="Logical clusters: create, show, change, move, delete, connect.")

COLUMNS = {
    "ID": "id", "NAME": "name", "STATE": "state", "UNITS": "units", "TENANCY": "tenancy", "ZONES": "zones",
    "CELL": "cell", "BOOTSTRAP": "bootstrap",
}  # fmt: skip

Wait = Annotated[bool, Parameter(help="Return when it is done.")]
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
    name: Annotated[str, Parameter(help="What to call it.")],
    *,
    units: Annotated[int | None, Parameter(help="Size in capacity units.")] = None,
    ingress: Annotated[str | None, Parameter(help="Needed, such as 20MB/s.")] = None,
    egress: Annotated[str | None, Parameter(help="Needed, such as 60MB/s.")] = None,
    partitions: Annotated[str | None, Parameter(help="Needed, before replication.")] = None,
    connections: Annotated[str | None, Parameter(help="Needed at the same time.")] = None,
    requests: Annotated[str | None, Parameter(help="Needed, a second.")] = None,
    tenancy: Annotated[Tenancy, Parameter(help="Alone on its brokers or not.")] = Tenancy.SHARED,
    adopted: Annotated[str | None, Parameter(help="Dedicated: an adopted cluster that is empty.")] = None,
    zones: Annotated[Zones, Parameter(help="Spread over zones, or all in one.")] = Zones.MULTI,
    allow: Annotated[list[str] | None, Parameter(help="A network that may connect.", negative="")] = None,
    deny: Annotated[list[str] | None, Parameter(help="A network that may not.", negative="")] = None,
    key: Annotated[bool, Parameter(help="Make an API key and keep it here.")] = True,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make a logical cluster of the size that a workload needs, and an API key for it.

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
    }
    if units is not None:
        body["units"] = units
    if adopted is not None:
        body["adopted"] = adopted
    control = connected(options)
    made = control.change("POST", "/clusters", body)
    if wait or key:
        control.wait(made["operation"])
        made["cluster"] = control.get(f"/clusters/{made['cluster']['id']}")
    data = dict(made["cluster"])
    if key:
        data |= make_key(control, options, data, None, "made with the cluster")
    shown = {k: data.get(k) for k in ("id", "name", "state", "units", "bootstrap", "key", "secret")}
    if options.form is not Format.TABLE:
        show(shown, options.form, "")
        return Exit.FINE
    rows = [{"what": what, "value": value} for what, value in shown.items() if value is not None]
    show(shown, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    if key:
        tell("The secret is shown once; a copy for these commands is kept under the home's secrets.")
        tell("Next:")
        for step in (f"topic create orders --cluster {name}", f"produce orders hello --cluster {name}"):
            tell(plain(f"  {this_command()} {step}{home_flag(options.layout)}"))
    return Exit.FINE


def make_key(
    control: Control, options: RemoteOptions, cluster: dict[str, Any], account: str | None, text: str
) -> dict[str, str]:
    """A key that works when this returns, kept here."""
    body = {"account": account, "description": text}
    made = control.change("POST", f"/clusters/{cluster['id']}/keys", body)
    control.wait(made["operation"])
    found = {"key": made["key"]["id"], "secret": made["secret"]}
    keep(
        options.layout,
        Kept(cluster["id"], cluster["name"], cluster["bootstrap"], found["key"], found["secret"]),
    )
    return found


@app.command(name="list")
def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Every logical cluster.

    Example:  penstock cluster list -o json
    """
    rows = list(connected(options).every("/clusters"))
    show(rows, options.form, table_of(rows, COLUMNS))
    return Exit.FINE


@app.command(name="show")
def show_(cluster: Which, *, options: RemoteOptions = RemoteOptions()) -> int:
    """One logical cluster: its size, quota, rules and where it lives.

    Example:  penstock cluster show shop
    """
    found = connected(options).get(f"/clusters/{cluster}")
    rows = [{"what": what, "value": _flat(value)} for what, value in found.items()]
    show(found, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command
def update(
    cluster: Which,
    *,
    name: Annotated[str | None, Parameter(help="A new name.")] = None,
    units: Annotated[int | None, Parameter(help="A new size.")] = None,
    allow: Annotated[list[str] | None, Parameter(help="Networks that may connect.")] = None,
    deny: Annotated[list[str] | None, Parameter(help="Networks that may not.")] = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Change what is named; network rules are replaced as a whole.

    Example:  penstock cluster update shop --units 2
    """
    control = connected(options)
    before, version = control.read(f"/clusters/{cluster}")
    body: dict[str, Any] = {
        k: v for k, v in {"name": name, "units": units}.items() if v is not None and v != before[k]
    }
    if allow is not None or deny is not None:
        network = before["network"]
        body["network"] = {
            "allow": network["allow"] if allow is None else allow,
            "deny": network["deny"] if deny is None else deny,
        }
    if not body:
        raise UsageInvalid(
            reason=f"nothing to change: {before['name']} is as asked for",
            way_out="Say what to change: --name, --units, --allow, --deny.",
        )
    made = control.change("PATCH", f"/clusters/{before['id']}", body, version=version)
    return finished(control, made["operation"], options, wait=wait)


@app.command
def delete(cluster: Which, *, wait: Wait = True, options: RemoteOptions = RemoteOptions()) -> int:
    """Delete a logical cluster with its topics, groups, accounts and keys.

    Example:  penstock cluster delete shop
    """
    control = connected(options)
    made = control.change("DELETE", f"/clusters/{cluster}")
    code = finished(control, made["operation"], options, wait=wait)
    forget(options.layout, made["operation"]["subject"])
    return code


@app.command
def move(
    cluster: Which,
    *,
    cell: Annotated[str | None, Parameter(help="Where to.", show_default="where there is room")] = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Move a logical cluster to another cell while its clients go on.

    Example:  penstock cluster move shop --cell cell-2
    """
    control = connected(options)
    made = control.change("POST", f"/clusters/{cluster}/move", {"cell": cell})
    return finished(control, made["operation"], options, wait=wait, seconds=3600)


@app.command
def connect(
    cluster: Annotated[str | None, Parameter(help="Id or name.", show_default="the only one")] = None,
    *,
    client: Annotated[
        Literal["java", "python", "kcat", "spark"], Parameter(help="Whose form of settings.")
    ] = "java",
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Print settings for a client, with the API key that is kept here.

    Example:  penstock cluster connect shop --client python
    """
    kept = kept_for(options.layout, cluster)
    settings = client_settings(kept, client)
    if options.form is not Format.TABLE:
        show(settings, options.form, "")
    elif client == "kcat":
        print("kcat " + " ".join(f"-X {key}={value}" for key, value in settings.items()) + " -L")
    elif client == "java":
        print("\n".join(f"{key}={value}" for key, value in settings.items()))
    else:
        print("{\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in settings.items()) + "}")
    return Exit.FINE


def client_settings(kept: Kept, client: str) -> dict[str, str]:
    plain_login = {
        "bootstrap.servers": kept.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
    }
    if client in ("python", "kcat"):
        return plain_login | {"sasl.username": kept.key, "sasl.password": kept.secret}
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="{kept.key}" password="{kept.secret}";'
    settings = plain_login | {"sasl.jaas.config": jaas}
    return {f"kafka.{key}": value for key, value in settings.items()} if client == "spark" else settings


def finished(
    control: Control,
    operation: dict[str, Any],
    options: RemoteOptions,
    *,
    wait: bool,
    seconds: float = 120.0,
) -> int:
    """The operation, at its end if that was asked for."""
    if wait:
        operation = control.wait(operation, seconds=seconds)
    columns = {"OPERATION": "id", "ACTION": "action", "SUBJECT": "subject", "STATE": "state"}
    show(operation, options.form, table_of([operation], columns))
    return Exit.FINE


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_flat(v)}" for k, v in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
