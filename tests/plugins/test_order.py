"""Pure tests run first, and a worker takes a module of them, or a whole area with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFIGURATION = """
[pytest]
testpaths = tests
addopts = -p tests.plugins.budget -p tests.plugins.order -p xdist --budget=never
markers =
    kafka: real
"""
MODULE = """
import pytest

@pytest.mark.kafka
def test_real_{name}(): pass

@pytest.mark.kafka
def test_real_again_{name}(): pass

def test_pure_{name}(): pass

def test_pure_again_{name}(): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a quarter of the start-up time
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeini(CONFIGURATION)
    for area in ("consume", "gateway"):
        for name in ("one", "two"):
            path = pytester.path / "tests" / area / f"test_{area}_{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(MODULE.format(name=name))
    return pytester


def workers(result: pytest.RunResult) -> dict[str, str]:
    """The worker of each test that passed."""
    lines = [line.split() for line in result.outlines if " PASSED " in line]
    return {words[-1]: words[0] for words in lines}


def test_pure_tests_come_first_and_then_the_area_with_the_largest_budget(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-v")

    names = [line.split("::")[1].split()[0] for line in result.outlines if " PASSED " in line]
    paths = [line.split("::")[0] for line in result.outlines if " PASSED " in line]
    assert [name.startswith("test_pure") for name in names] == [True] * 8 + [False] * 8
    assert ["gateway" in path for path in paths[8:]] == [True] * 4 + [False] * 4


def test_a_worker_takes_a_whole_area_of_tests_with_real_processes(suite: pytest.Pytester) -> None:
    by_test = workers(suite.runpytest_subprocess("-v", "-n", "2", "-m", "kafka"))

    assert len(by_test) == 8
    for area in ("consume", "gateway"):
        assert len({worker for test, worker in by_test.items() if area in test}) == 1


def test_a_worker_takes_one_module_of_pure_tests_at_a_time(suite: pytest.Pytester) -> None:
    by_test = workers(suite.runpytest_subprocess("-v", "-n", "2", "-m", "not kafka"))

    assert len(by_test) == 8
    modules = {test.split("::")[0] for test in by_test}
    for module in modules:
        assert len({worker for test, worker in by_test.items() if test.startswith(module)}) == 1
