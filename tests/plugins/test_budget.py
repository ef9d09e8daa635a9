"""The budget: what it holds, and that a run over it gets a line that names the area."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from tests import budget
from tests.budget import Budget
from tests.plugins.budget import area_of, kind_of, overruns

pytest_plugins = ["pytester"]

CONFIGURATION = """
[pytest]
testpaths = tests
addopts = -p tests.plugins.budget
markers =
    kafka: real
    soak: long
"""


@pytest.fixture(autouse=True)
def _without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "GRACE_SECONDS", 0.0)


@pytest.mark.parametrize("kind", [field.name for field in fields(Budget)])
def test_the_areas_together_stay_within_the_whole(kind: str) -> None:
    assert sum(getattr(area, kind) for area in budget.AREAS.values()) <= getattr(budget.TOTAL, kind)


def test_every_folder_of_tests_has_a_budget() -> None:
    tests = Path(budget.__file__).parent
    areas = {area_of(path, tests) for path in tests.rglob("test_*.py")}

    assert areas <= set(budget.AREAS)


@pytest.mark.parametrize(
    ("markers", "kind"),
    [
        (set(), "pure"),
        ({"parametrize"}, "pure"),
        ({"kafka"}, "kafka"),
        ({"browser"}, "kafka"),
        ({"kafka", "spark"}, "spark"),
        ({"kafka", "soak"}, None),
        ({"peers"}, None),
    ],
)
def test_a_test_counts_by_its_markers(markers: set[str], kind: str | None) -> None:
    assert kind_of(markers) == kind


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        budget, "AREAS", {"session": Budget(pure=5), "a": Budget(pure=10, kafka=10), "b": Budget(pure=10)}
    )
    monkeypatch.setattr(budget, "TOTAL", Budget(pure=15, kafka=10))


@pytest.mark.usefixtures("small")
def test_an_area_within_its_budget_is_not_mentioned() -> None:
    assert overruns({("a", "pure"): 10.0, ("a", "kafka"): 9.0}, factor=1.0) == []


@pytest.mark.usefixtures("small")
def test_an_area_over_its_budget_is_named_with_both_numbers() -> None:
    assert overruns({("a", "pure"): 12.5}, factor=1.0) == ["a took 12.5 s (pure), 10 s are allowed"]


@pytest.mark.usefixtures("small")
def test_a_slow_machine_is_allowed_more() -> None:
    assert overruns({("a", "pure"): 12.5}, factor=1.5) == []


@pytest.mark.usefixtures("small")
def test_a_stall_of_some_seconds_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "GRACE_SECONDS", 3.0)

    assert overruns({("a", "pure"): 12.5}, factor=1.0) == []


@pytest.mark.usefixtures("small")
def test_areas_within_their_budgets_can_exceed_the_whole_together() -> None:
    lines = overruns({("a", "pure"): 9.0, ("b", "pure"): 9.0}, factor=1.0)

    assert lines == ["all pure tests took 18 s, 15 s are allowed"]


@pytest.mark.usefixtures("small")
def test_an_area_without_a_budget_is_named() -> None:
    lines = overruns({("new", "pure"): 1.0}, factor=1.0)

    assert lines == ["new has no budget, and took 1 s (pure): give it one in tests/budget.py"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of two areas, one of which has no time at all."""
    monkeypatch.setattr(
        budget,
        "AREAS",
        {"session": Budget(pure=60), "quick": Budget(pure=60, kafka=60), "slow": Budget(pure=0, kafka=60)},
    )
    monkeypatch.delenv("TEST_BUDGET_FACTOR", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a bare pytest starts in no time
    pytester.makeini(CONFIGURATION)
    for area in ("quick", "slow"):
        folder = pytester.path / "tests" / area
        folder.mkdir(parents=True)
        (folder / f"test_{area}.py").write_text(
            "import pytest\n"
            "def test_pure(): pass\n"
            "@pytest.mark.kafka\n"
            "def test_kafka(): pass\n"
            "@pytest.mark.soak\n"
            "def test_soak(): pass\n"
        )
    return pytester


def test_a_full_run_over_budget_names_the_area_and_passes(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["over budget: slow took * s (pure), 0 s are allowed"])
    result.stdout.no_fnmatch_line("over budget: quick*")
    result.assert_outcomes(passed=6)


@pytest.mark.parametrize(
    "arguments",
    [["tests/slow"], ["-k", "pure"], ["-m", "not kafka"], ["--budget=never"]],
    ids=["path", "keyword", "marker", "switched off"],
)
def test_a_partial_run_is_not_judged(suite: pytest.Pytester, arguments: list[str]) -> None:
    result = suite.runpytest_inprocess(*arguments)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("over budget:*")


def test_the_run_of_make_test_is_a_full_one(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("-m", "not soak and not peers")

    result.stdout.fnmatch_lines(["over budget: slow took * s (pure), 0 s are allowed"])


def test_any_run_over_an_enforced_budget_fails(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("tests/slow", "--budget=enforce")

    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_long_loops_are_not_counted(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("-m", "soak", "--budget=enforce")

    assert result.ret == pytest.ExitCode.OK


def test_a_failing_run_is_not_judged_on_top(suite: pytest.Pytester) -> None:
    (suite.path / "tests" / "quick" / "test_red.py").write_text("def test_red(): assert False\n")

    result = suite.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("over budget:*")


def test_fixtures_of_the_session_are_charged_to_the_session(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(budget.AREAS, "session", Budget(pure=0))
    monkeypatch.setitem(budget.AREAS, "slow", Budget(pure=60, kafka=60))
    suite.makeconftest(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def inner(): return 1\n"
        "@pytest.fixture(scope='session', autouse=True)\n"
        "def outer(inner): yield inner\n"
    )

    result = suite.runpytest_inprocess("-m", "not kafka and not soak", "--budget=enforce")

    result.stdout.fnmatch_lines(["over budget: session took * s (pure), 0 s are allowed"])
