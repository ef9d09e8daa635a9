"""`penstock account`, `key`, `acl`, `operation`, `cell`: parts of logical clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.flags import Yes, confirmed
from penstock.cli.operator.resize import add_cell, grow_cell
from penstock.cli.output import report, show, table_of
from penstock.cli.remote import connected, wait_for
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import Wait, finished
from penstock.model.api_keys import ROTATION_SECONDS
from penstock.model.entities import Role
from penstock.model.errors import Exit
from penstock.model.errors.control import EntityMissing
from penstock.platform import keyring
from penstock.platform.control_client import WAIT_SECONDS, ControlClient

account = App(name="account", help="Service accounts: the identities of applications.")
key = App(name="key", help="API keys: create, list, rotate, revoke.")
acl = App(name="acl", help="ACLs: what a limited service account may do.")
operation = App(name="operation", help="Operations of the control plane, running and ended.")
cell = App(name="cell", help="Cells: the groups of brokers that tenants are placed in.")

_ACCOUNTS = {"ID": "id", "NAME": "name", "ROLE": "role", "READY": "ready", "GRANTS": "grants"}
_KEYS = {"ID": "id", "ACCOUNT": "account", "DESCRIPTION": "description", "REPLACED BY": "replaced_by"}
_ACLS = {
    "RESOURCE": "resource", "NAME": "name", "PATTERN": "pattern", "OPERATION": "operation",
    "PERMISSION": "permission", "ORIGIN": "origin",
}  # fmt: skip
_ORIGINS = {"tenant": "created by the tenant"}
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
Granted = Annotated[str, Parameter(help="Operation: read, write, describe, all, …")]
GrantedOn = Annotated[str, Parameter(help="Name of the resource; * for all.")]
ResourceKind = Annotated[str, Parameter(help="Kind of resource: topic, group or transactional-id.")]
Prefixed = Annotated[bool, Parameter(help="All names with this prefix.", negative="")]


@account.command(name="create")
def create_account(
    name: Annotated[str, Parameter(help="Its name.")],
    *,
    cluster: Cluster,
    role: Annotated[Role, Parameter(help="owner: everything; limited: what you grant.")] = Role.LIMITED,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Create a service account.

    Example:  penstock account create billing --cluster shop
    """
    control = connected(options)
    made = control.change("POST", f"/clusters/{cluster}/accounts", {"name": name, "role": str(role)})
    entity = made["account"]
    if wait:
        wait_for(control, made["operation"])
        entity = control.get(f"/accounts/{entity['id']}")
    show(entity, options.form, table_of([_account_row(entity)], _ACCOUNTS))
    return Exit.FINE


@account.command(name="list")
def list_accounts(*, cluster: Cluster, options: RemoteOptions = RemoteOptions()) -> int:
    """List the service accounts of a logical cluster.

    Example:  penstock account list --cluster shop
    """
    rows = list(connected(options).every(f"/clusters/{cluster}/accounts"))
    view = table_of([_account_row(row) for row in rows], _ACCOUNTS, empty="no service accounts")
    show(rows, options.form, view)
    return Exit.FINE


