"""The `newsroom` command.

python -m examples.newsroom up                       a newspaper on a local Kafka, or on any: --bootstrap
python -m examples.newsroom publish asset.json       one asset
python -m examples.newsroom import assets.jsonl      many, in an order in which references come first
python -m examples.newsroom parked                   what waits for something that is not published
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from examples.frame import Bootstrap, LocalKafka, Option, TopicsName, bring_up, main_of, stop_on_signals
from examples.newsroom.assets import in_order
from examples.newsroom.press import ANSWERS, PRESS
from examples.newsroom.sample import SAMPLE
from examples.newsroom.setting import Setting, load_setting
from penstock.model.errors import Exit
from penstock.olep.event import request
from penstock.olep.executor import Executor, Tuning
from penstock.olep.outcome import Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.newsroom.assets import Asset
    from penstock.olep.event import Event

app = App(name="newsroom", help="A newspaper on one log.")

Home = Annotated[Path, Parameter(help="Where this newsroom keeps its settings and state.")]
HOME = Path(".newsroom")
ASK_SECONDS = 30.0


@app.command
def up(
    *,
    home: Home = HOME,
    bootstrap: Bootstrap = None,
    option: Option = (),
    name: TopicsName = "newsroom",
    port: Annotated[int, Parameter(help="Of the web page.")] = 8481,
) -> int:
    """Run the newsroom in the foreground: press, views, web page. Ctrl-C stops it."""

    def begin(config: dict[str, Any], start: Callable[[], None]) -> None:
        setting = Setting(str(home), config, name)
        setting.create_logs()
        setting.save()
        start()
        _submit(setting, in_order(SAMPLE)[0], label="sample")
        print(f"ready  http://127.0.0.1:{port}/  {len(SAMPLE)} assets", flush=True)
        print(f"try    python -m examples.newsroom publish asset.json --home {home}", flush=True)

    members = {"press": ["press"], "site": ["site", "--port", str(port)]}
    bring_up("examples.newsroom", home, members, port=port, bootstrap=bootstrap, option=option, begin=begin)
    return Exit.FINE


@app.command
def press(*, home: Home = HOME) -> int:
    """Run the press: it decides what is published, and in which order."""
    setting = load_setting(home)
    Executor(
        PRESS,
        setting.submissions(),
        setting.state,
        logs=[setting.assets()],
        group=f"{setting.name}.press",
        tuning=Tuning(gather_seconds=0.0),
        client={"group.instance.id": "press"},
    ).run(stop_on_signals())
    return Exit.FINE


@app.command(show=False)
def keeper(*, home: Home = HOME) -> int:
    """Stop the local Kafka of a newsroom that was killed. Started by `up`."""
    LocalKafka(home).keep()
    return Exit.FINE


@app.command
def site(*, home: Home = HOME, port: int = 8481) -> int:
    """Run the views and the web page."""
    import uvicorn

    from examples.newsroom.service import service as made

    uvicorn.run(made(load_setting(home)), host="127.0.0.1", port=port, log_level="warning")
    return Exit.FINE


@app.command
def publish(file: Path, *, home: Home = HOME) -> int:
    """Submit one asset, a JSON file, and print what became of it."""
    return _told(_submit(load_setting(home), [json.loads(file.read_text(encoding="utf-8"))]))


@app.command(name="import")
def bulk(file: Path, *, home: Home = HOME) -> int:
    """Submit many assets, one JSON document a line, in an order in which references come first."""
    assets = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    ordered, circles = in_order(assets)
    for each in circles:
        print(f"refers in a circle: {each['id']}")
    return max(_told(_submit(load_setting(home), ordered)), Exit.FAILED if circles else Exit.FINE)


@app.command
def parked(*, home: Home = HOME) -> int:
    """Print what waits for an asset that is not published."""
    from examples.newsroom.site import DANGLING, DESK
    from penstock.olep.view.reads import Reads

    setting = load_setting(home)
    with (
        Reads(DESK, setting.submissions(), setting.views) as reads,
        reads.linearizable(timeout=ASK_SECONDS) as reader,
    ):
        for _, (asset, missing, _) in sorted(reader.rows(DANGLING)):
            print(f"{asset} waits for {', '.join(json.loads(missing))}")
    return Exit.FINE


def _submit(setting: Setting, assets: list[Asset], *, label: str | None = None) -> list[Event]:
    """All of them in this order; each is answered. With a label the ids are the same each time."""
    now = time.time_ns() // 1_000_000
    with Outcomes(setting.submissions(), ANSWERS) as outcomes:
        futures = [
            outcomes.begin(
                str(asset.get("id", "unnamed")),
                request(
                    f"{label}-{number}" if label else str(uuid.uuid4()), "asset.submitted", asset, time=now
                ),
            )
            for number, asset in enumerate(assets)
        ]
        return [future.result(ASK_SECONDS) for future in futures]


def _told(answers: list[Event]) -> int:
    for answer in answers:
        more = {key: value for key, value in answer.payload.items() if key in ("missing", "reason")}
        print(f"{answer.type.partition('.')[2]} {answer.payload['asset']}" + (f" {more}" if more else ""))
    refused = any(answer.type == "submission.refused" for answer in answers)
    return Exit.FAILED if refused else Exit.FINE


if __name__ == "__main__":
    sys.exit(main_of(app))
