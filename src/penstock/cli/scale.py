"""`penstock scale`: the persistent-lag scaler for KEDA."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.output import Format, show, table_of, tell
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable
from penstock.scale.describe import parameter_rows
from penstock.scale.explain import explanation, watched_now
from penstock.scale.policy import policy_of
from penstock.scale.server import serving
from penstock.scale.settings import ScalerSettings, settings_from
from penstock.scale.simulate import traces
from penstock.scale.simulate.plot import draw
from penstock.scale.simulate.run import KedaArm, PersistentArm, Scaler, run
from penstock.scale.simulate.score import score

if TYPE_CHECKING:
    from collections.abc import Sequence

app = App(name="scale", help="The persistent-lag scaler for KEDA: serve it, ask it why, try it on a trace.")

SettingsFile = Annotated[Path, Parameter(name=("--settings", "-s"), help="The scaler's settings file.")]
Wishes = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="Trigger metadata, as key=value; may be repeated.", negative=""),
]
Output = Annotated[Format, Parameter(name=("--output", "-o"), help="What to print.")]


@app.command
async def serve(*, settings: SettingsFile) -> int:
    """Answer KEDA's calls until stopped.

    Example:  penstock scale serve --settings scaler.yaml
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    wanted = _read_settings(settings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    async with serving(wanted) as running:
        host = wanted.listen.rpartition(":")[0]
        tell(f"scaler ready on {host}:{running.port}, clusters: {', '.join(sorted(wanted.clusters))}")
        await stop.wait()
    return Exit.FINE


@app.command
async def explain(
    *,
    settings: SettingsFile,
    scaled_object: Annotated[
        Path | None, Parameter(help="A ScaledObject's YAML file, for its metadata.")
    ] = None,
    wishes: Wishes = (),
    seconds: Annotated[float, Parameter(help="How long to sample when no samples are stored.")] = 60.0,
    output: Output = Format.TABLE,
) -> int:
    """Say what the scaler asks for, and why: every rule in order, with its numbers.

    Example:  penstock scale explain --settings scaler.yaml --set group=billing --set topic=orders
    """
    name, metadata = _metadata(scaled_object, wishes)
    watch = await watched_now(_read_settings(settings), name, metadata, seconds=seconds, progress=tell)
    verdict = watch.answer(watch.sampled_at or 0.0)
    data = explanation(watch, verdict)
    facts = [
        {"what": key, "value": data[key]} for key in ("verdict", "replicas", "active", "lag", "lagSeconds")
    ]
    view = Group(
        table_of(facts, {"WHAT": "what", "VALUE": "value"}),
        "",
        table_of(data["rules"], {"RULE": "rule", "HOLDS": "holds", "BECAUSE": "because"}),
        "",
        table_of(
            [{"state": state, "count": count} for state, count in data["partitions"].items()],
            {"PARTITIONS": "state", "COUNT": "count"},
        ),
        *(["", f"stuck: {', '.join(data['stuck'])}"] if data["stuck"] else []),
    )
    show(data, output, view)
    return Exit.FINE


@app.command
def parameters(*, output: Output = Format.TABLE) -> int:
    """List the trigger metadata a ScaledObject may set, with defaults.

    Example:  penstock scale parameters
    """
    rows = parameter_rows()
    show(rows, output, table_of(rows, {"METADATA": "name", "DEFAULT": "default", "MEANING": "meaning"}))
    return Exit.FINE


@app.command
def simulate(
    *,
    trace: Annotated[
        Path | None, Parameter(help="A CSV of `second,arrived` or `second,partition,arrived`.")
    ] = None,
    story: Annotated[str | None, Parameter(help="A built-in trace instead, by name.")] = None,
    seed: Annotated[int, Parameter(help="Of a built-in trace.")] = 1,
    hours: Annotated[
        float | None, Parameter(help="How long, of a built-in trace.", show_default="as told")
    ] = None,
    replicas: Annotated[int, Parameter(help="Replicas at the beginning of a recorded trace.")] = 1,
    capacity: Annotated[
        float, Parameter(help="Records a second one replica handles, recorded traces.")
    ] = 100.0,
    plot: Annotated[
        Path | None, Parameter(help="Draw load, replicas and waiting time into this file.")
    ] = None,
    wishes: Wishes = (),
    output: Output = Format.TABLE,
) -> int:
    """Play a trace through this scaler and through KEDA's own, and compare.

    Example:  penstock scale simulate --story step --hours 1 --plot step.png
    """
    _, metadata = _metadata(None, ("group=simulated", *wishes))
    policy = policy_of(metadata, scaled_object="--set")
    told = _trace(trace, story, seed, hours, replicas, capacity)
    threshold = round(policy.lag_threshold) or 500
    most = min(policy.replicas_max, told.arrivals.shape[1])
    arms: list[Scaler] = [PersistentArm(policy), *(KedaArm(threshold, window) for window in (0, 120, 300))]
    outcomes = [run(told, arm, minimum=max(policy.replicas_min, 1), maximum=most) for arm in arms]
    rows = []
    for outcome in outcomes:
        found = score(outcome, policy.objective)
        rows.append(
            {
                "scaler": outcome.arm, "events": found.events, "flaps": found.flaps,
                "replicaMinutes": round(found.replica_minutes, 1),
                "lateMinutes": round(found.late_minutes, 1),
                "oldestSeconds": float(outcome.age.max()),
            }
        )  # fmt: skip
    if plot is not None:
        draw(outcomes, policy.objective, plot)
        tell(f"drawn: {plot}")
    columns = {
        "SCALER": "scaler", "EVENTS": "events", "FLAPS": "flaps", "REPLICA-MINUTES": "replicaMinutes",
        "MINUTES LATE": "lateMinutes", "OLDEST S": "oldestSeconds",
    }  # fmt: skip
    show(rows, output, table_of(rows, columns))
    return Exit.FINE


def _trace(
    path: Path | None, story: str | None, seed: int, hours: float | None, replicas: int, capacity: float
) -> traces.Trace:
    if path is not None:
        return traces.recorded(path, replicas=replicas, capacity=capacity)
    known = {generate.__name__.replace("_", "-"): generate for generate in traces.GENERATORS}
    if story is None or story not in known:
        expected = "expected --trace FILE, or one of " + ", ".join(known)
        raise SettingInvalid(where="penstock scale simulate", key="--story", value=story, expected=expected)
    return known[story](seed) if hours is None else known[story](seed, hours)


def _read_settings(path: Path) -> ScalerSettings:
    try:
        return settings_from(path.read_text())
    except OSError as failure:
        raise SettingsUnreadable(path=path, reason=failure.strerror) from failure


def _metadata(path: Path | None, wishes: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(namespace/name, trigger metadata) from a ScaledObject's file, with single wishes on top."""
    name, metadata = "cli/wishes", dict[str, str]()
    if path is not None:
        name, metadata = _scaled_object(path)
    for wish in wishes:
        key, equals, value = wish.partition("=")
        if not equals:
            raise SettingInvalid(
                where="penstock scale", key="--set", value=wish, expected="expected key=value"
            )
        metadata[key.strip()] = value
    return name, metadata


def _scaled_object(path: Path) -> tuple[str, dict[str, str]]:
    try:
        documents: list[Any] = [
            each for each in yaml.safe_load_all(path.read_text()) if isinstance(each, dict)
        ]
    except (OSError, yaml.YAMLError) as failure:
        raise SettingsUnreadable(path=path, reason=failure) from failure
    for document in documents:
        if document.get("kind") == "ScaledObject":
            about = document.get("metadata", {})
            for trigger in document.get("spec", {}).get("triggers", []):
                if str(trigger.get("type", "")).startswith("external"):
                    wishes = {str(key): str(value) for key, value in trigger.get("metadata", {}).items()}
                    return f"{about.get('namespace', 'default')}/{about.get('name', '')}", wishes
    raise SettingInvalid(
        where=str(path), key="kind", value="none", expected="expected a ScaledObject with an external trigger"
    )
