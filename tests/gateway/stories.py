"""Every method of a client, called by two tenants under the same names: what each comes to.

A story is told by one tenant. What it says of a method is a word or two that stand in
`tests/gateway/tables.py`; a method that it never called stands there as `NEVER`, so that one that a
new version of the library brings is noticed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.gateway.tables import DONE, NEVER, OWN
from tests.ground.fleet import wait_for
from tests.ground.gateway import known_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.ground.gateway import Access

SECONDS = 30.0


class Story:
    """One tenant's; both have `topic` and `group`, and each a topic and a group that the other has not."""

    client: Any

    def __init__(self, access: Access, topic: str, group: str, number: int) -> None:
        self.access = access
        self.topic, self.group = topic, group
        self.alone, self.hermits = f"{topic}-{number}", f"{group}-{number}"
        self.others = {f"{topic}-{1 - number}", f"{group}-{1 - number}"}
        self.own = {self.topic, self.alone, self.group, self.hermits}
        self.said: dict[str, str] = {}

    def told(self) -> None:
        """Everything but the end."""
        raise NotImplementedError

    def ended(self) -> None:
        """Groups and topics are deleted, which the other tenant's are to survive."""
        raise NotImplementedError

    def closed(self) -> None:
        """The client is no longer needed."""

    def names(self) -> set[str]:
        """The topics and groups that are there."""
        raise NotImplementedError

    def call(self, method: str, work: Callable[[], object]) -> None:
        try:
            result = work()
        except Exception as failure:  # noqa: BLE001  (it is what the table speaks of)
            result = error_of(failure)
        self.said[method] = DONE if result is None else str(result)

    def seen(self, found: Iterable[str], *own: str) -> str:
        """Whether one's own is there, and nothing of others."""
        names = set(found)
        foreign = {name for name in names if name in self.others or name.startswith(("lkc-", "__"))}
        missing = set(own) - names
        return OWN if not foreign and not missing else f"without {missing}, with {foreign}"

    def settle(self, topic: str, partitions: int) -> None:
        asyncio.run(known_everywhere(self.access, topic, partitions))


def error_of(failure: Exception) -> str:
    """By Kafka's name for it, however a library wraps it."""
    (kafka,) = failure.args[:1] or (None,)
    name = getattr(kafka, "name", None)
    return str(name()) if callable(name) else type(failure).__name__


def tell(stories: Sequence[Story]) -> list[dict[str, str]]:
    """Both tell theirs; then one deletes its own, and the other's are still there."""
    first, second = stories
    try:
        first.told()
        second.told()
        first.ended()
        wait_for(lambda: not first.own & first.names(), what="what was deleted to be gone")
        assert second.own <= second.names()
        second.ended()
    finally:
        for story in stories:
            story.closed()
    return [story.said for story in stories]


def with_the_uncalled(said: dict[str, str], library: type) -> dict[str, str]:
    methods = [name for name in dir(library) if not name.startswith("_") and callable(getattr(library, name))]
    return dict.fromkeys(methods, NEVER) | said
