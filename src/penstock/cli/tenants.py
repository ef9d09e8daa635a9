"""`penstock account`, `key`, `acl`, `operation`, `cell`: what belongs to logical clusters."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.cluster import Wait, finished, make_key
from penstock.cli.keyring import Kept, every, forget, keep
from penstock.cli.output import show, table_of, tell
from penstock.cli.remote import WAIT_SECONDS, Control, connected
from penstock.cli.settings import RemoteOptions
from penstock.model.entities import Role
from penstock.model.errors import Exit
from penstock.model.errors.control import EntityMissing

account = App(name="account", help="Service accounts: who a logical cluster's applications are.")
key = App(name="key", help="API keys: create, list, rotate, revoke.")
acl = App(name="acl", help="What a limited service account may do.")
operation = App(name="operation", help="What is under way, and what was done.")
cell = App(name="cell", help="Cells: the brokers that tenants are confined to, and their load.")

_ACCOUNTS = {"ID": "id", "NAME": "name", "ROLE": "role", "READY": "ready", "GRANTS": "grants"}
_KEYS = {"ID": "id", "ACCOUNT": "account", "DESCRIPTION": "description", "REPLACED BY": "replaced_by"}
_ACLS = {
    "RESOURCE": "resource", "NAME": "name", "PATTERN": "pattern", "OPERATION": "operation",
    "PERMISSION": "permission", "ORIGIN": "origin",
}  # fmt: skip
_ORIGINS = {"tenant": "made by the tenant"}
_OPERATIONS = {
    "ID": "id", "ACTION": "action", "SUBJECT": "subject", "STATE": "state", "DONE": "steps_done",
    "OF": "steps_total", "STEP": "step", "DETAIL": "detail", "ERROR": "error",
}  # fmt: skip
_CELLS = {
    "ID": "id",
    "CLUSTER": "physical_cluster",
    "BROKERS": "brokers",
    "LOAD": "load",
    "TENANTS": "clusters",
    "CONDITIONS": "conditions",
}

Cluster = Annotated[str, Parameter(name=["--cluster", "-c"], help="Logical cluster, id or name.")]
GrantedTo = Annotated[str, Parameter(help="Service account, id or name.")]
Granted = Annotated[str, Parameter(help="read, write, describe, all, …")]
GrantedOn = Annotated[str, Parameter(help="Of the topic, or what is given by --resource; * for all.")]
ResourceKind = Annotated[str, Parameter(help="topic, group or transactional-id.")]
Prefixed = Annotated[bool, Parameter(help="All names that begin so.", negative="")]


@account.command(name="create")
def create_account(
    name: Annotated[str, Parameter(help="What to call it.")],
    *,
    cluster: Cluster,
    role: Annotated[Role, Parameter(help="Everything, or what it is granted.")] = Role.LIMITED,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make a service account.

    Example:  penstock account create billing --cluster shop
    """
    control = connected(options)
    made = control.change("POST", f"/clusters/{cluster}/accounts", {"name": name, "role": str(role)})
    found = made["account"]
    if wait:
        control.wait(made["operation"])
        found = control.get(f"/accounts/{found['id']}")
    show(found, options.form, table_of([_account_row(found)], _ACCOUNTS))
    return Exit.FINE


@account.command(name="list")
def list_accounts(*, cluster: Cluster, options: RemoteOptions = RemoteOptions()) -> int:
    """The service accounts of a logical cluster.

    Example:  penstock account list --cluster shop
    """
    rows = list(connected(options).every(f"/clusters/{cluster}/accounts"))
    show(rows, options.form, table_of([_account_row(row) for row in rows], _ACCOUNTS))
    return Exit.FINE


