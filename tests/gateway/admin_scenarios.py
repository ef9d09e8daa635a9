"""Runs every method of an admin client as two tenants with the same names.

A scenario is run by one tenant. Its results are compared with `tests/gateway/tables.py`; a method it never
called is listed there as `NEVER`, so that a method added by a new version of the library is noticed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.gateway.tables import DONE, NEVER, OWN
from tests.harness.fleet import wait_for
from tests.harness.gateway import wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.harness.gateway import Access

SECONDS = 30.0


class AdminScenario:
    """One tenant's calls; both tenants have `topic` and `group`, and each a topic and a group the other
    lacks.
    """

    client: Any

    def __init__(self, access: Access, topic: str, group: str, number: int) -> None:
        self.access = access
        self.topic, self.group = topic, group
        self.alone, self.hermits = f"{topic}-{number}", f"{group}-{number}"
        self.others = {f"{topic}-{1 - number}", f"{group}-{1 - number}"}
        self.own = {self.topic, self.alone, self.group, self.hermits}
        self.results: dict[str, str] = {}

    def run(self) -> None:
        """Call every method but those that delete."""
        raise NotImplementedError

    def delete_everything(self) -> None:
        """Delete groups and topics; the other tenant's must survive."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the client."""

    def names(self) -> set[str]:
        """The existing topics and groups."""
        raise NotImplementedError

    def call(self, method: str, work: Callable[[], object]) -> None:
        try:
            result = work()
        except Exception as failure:  # noqa: BLE001  (the table lists errors, too)
            result = error_of(failure)
        self.results[method] = DONE if result is None else str(result)

    def seen(self, listed: Iterable[str], *own: str) -> str:
        """`OWN` if all of `own` and nothing of the other tenant is listed."""
        names = set(listed)
        foreign = {name for name in names if name in self.others or name.startswith(("lkc-", "__"))}
        missing = set(own) - names
        return OWN if not foreign and not missing else f"without {missing}, with {foreign}"

    def settle(self, topic: str, partitions: int) -> None:
        asyncio.run(wait_for_topic(self.access, topic, partitions))


def error_of(failure: Exception) -> str:
    """Kafka's name of an error, however a library wraps it."""
    (kafka,) = failure.args[:1] or (None,)
    name = getattr(kafka, "name", None)
    return str(name()) if callable(name) else type(failure).__name__


def run_both(scenarios: Sequence[AdminScenario]) -> list[dict[str, str]]:
    """Run both; then one deletes everything, and the other's topics and groups still exist."""
    first, second = scenarios
    try:
        first.run()
        second.run()
        first.delete_everything()
        wait_for(lambda: not first.own & first.names(), what="what was deleted to be gone")
        assert second.own <= second.names()
        second.delete_everything()
    finally:
        for scenario in scenarios:
            scenario.close()
    return [scenario.results for scenario in scenarios]


def with_uncalled_methods(results: dict[str, str], library: type) -> dict[str, str]:
    methods = [name for name in dir(library) if not name.startswith("_") and callable(getattr(library, name))]
    return dict.fromkeys(methods, NEVER) | results
