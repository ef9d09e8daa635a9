"""`penstock tier sweep`: delete segments that Kafka deleted long enough ago."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Group

from penstock.backup.holds import holds
from penstock.backup.restore_store import running_restore
from penstock.backup.settings import read_backup_settings
from penstock.cli.output import report, show, table_of
from penstock.cli.settings import Options
from penstock.kafka.client import Client
from penstock.model.errors import Exit
from penstock.model.errors.backup import ShadowSettingsMissing, SweepRefused
from penstock.model.plural import counted
from penstock.tier.store import Store
from penstock.tier.sweeper import SweepSettings, carry_out, plan_sweep, unless_restoring


async def sweep(
    *,
    settings: Annotated[Path, Parameter(name=("--settings", "-s"), help="The backup's settings file.")],
    dry_run: Annotated[
        bool, Parameter(help="Show what would be deleted, and delete nothing.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Delete segments whose tombstones are older than `archive.keep_days`, within limits.

    Example:  penstock tier sweep --settings backup.yaml --dry-run
    """
    parsed = read_backup_settings(settings)
    if parsed.tier is None:
        raise ShadowSettingsMissing(section="tier", action="a sweep")
    store, backup = Store(parsed.tier), Store(parsed.store)
    async with Client(parsed.cluster.bootstrap, parsed.cluster.security) as client:
        cluster = (await client.cluster()).id or ""
        running = await running_restore(client)
        facts = SweepSettings(parsed.keep_days, tuple(await holds(backup, cluster)), bool(running))
        plan = await plan_sweep(client, store, facts)
        if plan.refused and not dry_run:
            raise SweepRefused(reason=plan.refused)
        may_delete = unless_restoring(lambda: True, lambda: running_restore(client))
        deleted = 0 if dry_run else await carry_out(store, plan, may_delete=may_delete)
    rows = [{"key": key.path(suffix)} for key, suffix in plan.keys]
    document: dict[str, Any] = {
        "delete": [row["key"] for row in rows],
        "deleted": deleted,
        "postponed": plan.postponed,
        "kept": dict(plan.kept),
        "orphans": [key.path("") for key in plan.orphans],
        "missing": [one.key(cluster).path("") for one in plan.missing],
        "refused": plan.refused,
    }
    texts = [f"orphan: {one}" for one in document["orphans"]]
    texts += [f"missing: {one}" for one in document["missing"]]
    show(document, options.form, Group(table_of(rows, {"OBJECT": "key"}, empty="nothing to delete"), *texts))
    report(f"deleted {counted(deleted, 'object')}; {counted(plan.postponed, 'segment')} left for later runs")
    return Exit.UNHEALTHY if plan.missing else Exit.FINE
