"""`penstock backup expire`: delete what no restore within `keep_days` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.backup.expirer import carry_out, plan_expiry
from penstock.backup.layout import entry_key, part_key
from penstock.backup.restore_store import running_restore
from penstock.backup.settings import read_backup_settings
from penstock.cli.output import report, show, table_of
from penstock.cli.settings import Options
from penstock.kafka.client import Client
from penstock.model.errors import Exit
from penstock.model.errors.backup import SweepRefused
from penstock.model.plural import counted
from penstock.tier.store import Store
from penstock.tier.sweeper import unless_restoring


async def expire(
    *,
    settings: Annotated[Path, Parameter(name=("--settings", "-s"), help="The backup's settings file.")],
    dry_run: Annotated[
        bool, Parameter(help="Show what would be deleted, and delete nothing.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Delete what no restore to a time within `archive.keep_days` needs, within limits.

    Example:  penstock backup expire --settings backup.yaml --dry-run
    """
    parsed = read_backup_settings(settings)
    store = Store(parsed.store)
    async with Client(parsed.cluster.bootstrap, parsed.cluster.security) as client:
        cluster = (await client.cluster()).id or ""
        running = bool(await running_restore(client))
        plan = await plan_expiry(store, cluster, parsed.keep_days, restore_running=running)
        if plan.refused and not dry_run:
            raise SweepRefused(reason=plan.refused)
        may_delete = unless_restoring(lambda: True, lambda: running_restore(client))
        deleted = 0 if dry_run else await carry_out(store, cluster, plan, may_delete=may_delete)
    keys = [*plan.keys, *plan.gaps]
    keys += [entry_key(cluster, at) for at in plan.entries] + [part_key(cluster, one) for one in plan.parts]
    document: dict[str, Any] = {
        "delete": keys,
        "deleted": deleted,
        "postponed": plan.postponed,
        "kept": dict(plan.kept),
        "refused": plan.refused,
    }
    rows = [{"key": key} for key in keys]
    show(document, options.form, table_of(rows, {"OBJECT": "key"}, empty="nothing to delete"))
    report(f"deleted {counted(deleted, 'object')}; {counted(plan.postponed, 'segment')} left for later runs")
    return Exit.FINE
