"""`penstock scale`: the persistent-lag scaler for KEDA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.flags import key_values
from penstock.cli.output import Format, report, show, table_of
from penstock.cli.settings import LogLines, start_logs
from penstock.log_lines import announce
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid
from penstock.model.settings_reader import read_documents
from penstock.scale.decision.parameters import parameter_rows
from penstock.scale.decision.policy import policy_of
from penstock.scale.explain import explanation, sampled_watch
from penstock.scale.server import serving
from penstock.scale.settings import ScalerSettings, read_scaler_settings
from penstock.scale.simulate import traces
from penstock.scale.simulate.plot import draw
from penstock.scale.simulate.run import KedaArm, PersistentArm, Scaler, run
from penstock.scale.simulate.score import score
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Sequence

app = App(name="scale", help="The lag scaler for KEDA: serve, explain a decision, simulate a trace.")

SettingsFile = Annotated[Path, Parameter(name=("--settings", "-s"), help="The scaler's settings file.")]
TriggerMetadata = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="Trigger metadata, key=value; repeatable.", negative=""),
]
Output = Annotated[Format, Parameter(name=("--output", "-o"), help="Output format.")]


@app.command
async def serve(*, settings: SettingsFile, log_format: LogLines = None) -> int:
    """Serve KEDA's calls until stopped.

    Example:  penstock scale serve --settings scaler.yaml
    """
    stop = stop_event()
    scaler = _read_settings(settings)
    start_logs(log_format)
    async with serving(scaler) as running:
        host = scaler.listen.rpartition(":")[0]
        announce(f"scaler ready on {host}:{running.port}, clusters: {', '.join(sorted(scaler.clusters))}")
        await stop.wait()
    return Exit.FINE


@app.command
async def explain(
    *,
    settings: SettingsFile,
    scaled_object: Annotated[
        Path | None, Parameter(help="YAML file of a ScaledObject, for its metadata.")
    ] = None,
    pairs: TriggerMetadata = (),
    seconds: Annotated[float, Parameter(help="Seconds to sample if no samples are stored.")] = 60.0,
    output: Output = Format.TABLE,
) -> int:
    """Explain the scaler's decision: every rule in order, with its numbers.

    Example:  penstock scale explain --settings scaler.yaml --set group=billing --set topic=orders
    """
    name, metadata = _metadata(scaled_object, pairs)
    watch = await sampled_watch(_read_settings(settings), name, metadata, seconds=seconds, progress=report)
    verdict = watch.current_verdict(watch.received_at or 0.0)
    data = explanation(watch, verdict)
    facts = [
        {"what": key, "value": data[key]} for key in ("verdict", "replicas", "active", "lag", "lagSeconds")
    ]
    view = Group(
        table_of(facts, {"WHAT": "what", "VALUE": "value"}),
        "",
        table_of(data["rules"], {"RULE": "rule", "HOLDS": "holds", "REASON": "reason"}),
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
    scenario: Annotated[str | None, Parameter(help="Name of a built-in trace, instead.")] = None,
    seed: Annotated[int, Parameter(help="Seed of a built-in trace.")] = 1,
    hours: Annotated[
        float | None, Parameter(help="Length of a built-in trace.", show_default="its own")
    ] = None,
    replicas: Annotated[int, Parameter(help="Replicas at the start of a recorded trace.")] = 1,
    capacity: Annotated[
        float, Parameter(help="Records per second and replica, for a recorded trace.")
    ] = 100.0,
    plot: Annotated[Path | None, Parameter(help="Plot load, replicas and waiting time to this file.")] = None,
    pairs: TriggerMetadata = (),
    output: Output = Format.TABLE,
) -> int:
    """Play a trace through this scaler and through KEDA's own, and compare.

    Example:  penstock scale simulate --scenario step --hours 1 --plot step.png
    """
    _, metadata = _metadata(None, ("group=simulated", *pairs))
    policy = policy_of(metadata, scaled_object="--set")
    played = _trace(trace, scenario, seed, hours, replicas, capacity)
    threshold = round(policy.lag_threshold) or 500
    most = min(policy.replicas_max, played.arrivals.shape[1])
    arms: list[Scaler] = [PersistentArm(policy), *(KedaArm(threshold, window) for window in (0, 120, 300))]
    outcomes = [run(played, arm, minimum=max(policy.replicas_min, 1), maximum=most) for arm in arms]
    rows = []
    for outcome in outcomes:
        scored = score(outcome, policy.objective)
        rows.append(
            {
                "scaler": outcome.arm, "events": scored.events, "flaps": scored.flaps,
                "replicaMinutes": round(scored.replica_minutes, 1),
                "lateMinutes": round(scored.late_minutes, 1),
                "oldestSeconds": float(outcome.age.max()),
            }
        )  # fmt: skip
    if plot is not None:
        draw(outcomes, policy.objective, plot)
        report(f"wrote {plot}")
    columns = {
        "SCALER": "scaler", "EVENTS": "events", "FLAPS": "flaps", "REPLICA-MINUTES": "replicaMinutes",
        "MINUTES LATE": "lateMinutes", "OLDEST S": "oldestSeconds",
    }  # fmt: skip
    show(rows, output, table_of(rows, columns))
    return Exit.FINE


def _trace(
    path: Path | None, scenario: str | None, seed: int, hours: float | None, replicas: int, capacity: float
) -> traces.Trace:
    if path is not None:
        return traces.recorded(path, replicas=replicas, capacity=capacity)
    known = {generate.__name__.replace("_", "-"): generate for generate in traces.GENERATORS}
    if scenario is None or scenario not in known:
        expected = "expected --trace FILE, or one of " + ", ".join(known)
        raise SettingInvalid(
            where="penstock scale simulate", key="--scenario", value=scenario, expected=expected
        )
    return known[scenario](seed) if hours is None else known[scenario](seed, hours)


def _read_settings(path: Path) -> ScalerSettings:
    return read_scaler_settings(path, os.environ)


def _metadata(path: Path | None, pairs: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(namespace/name, trigger metadata) of a ScaledObject's file, overridden by `--set` pairs."""
    name, metadata = "cli/flags", dict[str, str]()
    if path is not None:
        name, metadata = _scaled_object(path)
    return name, metadata | key_values(pairs, "--set", where="penstock scale")


def _scaled_object(path: Path) -> tuple[str, dict[str, str]]:
    for document in read_documents(path):
        if isinstance(document, dict) and document.get("kind") == "ScaledObject":
            about = document.get("metadata", {})
            for trigger in document.get("spec", {}).get("triggers", []):
                if str(trigger.get("type", "")).startswith("external"):
                    metadata = {str(key): str(value) for key, value in trigger.get("metadata", {}).items()}
                    return f"{about.get('namespace', 'default')}/{about.get('name', '')}", metadata
    raise SettingInvalid(
        where=str(path), key="kind", value="none", expected="expected a ScaledObject with an external trigger"
    )
