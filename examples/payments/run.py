"""The bank's processes: executors, the notifier, the views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, start_http_server

from examples.frame import stop_on_signals
from examples.payments.spending import Spending
from penstock.garbage import rare_collections
from penstock.olep.executor import Executor, Tuning
from penstock.olep.metrics import ExecutorCollector
from penstock.olep.pipeline import Pipeline
from penstock.olep.snapshot import DirectoryShelf, Snapshots
from penstock.olep.view.runner import ViewRunner, run_together

if TYPE_CHECKING:
    from examples.payments.setting import Setting
    from penstock.olep.application import Application


def run_bank(
    setting: Setting,
    *,
    member: str | None = None,
    snapshots: bool = False,
    notify_above: int | None = None,
    metrics_port: int | None = None,
) -> None:
    """One executor of the bank; with `notify_above` the notifier too, as the next stage in one process."""
    bank = _executor(setting, setting.bank.application(), member=member, snapshots=snapshots)
    if metrics_port is not None:
        REGISTRY.register(ExecutorCollector(bank))
        start_http_server(metrics_port, "127.0.0.1")
    if notify_above is None:
        bank.run(stop_on_signals())
    else:
        notifier = _executor(setting, Spending(notify_above).application(), member=member)
        Pipeline([bank, notifier]).run(stop_on_signals())


def run_views(setting: Setting) -> None:
    """All views of the bank, each at its own pace."""
    log = setting.accounts_log()
    runners = [ViewRunner(projection, log, stores) for projection, stores in setting.views.values()]
    with rare_collections():
        run_together(runners, stop_on_signals())


def run_spending(setting: Setting, limit: int) -> None:
    _executor(setting, Spending(limit).application()).run(stop_on_signals())


def _executor(
    setting: Setting, application: Application, *, member: str | None = None, snapshots: bool = False
) -> Executor:
    """`member` is a name that a process keeps over restarts: its partitions wait for it to come back."""
    home = Path(setting.home)
    return Executor(
        application,
        setting.accounts_log(),
        setting.stores,
        logs=[setting.notices_log()],
        group=f"{setting.accounts}.{application.name}",
        tuning=Tuning(batch_max=setting.batch_max, gather_seconds=setting.gather_seconds),
        client={} if member is None else {"group.instance.id": member},
        snapshots=Snapshots(DirectoryShelf(home / "shelf"), home / "scratch") if snapshots else None,
    )
