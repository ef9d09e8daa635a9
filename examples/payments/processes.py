"""Runs the bank's processes: executors, the notifier, the views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples.launcher import stop_on_signals
from examples.payments.spending import Spending
from penstock.gc_tuning import rare_collections
from penstock.metrics_server import metrics_at, page_of
from penstock.olep.executor import Executor, Tuning
from penstock.olep.metrics import ExecutorCollector
from penstock.olep.pipeline import Pipeline
from penstock.olep.state_snapshot import DirectoryStorage, StateSnapshots
from penstock.olep.view.runner import ViewRunner, run_together

if TYPE_CHECKING:
    from examples.payments.settings import Settings
    from penstock.olep.application import Application


def run_bank(
    settings: Settings,
    *,
    member: str | None = None,
    snapshots: bool = False,
    notify_above: int | None = None,
    metrics_port: int | None = None,
) -> None:
    """Runs one executor of the bank; with `notify_above`, also the notifier, as the next pipeline stage."""
    bank = _executor(settings, settings.application, member=member, snapshots=snapshots)
    address = None if metrics_port is None else f"127.0.0.1:{metrics_port}"
    served = metrics_at(address, page_of(ExecutorCollector(bank)), not_ready=bank.not_ready)
    with served, rare_collections():
        if notify_above is None:
            bank.run(stop_on_signals())
        else:
            notifier = _executor(settings, Spending(notify_above).application(), member=member)
            Pipeline([bank, notifier]).run(stop_on_signals())


def run_views(settings: Settings) -> None:
    """Runs all views of the bank, each in a thread."""
    log = settings.accounts_log()
    runners = [ViewRunner(projection, log, stores) for projection, stores in settings.views.values()]
    with rare_collections():
        run_together(runners, stop_on_signals())


def run_spending(settings: Settings, limit: int) -> None:
    _executor(settings, Spending(limit).application()).run(stop_on_signals())


def _executor(
    settings: Settings, application: Application, *, member: str | None = None, snapshots: bool = False
) -> Executor:
    """`member` is a static group member: its partitions wait for it during a restart."""
    home = Path(settings.home)
    return Executor(
        application,
        settings.accounts_log(),
        settings.stores,
        logs=[settings.notices_log()],
        group=f"{settings.accounts}.{application.name}",
        tuning=Tuning(batch_max=settings.batch_max, gather_seconds=settings.gather_seconds),
        client={} if member is None else {"group.instance.id": member},
        snapshots=StateSnapshots(DirectoryStorage(home / "snapshots"), home / "scratch")
        if snapshots
        else None,
    )
