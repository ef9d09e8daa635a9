"""`penstock token`: operators' tokens for the HTTP API."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from penstock.cli.flags import Yes, confirmed
from penstock.cli.output import report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.model.entities import OperatorRole
from penstock.model.errors import Exit
from penstock.model.errors.control import EntityMissing

app = App(name="token", help="Operators' tokens for the HTTP API: create, list, delete.")

Name = Annotated[str, Parameter(help="Name of the token.")]


@app.command
def create(
    name: Name,
    *,
    role: Annotated[OperatorRole, Parameter(help="The role.")] = OperatorRole.VIEWER,
    cluster: Annotated[
        list[str] | None,
        Parameter(help="Logical cluster that the token is confined to; repeatable.", negative=""),
    ] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Create a token for the HTTP API. It is shown only now.

    Example:  penstock token create ci --role cluster-admin --cluster shop
    """
    body = {"name": name, "role": str(role), "clusters": cluster or []}
    made = connected(options).change("POST", "/tokens", body)
    data = {"name": name, "role": str(role), "token": made["secret"]}
    rows = [{"what": what, "value": value} for what, value in data.items()]
    show(data, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command(name="list")
def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """List the tokens, without their secrets.

    Example:  penstock token list
    """
    rows = list(connected(options).every("/tokens"))
    shown = [row | {"clusters": ",".join(row["clusters"])} for row in rows]
    columns = {"NAME": "name", "ROLE": "role", "CLUSTERS": "clusters"}
    show(rows, options.form, table_of(shown, columns, empty="no tokens"))
    return Exit.FINE


@app.command
def delete(name: Name, *, yes: Yes = False, options: RemoteOptions = RemoteOptions()) -> int:
    """Delete a token: it is refused from now on.

    Example:  penstock token delete ci --yes
    """
    control = connected(options)
    if name not in [row["name"] for row in control.every("/tokens")]:
        raise EntityMissing(kind="token", id=name)
    if not confirmed(f"This deletes token {name}: its holders are refused.", yes=yes):
        return Exit.FAILED
    control.change("DELETE", f"/tokens/{name}")
    report("deleted")
    return Exit.FINE
