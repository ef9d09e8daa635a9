"""The bench harness: results, goals, the lock, the JSON document."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from bench import harness
from bench.harness import Result, Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("value", "goal", "holds"),
    [
        (1.3, "<= 1.3", True),
        (1.31, "<= 1.3", False),
        (0.95, ">= 0.95", True),
        (0.94, ">=0.95", False),
        (5.0, "< 5", False),
        (5.1, "> 5", True),
        (0.0, "== 0", True),
        (1e-7, "<= 1e-6", True),
        (-2.0, "> -3", True),
        (1.0, None, None),
    ],
)
def test_a_result_holds_when_its_value_meets_its_goal(
    value: float, goal: str | None, holds: bool | None
) -> None:
    assert Result("a", value, "s", goal).holds is holds


def test_the_value_of_runs_is_their_median() -> None:
    result = Result.of_runs("a", [3.0, 1.0, 2.0], unit="s", goal="<= 2")

    assert (result.value, result.runs, result.holds) == (2.0, (3.0, 1.0, 2.0), True)


def test_a_missing_result_neither_holds_nor_fails_and_has_a_reason() -> None:
    line = Result.missing("a", unit="s", goal="<= 2", reason="no peer", optional=True).as_json()

    assert (line["value"], line["holds"], line["reason"], line["optional"]) == (None, None, "no peer", True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Result("a", 1.0, "s", "about 3"),
        lambda: Result("a", None, "s"),
        lambda: Result("a", 1.0, "s", reason="both"),
        lambda: Result("a", float("nan"), "s"),
    ],
    ids=["goal in words", "neither value nor reason", "value and reason", "no number"],
)
def test_an_invalid_result_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"^a: "):
        make()


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The harness writes to a temporary folder and uses a separate lock."""
    monkeypatch.setattr(harness, "OUT", tmp_path / "out")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def two_results(run: Run) -> Iterator[Result]:
    run.log("starts")
    yield Result.of_runs(
        "fast", [1.0, 1.1, 1.2], unit="ratio to peer", goal="<= 1.3", detail={"quick": run.quick}
    )
    yield Result.missing("peer", unit="s", reason="not installed", optional=True)


@pytest.mark.usefixtures("measured")
def test_the_document_is_the_last_line_of_output(capsys: pytest.CaptureFixture[str]) -> None:
    status = harness.main("demo", two_results, ["--quick", "--json"])

    written = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 0
    assert written["area"] == "demo"
    assert set(written["machine"]) >= {"cores", "load_before"}
    assert written["results"] == [
        {
            "name": "fast",
            "value": 1.1,
            "unit": "ratio to peer",
            "goal": "<= 1.3",
            "holds": True,
            "runs": [1.0, 1.1, 1.2],
            "detail": {"quick": True},
        },
        {
            "name": "peer",
            "value": None,
            "unit": "s",
            "goal": None,
            "holds": None,
            "runs": [],
            "detail": {},
            "optional": True,
            "reason": "not installed",
        },
    ]


def test_the_document_is_also_written_to_a_file(measured: Path) -> None:
    harness.main("demo", two_results, [])

    assert json.loads((measured / "out" / "demo.json").read_text())["quick"] is False


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("words", "expected"), [([], ["a", "b"]), (["--only", "b"], ["b"])])
def test_lines_can_be_chosen_where_a_bench_offers_them(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    def measure(run: Run) -> Iterator[Result]:
        yield from (Result(line, 1.0, "s") for line in ("a", "b") if run.wants(line))

    harness.main("demo", measure, ["--json", *words], lines=("a", "b"))

    results = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert [result["name"] for result in results] == expected


@pytest.mark.usefixtures("measured")
def test_a_crash_keeps_what_was_measured_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    def crashes(run: Run) -> Iterator[Result]:
        yield Result("first", 1.0, "s")
        raise RuntimeError("no more")

    status = harness.main("demo", crashes, ["--json"])

    results = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert status == 1
    assert [line["name"] for line in results] == ["first", "demo-crashed"]
    assert results[1]["reason"] == "RuntimeError: no more"


def test_plots_are_saved_beside_the_document(tmp_path: Path) -> None:
    run = Run("demo", quick=True, out=tmp_path, progress=io.StringIO())

    run.plot_runs("spread", {"ours": [1.0, 1.2], "peer": [2.0, 2.1]}, title="demo", unit="s")

    assert (tmp_path / "demo-spread.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_bench_waits_and_reports_the_lock_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = "import sys; from pathlib import Path; from bench.harness import exclusive_bench\n"
    held += f"with exclusive_bench('first', progress=sys.stderr, path=Path({str(path)!r})):\n"
    held += "    print('held', flush=True); sys.stdin.read()\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"

        class EndsTheFirst(io.StringIO):
            """Ends the first bench once the second reports that it waits."""

            def flush(self) -> None:
                assert first.stdin is not None
                first.stdin.close()

        progress = EndsTheFirst()
        with harness.exclusive_bench("second", progress=progress, path=path):
            first.wait(timeout=30)

    assert f"waiting for bench.first, process {first.pid}," in progress.getvalue()


def test_a_terminated_bench_cleans_up() -> None:
    code = "import sys; from bench.harness import interruptible\n"
    code += "with interruptible():\n    try:\n        print('started', flush=True); sys.stdin.read()\n"
    code += "    finally:\n        print('ended', flush=True)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"

        process.terminate()

        assert process.stdout.read() == b"ended\n"
    assert process.returncode == 128 + signal.SIGTERM
