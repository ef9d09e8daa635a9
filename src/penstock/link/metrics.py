"""Metrics of a process that runs a link: the link's, and those of its shadow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.link.states import State
from penstock.metric_families import Samples
from penstock.model.metric_catalogue import LINK, SHADOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.link.mirror import Mirror
    from penstock.link.runner import LinkRunner


class LinkMetrics:
    """A Prometheus collector."""

    def __init__(self, runner: LinkRunner) -> None:
        self._runner = runner

    def collect(self) -> Iterator[Metric]:
        runner, link = self._runner, Samples(LINK)
        shadow = Samples(SHADOW)
        if runner.status:
            for state in State:
                link.add("state", float(runner.state is state), runner.link, state)
            link.add("problems", float(len(runner.status["problems"])), runner.link)
        if runner.metadata is not None:
            link.add("groups", float(runner.metadata.groups_synced), runner.link)
            clamped = runner.metadata.group_offsets_clamped
            link.add("clamped_group_offsets", float(clamped), runner.link)
        if runner.mirror is not None:
            _add_mirror(link, runner.link, runner.mirror)
            _add_shadow(shadow, runner.mirror)
        yield from link
        yield from shadow

    def not_ready(self) -> str:
        """Why the link does not mirror; empty if it does."""
        if not self._runner.status:
            return "the link has not started"
        return "" if self._runner.state is State.MIRRORING else f"the link is {self._runner.state}"


def _add_mirror(samples: Samples, link: str, mirror: Mirror) -> None:
    lags: dict[str, int] = {}
    for place, one in mirror.partitions.items():
        lags[place.topic] = lags.get(place.topic, 0) + (one.lag or 0)
    for topic, lag in lags.items():
        samples.add("lag_offsets", float(lag), link, topic)
    failed = sum(bool(one.failed or one.unverified) for one in mirror.partitions.values())
    samples.add("failed_partitions", float(failed + len(mirror.unattached)), link)
    samples.add("truncations", float(mirror.truncations), link)
    window = sum(one.led.window.size for one in mirror.partitions.values())
    samples.add("window_bytes", float(window), link)


def _add_shadow(samples: Samples, mirror: Mirror) -> None:
    led = [one.led for one in mirror.partitions.values() if one.led.leadership is not None]
    terms = [one.leadership for one in led if one.leadership is not None]
    samples.add("led_partitions", float(len(led)))
    behind = sum(len(set(term.state.replicas) - set(term.state.isr)) for term in terms)
    samples.add("followers_behind", float(behind))
    samples.add("guarded_refusals", float(mirror.guarded_refusals))
    samples.add("fenced", float(mirror.shadow.session.fenced))
