"""`penstock scale` from the outside."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from penstock.cli.app import run
from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.model.errors import Exit
from tests.harness.propagation import wait_for_topics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet


def test_a_recorded_trace_is_compared_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, picture = tmp_path / "trace.csv", tmp_path / "out.png"
    lines = [f"{second},{150 if 200 <= second < 500 else 20}" for second in range(700)]
    trace.write_text("second,arrived\n" + "\n".join(lines))

    status = run(
        ["scale", "simulate", "--trace", str(trace), "--replicas", "1", "--plot", str(picture),
         "--set", "lagThreshold=100", "--set", "maxReplicas=6", "-o", "json"]
    )  # fmt: skip

    rows = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert len(rows) == 4
    assert rows[0]["scaler"] == "persistent lag"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate"], "expected --trace FILE, or one of steady, daily-cycle"),
        (["simulate", "--scenario", "flood"], "`--scenario` is 'flood'"),
        (["simulate", "--scenario", "step", "--set", "lagThreshold"], "expected key=value"),
        (["simulate", "--scenario", "step", "--set", "sustain=1"], "unknown key `sustain`"),
        (["explain", "--settings", "nowhere.yaml", "--set", "group=g"], "nowhere.yaml: cannot be read"),
        (["serve", "--settings", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_a_mistake_gets_one_clear_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(["scale", *words])

    assert status == Exit.USAGE
    assert message in " ".join(capsys.readouterr().err.split())


def test_parameters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "parameters", "-o", "json"]) == Exit.FINE

    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"group", "lagThreshold", "sustainSeconds"} <= set(names)


@pytest.mark.parametrize(
    "text", ["kind: Deployment\n", "{", "kind: ScaledObject\nspec: {triggers: [{type: kafka}]}\n"]
)
def test_a_file_without_our_trigger_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "so.yaml").write_text(text)
    (tmp_path / "scaler.yaml").write_text("clusters: {default: {bootstrap: 'localhost:1'}}")

    status = run(
        [
            "scale",
            "explain",
            "--settings",
            str(tmp_path / "scaler.yaml"),
            "--scaled-object",
            str(tmp_path / "so.yaml"),
        ]
    )

    assert status == Exit.USAGE
    assert "so.yaml" in capsys.readouterr().err


@pytest.mark.kafka
async def test_explain_prints_every_rule_with_its_numbers(
    fleet: Fleet, unique: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group = unique("orders"), unique("billing")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))
        await wait_for_topics(fleet, topic)
        results_or_raise(
            await group_offsets.commit(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        )
    config = fleet.client_config()
    (tmp_path / "password").write_text(config["sasl.password"])
    (tmp_path / "so.yaml").write_text(
        "kind: ScaledObject\nmetadata: {name: billing, namespace: shop}\n"
        "spec: {triggers: [{type: external, metadata: "
        f"{{scalerAddress: 'x:1', group: {group}, topic: {topic}, minReplicas: '0'}}}}]}}\n"
    )
    (tmp_path / "scaler.yaml").write_text(
        f"clusters: {{default: {{bootstrap: '{config['bootstrap.servers']}', interval: 1, "
        f"user: {config['sasl.username']}, password_file: {tmp_path}/password, "
        f"mechanism: {config['sasl.mechanism']}}}}}\n"
    )

    words = ["scale", "explain", "--settings", str(tmp_path / "scaler.yaml"), "--seconds", "0"]
    status = await asyncio.to_thread(
        run, [*words, "--scaled-object", str(tmp_path / "so.yaml"), "-o", "json"]
    )

    data = json.loads(capsys.readouterr().out)
    assert status == Exit.FINE
    assert (data["scaledObject"], data["group"], data["replicas"]) == ("shop/billing", group, 1)
    assert data["rules"][0] == {"rule": "G1 not rebalancing", "holds": True, "reason": "group is Empty"}

    # A missing group is reported at once: with these seconds the test would not end.
    words[-1] = "86400"
    missing = ["--set", f"group={unique('missing')}", "--set", f"topic={topic}", "-o", "json"]
    assert await asyncio.to_thread(run, [*words, *missing]) == Exit.NOT_FOUND
    assert "PEN-6507" in capsys.readouterr().err
