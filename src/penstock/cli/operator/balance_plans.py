"""`penstock balance`: plans that move replicas and leaders between brokers. `balance` has the commands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Group

from penstock.balance.rounds import BalancerMode
from penstock.cli.output import plain, progress, report, show, table_of
from penstock.cli.remote import connected, physical_cluster, wait_for
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import Wait, finished
from penstock.control.capacity_units import parse_rate
from penstock.model.errors import Exit
from penstock.model.errors.balance import PlanUnfinished
from penstock.model.errors.settings import UsageInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.platform.control_client import ControlClient

POLL_SECONDS = 1.0
ENDED = ("done", "cancelled", "failed")
Plan = Annotated[str, Parameter(help="Id of a plan, such as plan-7hq2mz.")]
_PLANS = {
    "PLAN": "id", "CLUSTER": "cluster", "PURPOSE": "purpose", "STATE": "state", "MOVES": "moves",
    "DONE": "moves_done", "COPYING": "moves_copying", "DROPPED": "moves_dropped", "GB": "gigabytes",
    "WAITING": "waiting",
}  # fmt: skip
_MOVES = {
    "PARTITION": "name", "BEFORE": "before", "AFTER": "after", "MB": "megabytes", "STATE": "state",
    "REASON": "reason",
}  # fmt: skip


def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """List plans, with their progress.

    Example:  penstock balance list
    """
    plans = list(connected(options).every("/plans"))
    show(plans, options.form, table_of([_plan(plan) for plan in plans], _PLANS, empty="no plans"))
    return Exit.FINE


def plan_(
    cluster: Annotated[
        str | None, Parameter(help="Physical cluster, id or name.", show_default="the only one")
    ] = None,
    *,
    relieve: Annotated[
        int | None,
        Parameter(help="Only relieve this broker, no more than needed.", show_default="balance all"),
    ] = None,
    empty: Annotated[
        int | None,
        Parameter(help="Only move everything off this broker; it may be dead.", show_default="balance all"),
    ] = None,
    fill: Annotated[
        int | None,
        Parameter(help="Only move load to this broker, up to its share.", show_default="balance all"),
    ] = None,
    cell: Annotated[str | None, Parameter(help="Only this cell.", show_default="every cell")] = None,
    goal: Annotated[
        tuple[str, ...], Parameter(help="Only this goal; may be repeated.", negative="", show_default="all")
    ] = (),
    exclude_topic: Annotated[
        tuple[str, ...], Parameter(help="A topic that stays; may be repeated.", negative="")
    ] = (),
    exclude_tenant: Annotated[
        tuple[str, ...], Parameter(help="A logical cluster that stays; may be repeated.", negative="")
    ] = (),
    moves_max: Annotated[int | None, Parameter(help="At most so many moves.", show_default="any")] = None,
    bytes_max: Annotated[
        float | None, Parameter(help="Copy at most so many bytes.", show_default="any")
    ] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make a plan that balances a cluster, and show each move with its reason. Nothing moves yet.

    Example:  penstock balance plan --relieve 2
    """
    requested = {"relieve": relieve, "empty": empty, "fill": fill}
    given = {purpose: broker for purpose, broker in requested.items() if broker is not None}
    if len(given) > 1:
        shown = " and ".join(f"--{purpose}" for purpose in given)
        raise UsageInvalid(reason=f"{shown} are different plans", way_out="Make one plan for each.")
    purpose, broker = next(iter(given.items()), ("balance", None))
    control = connected(options)
    body = {
        "physical_cluster": _physical(control, cluster),
        "purpose": purpose,
        "broker": broker,
        "cell": cell,
        "goals": list(goal),
        "exclude_topics": list(exclude_topic),
        "exclude_tenants": list(exclude_tenant),
        "moves_max": moves_max,
        "bytes_max": bytes_max,
    }
    made = control.change("POST", "/plans", body)
    _show_moves(control, made, options)
    if made["goals_skipped"] and not made["goals_run"]:
        report("no goal was run")
    elif made["goals_skipped"]:
        report(plain(f"goals skipped: {', '.join(made['goals_skipped'])}"))
    for line in _unmet(made):
        report(plain(line))
    if made["moves"]:
        report(plain(f"run it with: penstock balance run {made['id']}"))
    return Exit.FINE


