"""Where a newsroom lives: its Kafka, its topics, its state and views. `up` writes it, all others read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.frame import read_setting, save_setting
from examples.newsroom.press import ASSETS_LOG, SUBMISSIONS_LOG
from penstock.olep.log import create_log, open_log
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.view.sqlite import SqliteViews

if TYPE_CHECKING:
    from penstock.olep.log import Log

FILE: Final = "newsroom.json"


@dataclass(frozen=True, slots=True)
class Setting:
    home: str
    config: dict[str, Any] = field(repr=False)  # of the Kafka client; it may hold a password
    name: str = "newsroom"  # what its topics begin with

    @property
    def state(self) -> SqliteStores:
        return SqliteStores(Path(self.home) / "state")

    @property
    def views(self) -> SqliteViews:
        return SqliteViews(Path(self.home) / "views")

    def submissions(self) -> Log:
        return open_log(self.config, f"{self.name}.submissions", name=SUBMISSIONS_LOG)

    def assets(self) -> Log:
        return open_log(self.config, f"{self.name}.assets", name=ASSETS_LOG)

    def create_logs(self) -> None:
        # One partition each: the order of all assets is what the newsroom is about.
        create_log(self.config, f"{self.name}.submissions", 1)
        create_log(self.config, f"{self.name}.assets", 1)

    def save(self) -> None:
        save_setting(Path(self.home) / FILE, self)


def load_setting(home: Path) -> Setting:
    return read_setting(home / FILE, Setting)
