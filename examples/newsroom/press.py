"""Decides which assets are published, and in which order; all readers follow its one log.

    asset.submitted ─ refers only to what is published? ─┬─ asset.published → assets
                                                         └─ submission.parked → submissions
    asset.published for which others wait ─ they are published right after it

The log of assets therefore has both properties the paper asks for: references precede the assets that
refer to them, and the last version of an asset is the latest. An asset with a dangling reference is
parked, shown at the desk and not published; submitting the missing asset releases it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from examples.newsroom.assets import problem, references
from penstock.olep.application import Application, Decision, Emit, State
from penstock.olep.table import Effect, Put, Remove, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.olep.event import Event

SUBMISSIONS_LOG: Final = "submissions"
ASSETS_LOG: Final = "assets"
OUTCOME_TYPES: Final = frozenset({"submission.accepted", "submission.parked", "submission.refused"})


class Published(NamedTuple):
    asset: str
    version: int


class Parked(NamedTuple):
    asset: str
    content: str  # JSON


class Awaited(NamedTuple):
    """An asset that is not published, and the assets that wait for it."""

    asset: str
    referrers: str  # JSON


PUBLISHED: Final = Table("published", Published)
PARKED: Final = Table("parked", Parked)
AWAITED: Final = Table("awaited", Awaited)


def application() -> Application:
    return Application(
        name="press",
        decide=decide,
        tables=(PUBLISHED, PARKED, AWAITED),
        handles={"asset.submitted": 1},
        ignores=OUTCOME_TYPES | {"submission.released"},
        logs={SUBMISSIONS_LOG, ASSETS_LOG},
    )


def decide(state: State, event: Event) -> Decision:
    asset = dict(event.payload)
    if wrong := problem(asset):
        return (), (_outcome(event.key, "submission.refused", reason=wrong),)
    missing = [each for each in references(asset) if state.get(PUBLISHED, each) is None]
    if missing:
        return _park(state, asset, missing)
    return _publish(state, asset)


def _park(state: State, asset: Mapping[str, Any], missing: list[str]) -> Decision:
    effects: list[Effect] = [Put(PARKED, Parked(asset["id"], json.dumps(asset)))]
    for each in missing:
        known = state.get(AWAITED, each)
        waiting = json.loads(known.referrers) if known else []
        if asset["id"] not in waiting:
            effects.append(Put(AWAITED, Awaited(each, json.dumps([*waiting, asset["id"]]))))
    return effects, (_outcome(asset["id"], "submission.parked", missing=missing),)


def _publish(state: State, first: Mapping[str, Any]) -> Decision:
    """Publishes an asset, then every parked asset whose references are now complete.

    The outcome is emitted last and names the asset published last: a reader that sees it sees them all.
    """
    effects: list[Effect] = []
    emits: list[Emit] = []
    versions: dict[str, int] = {}
    queue = [first]
    while queue:
        asset = queue.pop(0)
        name = asset["id"]
        before = state.get(PUBLISHED, name)
        versions[name] = (before.version if before else 0) + 1
        effects.append(Put(PUBLISHED, Published(name, versions[name])))
        emits.append(Emit(ASSETS_LOG, name, "asset.published", {**asset, "version": versions[name]}))
        if state.get(PARKED, name) is not None:
            # This version or a later one is published, so the parked one is obsolete.
            effects.append(Remove(PARKED, name))
            emits.append(_outcome(name, "submission.released"))
        awaited = state.get(AWAITED, name)
        if awaited is None:
            continue
        effects.append(Remove(AWAITED, name))
        for referrer in json.loads(awaited.referrers):
            parked = state.get(PARKED, referrer)
            if parked is None or referrer in versions:
                continue
            content = json.loads(parked.content)
            if all(each in versions or state.get(PUBLISHED, each) for each in references(content)):
                queue.append(content)
    published = {"last": name, "version": versions[name]}
    return effects, [*emits, _outcome(first["id"], "submission.accepted", **published)]


def _outcome(asset: str, kind: str, **payload: object) -> Emit:
    return Emit(SUBMISSIONS_LOG, asset, kind, {"asset": asset, **payload})


PRESS: Final = application()