@account.command(name="delete")
def delete_account(
    name: Annotated[str, Parameter(help="Id or name.")],
    *,
    cluster: Cluster,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Delete a service account with its keys.

    Example:  penstock account delete billing --cluster shop
    """
    control = connected(options)
    found = _account(control, cluster, name)
    made = control.change("DELETE", f"/accounts/{found['id']}")
    return finished(control, made["operation"], options, wait=wait)


@key.command(name="create")
def create_key(
    *,
    cluster: Cluster,
    account: Annotated[str | None, Parameter(help="Id or name.", show_default="owner")] = None,
    description: Annotated[str, Parameter(help="What it is for.")] = "",
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make an API key. Its secret is shown here and never again; a copy is kept for these commands.

    Example:  penstock key create --cluster shop --account billing
    """
    control = connected(options)
    made = make_key(control, options, control.get(f"/clusters/{cluster}"), account, description)
    rows = [{"part": part, "value": value} for part, value in made.items()]
    show(made, options.form, table_of(rows, {"PART": "part", "VALUE": "value"}))
    return Exit.FINE


@key.command(name="list")
def list_keys(*, cluster: Cluster, options: RemoteOptions = RemoteOptions()) -> int:
    """The API keys of a logical cluster, without their secrets.

    Example:  penstock key list --cluster shop
    """
    rows = list(connected(options).every(f"/clusters/{cluster}/keys"))
    show(rows, options.form, table_of(rows, _KEYS))
    return Exit.FINE


@key.command
def rotate(
    key: Annotated[str, Parameter(help="The key's id.")],
    *,
    grace: Annotated[float, Parameter(help="How long the old one stays valid, seconds.")] = 0.0,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Replace an API key by a new one of the same account. Returns when the new one works.

    Example:  penstock key rotate ABCDEFGH12345678 --grace 3600
    """
    control = connected(options)
    made = control.change("POST", f"/keys/{key}/rotate", {"grace_seconds": grace})
    if grace == 0:
        control.wait(made["operation"])
    else:
        tell(
            f"{key} stays valid for {grace:g} s; "
            f"follow it with: penstock operation wait {made['operation']['id']}"
        )
    found = {"key": made["key"]["id"], "secret": made["secret"]}
    for kept in every(options.layout):
        if kept.key == key:
            new = Kept(kept.cluster, kept.name, kept.bootstrap, found["key"], found["secret"])
            keep(options.layout, new)
    rows = [{"part": part, "value": value} for part, value in found.items()]
    show(found, options.form, table_of(rows, {"PART": "part", "VALUE": "value"}))
    return Exit.FINE


@key.command
def revoke(
    key: Annotated[str, Parameter(help="The key's id.")],
    *,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """End an API key; its connections are closed.

    Example:  penstock key revoke ABCDEFGH12345678
    """
    control = connected(options)
    made = control.change("DELETE", f"/keys/{key}")
    for kept in every(options.layout):
        if kept.key == key:
            forget(options.layout, kept.cluster)
    return finished(control, made["operation"], options, wait=wait)


@acl.command(name="list")
def list_acls(
    account: Annotated[str, Parameter(help="Service account, id or name.")],
    *,
    cluster: Cluster,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """What a service account may do: by its role, by what it was granted, by rules made through Kafka.

    Example:  penstock acl list billing --cluster shop
    """
    control = connected(options)
    found = _account(control, cluster, account)
    rows = sorted(control.every(f"/accounts/{found['id']}/rules"), key=lambda row: list(row.values()))
    shown = [row | {"origin": _ORIGINS.get(row["origin"], row["origin"])} for row in rows]
    show(rows, options.form, table_of(shown, _ACLS))
    return Exit.FINE


@acl.command
def grant(
    account: GrantedTo,
    operation: Granted,
    name: GrantedOn,
    *,
    cluster: Cluster,
    resource: ResourceKind = "topic",
    prefixed: Prefixed = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Allow a limited service account something.

    Example:  penstock acl grant billing read orders --cluster shop
    """
    right = _right(resource, name, operation, prefixed=prefixed)
    return _regrant(options, cluster, account, right, add=True)


@acl.command(name="revoke")
def revoke_acl(
    account: GrantedTo,
    operation: Granted,
    name: GrantedOn,
    *,
    cluster: Cluster,
    resource: ResourceKind = "topic",
    prefixed: Prefixed = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Take back what was granted. A rule that the tenant made is deleted through Kafka.

    Example:  penstock acl revoke billing read orders --cluster shop
    """
    right = _right(resource, name, operation, prefixed=prefixed)
    return _regrant(options, cluster, account, right, add=False)


@operation.command(name="list")
def list_operations(
    *,
    cluster: Annotated[str, Parameter(name=["--cluster", "-c"], help="Of one logical cluster.")] = "",
    state: Annotated[str, Parameter(help="running, done or failed.")] = "",
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Operations of the last day.

    Example:  penstock operation list --state running
    """
    rows = list(connected(options).every("/operations", cluster=cluster, state=state))
    rows.sort(key=lambda row: row["made_ms"])
    show(rows, options.form, table_of(rows, _OPERATIONS))
    return Exit.FINE


@operation.command(name="show")
def show_operation(
    operation: Annotated[str, Parameter(help="Its id.")], *, options: RemoteOptions = RemoteOptions()
) -> int:
    """One operation.

    Example:  penstock operation show op-7hq2mz0000
    """
    found = connected(options).get(f"/operations/{operation}")
    show(found, options.form, table_of([found], _OPERATIONS))
    return Exit.FINE


@operation.command(name="wait")
def wait_for(
    operation: Annotated[str, Parameter(help="Its id.")],
    *,
    timeout: Annotated[float, Parameter(help="How long to wait, seconds.")] = WAIT_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Wait until an operation has ended.

    Example:  penstock operation wait op-7hq2mz0000
    """
    control = connected(options)
    ended = control.wait(control.get(f"/operations/{operation}"), seconds=timeout)
    show(ended, options.form, table_of([ended], _OPERATIONS))
    return Exit.FINE


@cell.command(name="list")
def list_cells(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Every cell, its brokers, its load, how many tenants it has, and what it needs.

    Example:  penstock cell list
    """
    rows = list(connected(options).every("/cells"))
    shown = [
        row
        | {"brokers": ",".join(map(str, row["brokers"]))}
        | {"conditions": ",".join(condition["kind"] for condition in row["conditions"]) or None}
        for row in rows
    ]
    show(rows, options.form, table_of(shown, _CELLS))
    told = {(row["physical_cluster"], c["detail"], c["remedy"]) for row in rows for c in row["conditions"]}
    for cluster, detail, remedy in sorted(told):
        tell(f"{cluster}: {detail}\n  {remedy}")
    return Exit.FINE


@cell.command(name="add")
def add_cell(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Grow the local fleet by a cell: as many brokers as a cell has, evenly over its zones.

    Brokers that run go on; gateways are started again, so clients connect anew. Returns when tenants
    can be placed in the new cell.

    Example:  penstock cell add
    """
    from penstock.cli.growing import add_cell

    made = add_cell(options)
    row = made | {"brokers": ",".join(map(str, made["brokers"])), "conditions": None}
    show(made, options.form, table_of([row], _CELLS))
    return Exit.FINE


def _account(control: Control, cluster: str, name: str) -> dict[str, Any]:
    found: dict[str, Any]
    for found in control.every(f"/clusters/{cluster}/accounts"):
        if name in (found["id"], found["name"]):
            return found
    raise EntityMissing(kind="service account", id=name)


def _account_row(shown: dict[str, Any]) -> dict[str, Any]:
    return shown | {"grants": len(shown["grants"]) if shown["role"] == "limited" else None}


def _right(resource: str, name: str, operation: str, *, prefixed: bool) -> dict[str, str]:
    pattern = "prefixed" if prefixed else "literal"
    return {"resource": resource, "name": name, "operation": operation, "pattern": pattern}


def _regrant(options: RemoteOptions, cluster: str, name: str, right: dict[str, str], *, add: bool) -> int:
    control = connected(options)
    account_id = _account(control, cluster, name)["id"]
    found, version = control.read(f"/accounts/{account_id}")
    if not add and right not in found["grants"]:
        raise EntityMissing(
            kind="grant", id="{operation} on {pattern} {resource} {name}".format_map(right) + f" of {name}"
        )
    grants = [one for one in found["grants"] if one != right] + ([right] if add else [])
    made = control.change("PATCH", f"/accounts/{account_id}", {"grants": grants}, version=version)
    return finished(control, made["operation"], options, wait=True)