def set_(
    cluster: Annotated[str, Parameter(help="Physical cluster, id or name.")],
    mode: Annotated[BalancerMode, Parameter(help="`advise` proposes plans, `auto` also runs them.")],
    *,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Choose what an imbalance of a cluster leads to: off, advise or auto.

    Example:  penstock balance set main advise
    """
    control = connected(options)
    path = f"/physical-clusters/{_physical(control, cluster)}/balance"
    made = control.change("PUT", path, {"mode": str(mode)})
    return finished(control, made["operation"], options, wait=True)


def explain(plan: Plan, *, options: RemoteOptions = RemoteOptions()) -> int:
    """Show a plan and each of its moves: from where to where, for which goal, and how far it is.

    Example:  penstock balance explain plan-7hq2mz
    """
    control = connected(options)
    _show_moves(control, control.get(f"/plans/{plan}"), options)
    return Exit.FINE


def _show_moves(control: ControlClient, header: dict[str, Any], options: RemoteOptions) -> None:
    moves = list(control.every(f"/plans/{header['id']}/moves"))
    rows = [
        move
        | {
            "name": f"{move['topic']}-{move['partition']}",
            "before": ",".join(map(str, move["before"])),
            "after": ",".join(map(str, move["after"])),
            "megabytes": round(move["bytes"] / 1e6, 1),
            "reason": "; ".join(filter(None, (move["reason"], move["detail"]))),
        }
        for move in moves
    ]
    tables = Group(table_of([_plan(header)], _PLANS), table_of(rows, _MOVES, empty="no moves"))
    show(header | {"move_list": moves}, options.form, tables)


def _unmet(plan: dict[str, Any]) -> list[str]:
    """What the plan leaves undone, in words."""
    lines = [
        f"broker {each['broker']} stays above the target of {each['goal']}: "
        + (
            ", ".join(f"{count} refused by {reason}" for reason, count in each["refused"].items())
            or "no move helps"
        )
        for each in plan["unmet"]
    ]
    lines += [
        f"{each['cell'] or 'the cluster'} lacks {each['what']}: {each['brokers']} more brokers would cover it"
        for each in plan["missing"]
    ]
    return lines + (["planning ended early: make another plan after this one"] if plan["partial"] else [])


def _physical(control: ControlClient, given: str | None) -> str:
    known = list(control.every("/physical-clusters"))
    named = [str(each["id"]) for each in known if given in (each["id"], each["name"])]
    return named[0] if named else physical_cluster(control, given)  # an unknown one is the API's error


def run(
    plan: Plan,
    *,
    cluster: Annotated[str | None, Parameter(help="Refuse a plan of another physical cluster.")] = None,
    take_over: Annotated[
        bool, Parameter(help="Replace reassignments of other clients instead of waiting.", negative="")
    ] = False,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Run exactly this plan. It is refused if the cluster has changed since the plan was made.

    Example:  penstock balance run plan-7hq2mz
    """
    control = connected(options)
    body = {"cluster": cluster, "take_over": take_over}
    return _changed(control, plan, "run", body, options, wait=wait)


def pace(
    plan: Plan,
    rate: Annotated[str, Parameter(help="What one broker sends or receives, such as 20MB/s.")],
    *,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Change how fast a plan copies, at least 1MB/s.

    Example:  penstock balance pace plan-7hq2mz 20MB/s
    """
    body = {"rate": parse_rate(rate, where="penstock balance pace", key="RATE")}
    return _changed(connected(options), plan, "pace", body, options, wait=False)


def cancel(
    plan: Plan,
    *,
    roll_back: Annotated[bool, Parameter(help="Also undo the moves that were made.", negative="")] = False,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Cancel a plan. Replicas that are being copied stay where they were.

    Example:  penstock balance cancel plan-7hq2mz --roll-back
    """
    return _changed(connected(options), plan, "cancel", {"roll_back": roll_back}, options, wait=wait)


def run_plan(control: ControlClient, plan: str, *, wait: bool) -> None:
    """Runs a plan; with `wait`, returns once it has ended, and raises if moves were not made."""
    _check_ended(_sent(control, plan, "run", {}, wait=wait), "run", wait=wait)


def _changed(
    control: ControlClient, plan: str, verb: str, body: dict[str, Any], options: RemoteOptions, *, wait: bool
) -> int:
    now = _sent(control, plan, verb, body, wait=wait)
    show(now, options.form, table_of([_plan(now)], _PLANS))
    _check_ended(now, verb, wait=wait)
    return Exit.FINE


def _sent(
    control: ControlClient, plan: str, verb: str, body: dict[str, Any], *, wait: bool
) -> dict[str, Any]:
    """The plan after a change; with `wait`, once it has ended."""
    made = control.change("POST", f"/plans/{plan}/{verb}", body)
    wait_for(control, made["operation"])
    now: dict[str, Any] = control.get(f"/plans/{plan}")
    if wait:
        with progress(f"{verb} {plan}"):
            while now["state"] not in ENDED:
                time.sleep(POLL_SECONDS)
                before, now = now, control.get(f"/plans/{plan}")
                if _line(now) != _line(before):
                    report(plain(_line(now)))
    return now


def _check_ended(plan: dict[str, Any], verb: str, *, wait: bool) -> None:
    if wait and verb == "run" and (plan["state"] != "done" or plan["moves_dropped"]):
        raise PlanUnfinished(plan=plan["id"], state=plan["state"], dropped=plan["moves_dropped"])


def _line(plan: dict[str, Any]) -> str:
    text = f"{plan['moves_done']} of {plan['moves']} moves done, {plan['moves_copying']} copying"
    return text + (f"; {plan['waiting']}" if plan["waiting"] else "")


def _plan(plan: dict[str, Any]) -> dict[str, Any]:
    return plan | {"gigabytes": round(plan["bytes"] / 1e9, 2)}


COMMANDS: dict[str, Callable[..., int]] = {
    "plan": plan_,
    "set": set_,
    "list": list_,
    "explain": explain,
    "run": run,
    "pace": pace,
    "cancel": cancel,
}
