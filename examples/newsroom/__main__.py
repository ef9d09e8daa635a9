"""The `newsroom` command.

python -m examples.newsroom up                                      start it; Kafka is local or --bootstrap
python -m examples.newsroom publish examples/newsroom/asset.json    submit one asset
python -m examples.newsroom import examples/newsroom/assets.jsonl   submit many, references first
python -m examples.newsroom parked                                  list assets that wait for others
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from examples.launcher import (
    Bootstrap,
    Home,
    Option,
    TopicsName,
    example_app,
    run_cli,
    run_program,
    serve,
    stop_on_signals,
)
from examples.newsroom.asset_files import AssetFileError, read_asset, read_assets
from examples.newsroom.assets import in_order
from examples.newsroom.press import OUTCOME_TYPES, PRESS
from examples.newsroom.sample import SAMPLE
from examples.newsroom.settings import Settings, load_settings
from penstock.model.errors import Exit
from penstock.olep.event import request
from penstock.olep.executor import Executor, Tuning
from penstock.olep.outcome import Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.newsroom.assets import Asset
    from penstock.olep.event import Event

HOME = Path(".newsroom")
OUTCOME_SECONDS = 30.0

app = example_app("newsroom", "A newspaper on one log.", HOME)


@app.command
def up(
    *,
    home: Home = HOME,
    bootstrap: Bootstrap = None,
    option: Option = (),
    name: TopicsName = "newsroom",
    port: Annotated[int, Parameter(help="Port of the web site.")] = 8481,
) -> int:
    """Run the newsroom in the foreground: press, views, web site. Ctrl-C stops it."""

    def begin(config: dict[str, Any], start: Callable[[], None]) -> None:
        settings = Settings(str(home), config, name)
        settings.create_logs()
        settings.save()
        start()
        _submit(settings, in_order(SAMPLE)[0], label="sample")
        print(f"ready  http://127.0.0.1:{port}/  {len(SAMPLE)} assets", flush=True)
        print(
            f"try    python -m examples.newsroom publish examples/newsroom/asset.json --home {home}",
            flush=True,
        )

    commands = {"press": ["press"], "site": ["site", "--port", str(port)]}
    return run_program(
        "examples.newsroom", home, commands, port=port, bootstrap=bootstrap, option=option, begin=begin
    )


@app.command
def press(*, home: Home = HOME) -> int:
    """Run the press, which decides what is published and in which order."""
    settings = load_settings(home)
    Executor(
        PRESS,
        settings.submissions(),
        settings.state,
        logs=[settings.assets()],
        group=f"{settings.name}.press",
        tuning=Tuning(gather_seconds=0.0),
        client={"group.instance.id": "press"},
    ).run(stop_on_signals())
    return Exit.FINE


@app.command
def site(*, home: Home = HOME, port: int = 8481) -> int:
    """Run the views and the web site."""
    from examples.newsroom.service import service

    return serve(service(load_settings(home)), port)


@app.command
def publish(file: Path, *, home: Home = HOME) -> int:
    """Submit one asset, a JSON file, and print the outcome."""
    try:
        asset = read_asset(file)
    except AssetFileError as error:
        return _file_error(error)
    return _print_outcomes(_submit(load_settings(home), [asset]))


@app.command(name="import")
def import_assets(file: Path, *, home: Home = HOME) -> int:
    """Submit many assets, one JSON object a line. Referenced assets are submitted first.

    Every asset has an `id` and a `kind`: image (url, caption), author (name) or article (headline, body,
    author, images, tags). `examples/newsroom/assets.jsonl` is a sample."""
    try:
        assets = read_assets(file)
    except AssetFileError as error:
        return _file_error(error)
    ordered, cyclic = in_order(assets)
    for each in cyclic:
        print(f"circular reference: {each['id']}")
    return max(_print_outcomes(_submit(load_settings(home), ordered)), Exit.FAILED if cyclic else Exit.FINE)


@app.command
def parked(*, home: Home = HOME) -> int:
    """List assets that wait for another asset to be published."""
    from examples.newsroom.site import DANGLING, DESK
    from penstock.olep.view.consistent_reads import Reads

    settings = load_settings(home)
    with (
        Reads(DESK, settings.submissions(), settings.views) as reads,
        reads.linearizable(timeout=OUTCOME_SECONDS) as reader,
    ):
        for _, (asset, missing, _) in sorted(reader.rows(DANGLING)):
            print(f"{asset} waits for {', '.join(json.loads(missing))}")
    return Exit.FINE


def _submit(settings: Settings, assets: list[Asset], *, label: str | None = None) -> list[Event]:
    """Submits assets in this order; returns their outcomes. With a label, ids are the same every time."""
    now = time.time_ns() // 1_000_000
    with Outcomes(settings.submissions(), OUTCOME_TYPES) as outcomes:
        futures = [
            outcomes.submit(
                str(asset.get("id", "unnamed")),
                request(
                    f"{label}-{number}" if label else str(uuid.uuid4()), "asset.submitted", asset, time=now
                ),
            )
            for number, asset in enumerate(assets)
        ]
        return [future.result(OUTCOME_SECONDS) for future in futures]


def _print_outcomes(outcomes: list[Event]) -> int:
    for outcome in outcomes:
        more = {key: value for key, value in outcome.payload.items() if key in ("missing", "reason")}
        print(f"{outcome.type.partition('.')[2]} {outcome.payload['asset']}" + (f" {more}" if more else ""))
    refused = any(outcome.type == "submission.refused" for outcome in outcomes)
    return Exit.FAILED if refused else Exit.FINE


def _file_error(error: AssetFileError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return Exit.USAGE


if __name__ == "__main__":
    sys.exit(run_cli(app))
