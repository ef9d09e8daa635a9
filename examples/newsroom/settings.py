"""Where a newsroom keeps its topics, state and views. `up` writes the file, other commands read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.launcher import read_settings, save_settings
from examples.newsroom.press import ASSETS_LOG, SUBMISSIONS_LOG
from penstock.olep.log import create_log, open_log
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.view.stores.sqlite import SqliteViews

if TYPE_CHECKING:
    from penstock.olep.log import Log

FILE: Final = "newsroom.json"


@dataclass(frozen=True, slots=True)
class Settings:
    home: str
    config: dict[str, Any] = field(repr=False)  # of the Kafka client; may hold a password
    name: str = "newsroom"  # prefix of its topics

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
        # One partition each, so that all assets have one order.
        create_log(self.config, f"{self.name}.submissions", 1)
        create_log(self.config, f"{self.name}.assets", 1)

    def save(self) -> None:
        save_settings(Path(self.home) / FILE, self)


def load_settings(home: Path) -> Settings:
    return read_settings(home / FILE, Settings)