@account.command(name="delete")
def delete_account(
    name: Annotated[str, Parameter(help="Id or name.")],
    *,
    cluster: Cluster,
    yes: Yes = False,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Delete a service account and its keys.

    Example:  penstock account delete billing --yes --cluster shop
    """
    control = connected(options)
    account_id = _account(control, cluster, name)["id"]
    if not confirmed(f"This deletes service account {name} and its keys.", yes=yes):
        return Exit.FAILED
    made = control.change("DELETE", f"/accounts/{account_id}")
    return finished(control, made["operation"], options, wait=wait)


@key.command(name="create")
def create_key(
    *,
    cluster: Cluster,
    account: Annotated[str | None, Parameter(help="Id or name.", show_default="owner")] = None,
    description: Annotated[str, Parameter(help="A note on its purpose.")] = "",
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Create an API key and save a copy for these commands. The secret is shown only now.

    Example:  penstock key create --cluster shop --account billing
    """
    control = connected(options)
    entity = control.get(f"/clusters/{cluster}")
    saved = keyring.create_key(control, options.layout, entity, account, description, wait=wait_for)
    made = {"key": saved.key, "secret": saved.secret}
    rows = [{"part": part, "value": value} for part, value in made.items()]
    show(made, options.form, table_of(rows, {"PART": "part", "VALUE": "value"}))
    return Exit.FINE


@key.command(name="list")
def list_keys(*, cluster: Cluster, options: RemoteOptions = RemoteOptions()) -> int:
    """List the API keys of a logical cluster, without their secrets.

    Example:  penstock key list --cluster shop
    """
    rows = list(connected(options).every(f"/clusters/{cluster}/keys"))
    show(rows, options.form, table_of(rows, _KEYS, empty="no API keys"))
    return Exit.FINE


@key.command
def rotate(
    key: Annotated[str, Parameter(help="The key's id.")],
    *,
    grace: Annotated[
        float, Parameter(help="Seconds for which the old key stays valid. Use 0 if it has leaked.")
    ] = ROTATION_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Replace an API key with a new one of the same account. Returns when the new key works.

    Example:  penstock key rotate ABCDEFGH12345678 --grace 3600
    """
    control = connected(options)
    made = control.change("POST", f"/keys/{key}/rotate", {"grace_seconds": grace})
    wait_for(control, made["operation"], until="grace" if grace else "")
    if grace:
        report(
            f"{key} stays valid for {grace:g} s; "
            f"wait for its end with: penstock operation wait {made['operation']['id']}"
        )
    new = {"key": made["key"]["id"], "secret": made["secret"]}
    for saved in keyring.saved_keys(options.layout):
        if saved.key == key:
            keyring.save_key(options.layout, replace(saved, **new))
    rows = [{"part": part, "value": value} for part, value in new.items()]
    show(new, options.form, table_of(rows, {"PART": "part", "VALUE": "value"}))
    return Exit.FINE


@key.command
def revoke(
    key: Annotated[str, Parameter(help="The key's id.")],
    *,
    yes: Yes = False,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Revoke an API key and close its connections.

    Example:  penstock key revoke ABCDEFGH12345678 --yes
    """
    control = connected(options)
    control.get(f"/keys/{key}")
    if not confirmed(f"This revokes API key {key} and closes its connections.", yes=yes):
        return Exit.FAILED
    made = control.change("DELETE", f"/keys/{key}")
    for saved in keyring.saved_keys(options.layout):
        if saved.key == key:
            keyring.delete_key(options.layout, saved.cluster)
    return finished(control, made["operation"], options, wait=wait)


@acl.command(name="list")
def list_acls(
    account: Annotated[str, Parameter(help="Service account, id or name.")],
    *,
    cluster: Cluster,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """List what a service account may do: by its role, by grants, and by ACLs created through Kafka.

    Example:  penstock acl list billing --cluster shop
    """
    control = connected(options)
    account_id = _account(control, cluster, account)["id"]
    rows = sorted(control.every(f"/accounts/{account_id}/acls"), key=lambda row: list(row.values()))
    shown = [row | {"origin": _ORIGINS.get(row["origin"], row["origin"])} for row in rows]
    show(rows, options.form, table_of(shown, _ACLS, empty="no ACLs: this account may only log in"))
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
    """Grant a limited service account a right.

    Example:  penstock acl grant billing read orders --cluster shop
    """
    right = _right(resource, name, operation, prefixed=prefixed)
    return _change_grants(options, cluster, account, right, add=True)


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
    """Revoke a granted right. ACLs that the tenant created are deleted through Kafka.

    Example:  penstock acl revoke billing read orders --cluster shop
    """
    right = _right(resource, name, operation, prefixed=prefixed)
    return _change_grants(options, cluster, account, right, add=False)


@operation.command(name="list")
def list_operations(
    *,
    cluster: Annotated[str, Parameter(name=["--cluster", "-c"], help="Of one logical cluster.")] = "",
    state: Annotated[str, Parameter(help="running, done or failed.")] = "",
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """List the operations of the last day.

    Example:  penstock operation list --state running
    """
    rows = list(connected(options).every("/operations", cluster=cluster, state=state))
    rows.sort(key=lambda row: row["created_ms"])
    show(rows, options.form, table_of(rows, _OPERATIONS, empty="no operations"))
    return Exit.FINE


@operation.command(name="show")
def show_operation(
    operation: Annotated[str, Parameter(help="The operation's id.")],
    *,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Show an operation.

    Example:  penstock operation show op-7hq2mz0000
    """
    row = connected(options).get(f"/operations/{operation}")
    show(row, options.form, table_of([row], _OPERATIONS))
    return Exit.FINE


@operation.command(name="wait")
def wait_for_operation(
    operation: Annotated[str, Parameter(help="The operation's id.")],
    *,
    timeout: Annotated[float, Parameter(help="Seconds to wait.")] = WAIT_SECONDS,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Wait until an operation has ended.

    Example:  penstock operation wait op-7hq2mz0000
    """
    control = connected(options)
    ended = wait_for(control, control.get(f"/operations/{operation}"), seconds=timeout)
    show(ended, options.form, table_of([ended], _OPERATIONS))
    return Exit.FINE


@cell.command(name="list")
def list_cells(*, options: RemoteOptions = RemoteOptions()) -> int:
    """List the cells: brokers, load, tenants, and what they need.

    Example:  penstock cell list
    """
    rows = list(connected(options).every("/cells"))
    shown = [
        row
        | {"brokers": ",".join(map(str, row["brokers"]))}
        | {"load": "unknown" if row["load"] is None else round(row["load"], 3)}
        | {"conditions": ",".join(condition["kind"] for condition in row["conditions"]) or None}
        for row in rows
    ]
    show(rows, options.form, table_of(shown, _CELLS, empty="no cells"))
    conditions = {
        (row["physical_cluster"], c["detail"], c["remedy"]) for row in rows for c in row["conditions"]
    }
    for cluster, detail, remedy in sorted(conditions):
        report(f"{cluster}: {detail}\n  {remedy}")
    return Exit.FINE


cell.command(add_cell, name="add")
cell.command(grow_cell, name="grow")


def _account(control: ControlClient, cluster: str, name: str) -> dict[str, Any]:
    row: dict[str, Any]
    for row in control.every(f"/clusters/{cluster}/accounts"):
        if name in (row["id"], row["name"]):
            return row
    raise EntityMissing(kind="service account", id=name)


def _account_row(entity: dict[str, Any]) -> dict[str, Any]:
    return entity | {"grants": len(entity["grants"]) if entity["role"] == "limited" else None}


def _right(resource: str, name: str, operation: str, *, prefixed: bool) -> dict[str, str]:
    pattern = "prefixed" if prefixed else "literal"
    return {"resource": resource, "name": name, "operation": operation, "pattern": pattern}


def _change_grants(
    options: RemoteOptions, cluster: str, name: str, right: dict[str, str], *, add: bool
) -> int:
    control = connected(options)
    account_id = _account(control, cluster, name)["id"]
    entity, version = control.read(f"/accounts/{account_id}")
    if not add and right not in entity["grants"]:
        raise EntityMissing(
            kind="grant", id="{operation} on {pattern} {resource} {name}".format_map(right) + f" of {name}"
        )
    grants = [one for one in entity["grants"] if one != right] + ([right] if add else [])
    made = control.change("PATCH", f"/accounts/{account_id}", {"grants": grants}, version=version)
    return finished(control, made["operation"], options, wait=True)
