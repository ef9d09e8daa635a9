"""The order of a run, and which worker runs what.

Pure tests come first: a broken change fails before the first broker starts. Then come areas that need
real processes, the longest first (by `tests/budget.py`), so that workers end together. Inside an area the
order stays random.

With `pytest -n 2`, a worker takes one module of pure tests at a time. Of tests with real processes it takes
a whole area, so that the area's fixtures are set up once. Spark tests are all in one area: one session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import budget
from tests.plugins.budget import area_of, kind_of

if TYPE_CHECKING:
    from xdist.remote import Producer


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = config.rootpath / "tests"

    def place(item: pytest.Item) -> tuple[bool, float, str]:
        kind = kind_of({mark.name for mark in item.iter_markers()}) or "kafka"
        area = area_of(item.path, tests) if item.path.is_relative_to(tests) else ""
        allowed = budget.AREAS.get(area, budget.Budget())
        return kind != "pure", -(allowed.pure if kind == "pure" else allowed.kafka + allowed.spark), area

    items.sort(key=place)


class AreaScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a worker one group of tests at a time, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        self.by_module = "not kafka" in config.getoption("markexpr")
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return (
            path if self.by_module else area_of(self.config.rootpath / path, self.config.rootpath / "tests")
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> AreaScheduling:
    return AreaScheduling(config, log)
