"""Reports a full run in which an area took longer than `tests/budget.py` allows.

An area is a folder of tests/, or a module that lies there by itself. A test counts as Spark or
Kafka by its marker, else as pure; long loops and other projects' peers count as nothing, being
run elsewhere. What a fixture of the whole session takes, and the end of the session, is charged
to `session`, so that it does not fall on whichever area random order puts first or last.

Only a run of all pure tests, of all others, or of everything is judged, and only if it passed: slow tests
beside broken ones are not the news. Seconds depend on what else the machine does, so being over budget does
not fail a run. `--budget=enforce` judges any run and fails it; `never` judges none. `--budget-factor` (or the
environment's `TEST_BUDGET_FACTOR`) is how much slower than two idle cores this machine is.

With several workers, each attaches what a test is charged to its report; the controller adds it up.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING, cast

import pytest

from tests import budget

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

Spent = defaultdict[tuple[str, str], float]  # seconds by area and kind

KINDS = tuple(field.name for field in fields(budget.Budget))
ELSEWHERE = ("soak", "peers")
# Marker expressions that leave nothing of a kind out: `make test` runs the last two.
WHOLE_SUITE = frozenset(
    {
        "",
        "not soak and not peers",
        "not soak and not peers and not kafka and not spark and not browser",
        "(kafka or spark or browser) and not soak and not peers",
    }
)
ACCOUNT = pytest.StashKey[tuple[str, str]]()  # area and kind of a test
CHARGE = "budget"  # name of the report's property: area, kind, seconds of session fixtures


def area_of(path: Path, tests: Path) -> str:
    """The folder below tests/, or the bare name of a module that lies there by itself."""
    parts = path.relative_to(tests).parts
    return parts[0] if len(parts) > 1 else path.stem.removeprefix("test_")


def kind_of(markers: set[str]) -> str | None:
    """What a test counts as, by its markers; None for one that is run elsewhere."""
    if markers.intersection(ELSEWHERE):
        return None
    if "spark" in markers:
        return "spark"
    return "kafka" if markers & {"kafka", "browser"} else "pure"


def overruns(spent: Mapping[tuple[str, str], float], *, factor: float) -> list[str]:
    """A line for every area and kind over its budget, every total, and every area without one."""
    lines = []
    for (area, kind), seconds in sorted(spent.items()):
        if area not in budget.AREAS:
            lines.append(
                f"{area} has no budget, and took {seconds:.0f} s ({kind}): give it one in tests/budget.py"
            )
            continue
        allowed = getattr(budget.AREAS[area], kind) * factor + budget.GRACE_SECONDS
        if seconds > allowed:
            lines.append(f"{area} took {seconds:.1f} s ({kind}), {allowed:.0f} s are allowed")
    for kind in KINDS:
        seconds, allowed = total(spent, kind), getattr(budget.TOTAL, kind) * factor
        if seconds > allowed:
            lines.append(f"all {kind} tests took {seconds:.0f} s, {allowed:.0f} s are allowed")
    return sorted(set(lines))


def total(spent: Mapping[tuple[str, str], float], kind: str) -> float:
    return sum(seconds for (_, of_kind), seconds in spent.items() if of_kind == kind)


def by_area(spent: Mapping[tuple[str, str], float], kind: str) -> str:
    """The seconds of a kind, and of each area that took a second or more."""
    areas = sorted(((seconds, area) for (area, of_kind), seconds in spent.items() if of_kind == kind))
    shown = ", ".join(f"{area} {seconds:.0f}" for seconds, area in reversed(areas) if seconds >= 1)
    return f"{total(spent, kind):.0f} s: {shown or 'less than a second each'}"


class BudgetKeeper:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests = config.rootpath / "tests"
        self.spent: Spent = defaultdict(float)
        self.lines: list[str] = []
        self.session_seconds = 0.0  # of the phase that is running
        self.nested = 0  # session fixtures being set up inside one another

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            kind = kind_of({mark.name for mark in item.iter_markers()})
            if kind is not None and item.path.is_relative_to(self.tests):
                item.stash[ACCOUNT] = (area_of(item.path, self.tests), kind)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope != "session" or self.nested:
            return (yield)
        self.nested += 1
        begin = time.monotonic()
        try:
            return (yield)
        finally:
            self.nested -= 1
            self.session_seconds += time.monotonic() - begin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        begin = time.monotonic()
        try:
            return (yield)
        finally:
            if nextitem is None:
                self.session_seconds = time.monotonic() - begin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        shared, self.session_seconds = min(self.session_seconds, report.duration), 0.0
        if (account := item.stash.get(ACCOUNT, None)) is not None:
            report.user_properties.append((CHARGE, [*account, shared]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Every phase of a test inherits the properties of the phases before it: the last is its own.
        charges = [value for name, value in report.user_properties if name == CHARGE]
        if charges:
            area, kind, shared = cast("tuple[str, str, float]", charges[-1])
            self.spent[area, kind] += report.duration - shared
            if shared:
                self.spent[budget.SESSION, kind] += shared

    def judged(self, exit_status: int) -> bool:
        chosen = self.config.getoption("budget")
        if hasattr(self.config, "workerinput"):  # one of several workers: the controller judges
            return False
        if chosen != "report":
            return bool(chosen == "enforce")
        return (
            exit_status == pytest.ExitCode.OK
            and self.config.args_source is pytest.Config.ArgsSource.TESTPATHS
            and not self.config.getoption("keyword")
            and not self.config.getoption("deselect")
            and not self.config.getoption("lf", default=False)
            and self.config.getoption("markexpr") in WHOLE_SUITE
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.judged(exitstatus):
            self.lines = overruns(self.spent, factor=self.config.getoption("budget_factor"))
            enforced = self.config.getoption("budget") == "enforce"
            if self.lines and enforced and exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for kind in KINDS:
            if total(self.spent, kind):
                terminalreporter.write_line(f"{kind} tests took {by_area(self.spent, kind)}")
        for line in self.lines:
            terminalreporter.write_line(f"over budget: {line}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("budget", "time budgets of areas")
    group.addoption(
        "--budget", choices=("report", "enforce", "never"), default="report", help="what to do over budget"
    )
    group.addoption(
        "--budget-factor",
        type=float,
        default=float(os.environ.get("TEST_BUDGET_FACTOR", budget.TOLERANCE)),
        help="how many times its budget an area may take",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(BudgetKeeper(config), "budget-keeper")
