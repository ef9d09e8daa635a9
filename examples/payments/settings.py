"""Where a bank keeps its topics, state and views. `up` writes the file, other commands read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.launcher import read_settings, save_settings
from examples.payments.bank import ACCOUNTS_LOG, Bank
from examples.payments.spending import NOTICES_LOG
from examples.payments.views import CACHED_BALANCES, SEARCH, STATEMENTS
from penstock.olep.log import create_log, open_log
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.view.stores.sqlite import SqliteViews

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.application import Application
    from penstock.olep.log import Log
    from penstock.olep.store import Stores
    from penstock.olep.view import ViewStores
    from penstock.olep.view.projection import Projection

FILE: Final = "payments.json"


@dataclass(frozen=True, slots=True)
class Settings:
    home: str
    config: dict[str, Any] = field(repr=False)  # of the Kafka client; may hold a password
    accounts: str = "payments.accounts"
    notices: str = "payments.notices"
    partitions: int = 4
    fee: int = 0
    overdrawn_fee: int = 25
    earlier_tariffs: Sequence[tuple[int, int]] = ()  # fee and overdrawn_fee before, oldest first
    postgres: str | None = None  # DSN of the database to keep state in, instead of files
    synchronous: str = "normal"
    batch_max: int = 1000
    gather_seconds: float = 0.005
    redis: str | None = None  # URL of the server to cache balances in, instead of a file

    @property
    def application(self) -> Application:
        earlier = [Bank(*tariff) for tariff in self.earlier_tariffs]
        return Bank(self.fee, self.overdrawn_fee).application(earlier=earlier)

    @property
    def stores(self) -> Stores:
        if self.postgres is not None:
            from penstock.olep.store.postgres import PostgresStores

            return PostgresStores(self.postgres)
        return SqliteStores(self.state, self.synchronous)

    @property
    def state(self) -> Path:
        return Path(self.home) / "state"

    @property
    def views(self) -> dict[str, tuple[Projection, ViewStores]]:
        """The bank's projections and their stores, for writers and readers alike."""
        files = SqliteViews(Path(self.home) / "views")
        statements: ViewStores = files
        balances: ViewStores = files
        if self.postgres is not None:
            from penstock.olep.view.stores.postgres import PostgresViews

            statements = PostgresViews(self.postgres)
        if self.redis is not None:
            from penstock.olep.view.stores.redis import RedisViews

            balances = RedisViews(self.redis)
        return {
            "statements": (STATEMENTS, statements),
            "search": (SEARCH, files),
            "balances": (CACHED_BALANCES, balances),
        }

    def accounts_log(self) -> Log:
        return open_log(self.config, self.accounts, name=ACCOUNTS_LOG)

    def notices_log(self) -> Log:
        return open_log(self.config, self.notices, name=NOTICES_LOG)

    def create_logs(self) -> None:
        create_log(self.config, self.accounts, self.partitions)
        create_log(self.config, self.notices, 1)

    def save(self) -> None:
        save_settings(Path(self.home) / FILE, self)


def load_settings(home: Path) -> Settings:
    return read_settings(home / FILE, Settings)
