"""Where a bank lives: its Kafka, its topics, its state. `up` writes it down, all others read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.frame import read_setting, save_setting
from examples.payments.bank import ACCOUNTS_LOG, Bank
from examples.payments.spending import NOTICES_LOG
from examples.payments.views import CACHED_BALANCES, SEARCH, STATEMENTS, WAREHOUSE
from penstock.olep.log import create_log, open_log
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.view.sqlite import SqliteViews

if TYPE_CHECKING:
    from penstock.olep.log import Log
    from penstock.olep.store import Stores
    from penstock.olep.view import ViewStores
    from penstock.olep.view.projection import Projection

FILE: Final = "payments.json"


@dataclass(frozen=True, slots=True)
class Setting:
    home: str
    config: dict[str, Any] = field(repr=False)  # of the Kafka client; it may hold a password
    accounts: str = "payments.accounts"
    notices: str = "payments.notices"
    partitions: int = 4
    fee: int = 0
    overdrawn_fee: int = 25
    postgres: str | None = None  # where state lives instead of files
    synchronous: str = "normal"
    batch_max: int = 1000
    gather_seconds: float = 0.005
    redis: str | None = None  # where balances are cached instead of in a file
    warehouse: bool = True  # whether facts are kept as Parquet files

    @property
    def bank(self) -> Bank:
        return Bank(self.fee, self.overdrawn_fee)

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
        """The bank's views and where they live. Those who read them open the same."""
        files = SqliteViews(Path(self.home) / "views")
        statements: ViewStores = files
        balances: ViewStores = files
        if self.postgres is not None:
            from penstock.olep.view.postgres import PostgresViews

            statements = PostgresViews(self.postgres)
        if self.redis is not None:
            from penstock.olep.view.redis import RedisViews

            balances = RedisViews(self.redis)
        found: dict[str, tuple[Projection, ViewStores]] = {
            "statements": (STATEMENTS, statements),
            "search": (SEARCH, files),
            "balances": (CACHED_BALANCES, balances),
        }
        if self.warehouse:
            from penstock.olep.view.warehouse import WarehouseViews

            found["warehouse"] = (WAREHOUSE, WarehouseViews(Path(self.home) / "warehouse"))
        return found

    def accounts_log(self) -> Log:
        return open_log(self.config, self.accounts, name=ACCOUNTS_LOG)

    def notices_log(self) -> Log:
        return open_log(self.config, self.notices, name=NOTICES_LOG)

    def create_logs(self) -> None:
        create_log(self.config, self.accounts, self.partitions)
        create_log(self.config, self.notices, 1)

    def save(self) -> None:
        save_setting(Path(self.home) / FILE, self)


def load_setting(home: Path) -> Setting:
    return read_setting(home / FILE, Setting)
