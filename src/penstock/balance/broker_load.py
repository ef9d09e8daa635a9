"""How loaded a broker is, from 0 (idle) to 1 (saturated), measured between two scrapes (Kora §4.1.1).

- At high load, waiting times decide. A broker is one queue with any arrival and service times (G/G/1), for
  which Kingman's approximation is E[W] = c·τ·ρ/(1 − ρ). Solved for ρ, it is E[W]/(E[W] + c·τ): a value
  that grows with the offered load, where latency explodes. W is the time in the request queue and in the
  response queue, without waits for replication or for clients. c stands for (Ca² + Cs²)/2, the variability
  of arrivals and service.
- At low load, waits are too short for Kafka's whole milliseconds. There the utilisation counts: the higher of
  the request handlers' and the network processors'.
- In between, load changes continuously from one to the other, and never falls if either rises.

τ is the time of the whole handler pool that one request takes: handlers' busy time ÷ requests. Kafka's
`LocalTimeMs` would be the same for one handler, but reads 0 for requests of less than half a millisecond.

All inputs are averaged over a minute as in Unix load averages, weighted by time, so that the distance between
scrapes does not matter. Without a fresh sample load is unknown: neither 0 nor 1 would be right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from penstock.kafka.broker_metrics import APIS, RequestTimes, Times, Traffic, moments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.broker_metrics import BrokerMetrics

AVERAGE_SECONDS: Final = 60.0  # the time constant of all averages
FRESH_SECONDS: Final = 35.0  # three scrapes, and some delay
WINDOW_SECONDS_MIN: Final = 1.0  # idle times are counted in steps of 0.3 s
NO_TRAFFIC: Final = Traffic()
NO_AGENT: Final = "no metrics agent is known"
ONE_SCRAPE: Final = "scraped once since the broker or the control plane started; load takes two scrapes"


@dataclass(frozen=True, slots=True)
class Profile:
    """What depends on a broker's hardware and settings: threads, disk, JIT, Kafka version.

    The default fits brokers whose request handlers or network processors are the scarce resource. Where
    processors are (fewer cores than threads), threads are never all busy: `calibrate` measures how busy they
    get.
    """

    wait_factor: float = 1.0  # c: 1 for random arrivals and service times
    blend_from: float = 0.5  # utilisation from which waiting times count
    blend_to: float = 0.8  # utilisation from which they count fully
    handlers_full: float = 1.0  # busy share of the request handlers at saturation
    network_full: float = 1.0  # likewise of the network processors

    def __post_init__(self) -> None:
        for each in fields(self):
            if not 0 < getattr(self, each.name) < math.inf:
                raise ValueError(f"{each.name} is {getattr(self, each.name)}, must be more than 0")
        if not self.blend_from < self.blend_to <= 1:
            raise ValueError("blend_from must be below blend_to, and that at most 1")

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Profile:
        """From stored values; those of a later version are ignored."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})


DEFAULT: Final = Profile()


@dataclass(frozen=True, slots=True)
class Scrape:
    """A broker's metrics and when they were scraped, in seconds of any steady clock."""

    time: float
    start_ms: float | None  # when the broker started
    metrics: BrokerMetrics


@dataclass(frozen=True, slots=True)
class Measurement:
    """What happened on a broker: in a window between two scrapes, or averaged over the last minute."""

    wait_ms: float = 0.0  # E[W], of a request
    handlers_busy: float = 0.0  # 0 to 1
    network_busy: float = 0.0  # 0 to 1, of the busiest listener
    requests: float = 0.0  # a second, all APIs
    bytes_in: float = 0.0  # a second, as the rest
    bytes_out: float = 0.0
    replication_bytes_in: float = 0.0
    replication_bytes_out: float = 0.0

    @property
    def service_ms(self) -> float:
        """τ: the time of the handler pool that a request takes."""
        return 1000 * self.handlers_busy / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Recent:
    """What happened in the newest window alone. None: unknown, such as a mean of nothing."""

    wait_ms: float | None = None  # as in `Measurement`
    handlers_busy: float | None = None
    local_ms: float | None = None  # mean time in which the broker itself worked on a produce request
    flush_ms: float | None = None  # mean time of a flush of a log


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a broker's load is not known: names of beans, or what went wrong."""

    reasons: tuple[str, ...]


def measure(before: Scrape, after: Scrape) -> Measurement | None:
    """The window between two scrapes; None if the broker restarted or the scrapes are too close."""
    seconds = after.time - before.time
    then, now = before.metrics, after.metrics
    idle = now.handler_idle_nanoseconds - then.handler_idle_nanoseconds
    if seconds < WINDOW_SECONDS_MIN or idle < 0 or before.start_ms != after.start_ms:
        return None
    wait = _mean_wait(then.requests, now.requests)
    if wait is None:
        return None

    def rate(earlier: float, later: float) -> float:
        return max(0.0, later - earlier) / seconds

    return Measurement(
        wait_ms=wait,
        handlers_busy=_share(seconds - idle / 1e9, seconds),
        network_busy=_network_busy(then, now, seconds),
        requests=rate(then.network_responses, now.network_responses),
        bytes_in=rate(then.traffic.bytes_in, now.traffic.bytes_in),
        bytes_out=rate(then.traffic.bytes_out, now.traffic.bytes_out),
        replication_bytes_in=rate(then.replication_bytes_in, now.replication_bytes_in),
        replication_bytes_out=rate(then.replication_bytes_out, now.replication_bytes_out),
    )


def recent(before: Scrape, after: Scrape, window: Measurement) -> Recent:
    """The newest window, not averaged with earlier ones."""
    then, now = before.metrics, after.metrics
    local = moments(
        then.requests.get("Produce", RequestTimes()).local, now.requests.get("Produce", RequestTimes()).local
    )
    flush = None
    if then.log_flushes >= 0:
        flush = moments(
            Times(then.log_flushes, then.log_flush_ms_mean), Times(now.log_flushes, now.log_flush_ms_mean)
        )
    return Recent(
        window.wait_ms,
        window.handlers_busy,
        local.mean if local is not None and local.count else None,
        flush.mean if flush is not None and flush.count else None,
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole))


def _mean_wait(then: Mapping[str, RequestTimes], now: Mapping[str, RequestTimes]) -> float | None:
    """Milliseconds that a request waited in the broker's queues; 0 if there was none."""
    total = count = 0.0
    for api in APIS:
        before, after = then.get(api, RequestTimes()), now.get(api, RequestTimes())
        queued, responded = moments(before.queue, after.queue), moments(before.response, after.response)
        if queued is None or responded is None:
            return None
        total += queued.count * queued.mean + responded.count * responded.mean
        count += queued.count
    return total / count if count else 0.0


def _network_busy(then: BrokerMetrics, now: BrokerMetrics, seconds: float) -> float:
    """Of the busiest listener. While its acceptor is blocked, its processors cannot take new connections."""
    busy = 0.0
    for listener, idle in now.network_idle_nanoseconds.items():
        before = then.network_idle_nanoseconds.get(listener)
        if before is not None and idle >= before:
            busy = max(busy, _share(seconds - (idle - before) / 1e9, seconds))
    for listener, blocked in now.acceptor_blocked_nanoseconds.items():
        before = then.acceptor_blocked_nanoseconds.get(listener, blocked)
        busy = max(busy, _share((blocked - before) / 1e9, seconds))
    return busy


def topic_rates(before: Scrape, after: Scrape) -> dict[str, tuple[float, float, float]]:
    """Bytes in, bytes out and messages in of each topic, a second; topics without traffic are left out.

    A topic without an earlier sample had no traffic on this broker before, or was recreated.
    """
    seconds, then = after.time - before.time, before.metrics.topics
    if seconds < WINDOW_SECONDS_MIN:
        return {}
    rates = {}
    for topic, now in after.metrics.topics.items():
        old = then.get(topic, NO_TRAFFIC)
        if now != old:
            rates[topic] = (
                max(0.0, now.bytes_in - old.bytes_in) / seconds,
                max(0.0, now.bytes_out - old.bytes_out) / seconds,
                max(0.0, now.messages_in - old.messages_in) / seconds,
            )
    return rates


def average_weight(seconds: float) -> float:
    """Of the newest window in an average."""
    return 1 - math.exp(-max(0.0, seconds) / AVERAGE_SECONDS)


def averaged(before: Measurement | None, newest: Measurement, seconds: float) -> Measurement:
    """The average after a window of so many seconds; the first window is the first average."""
    if before is None:
        return newest
    weight = average_weight(seconds)
    return Measurement(
        *(
            old + (new - old) * weight
            for old, new in ((getattr(before, f.name), getattr(newest, f.name)) for f in fields(Measurement))
        )
    )


def utilisation(measured: Measurement, profile: Profile = DEFAULT) -> float:
    """The higher of the request handlers' and the network processors', relative to saturation."""
    busy = max(measured.handlers_busy / profile.handlers_full, measured.network_busy / profile.network_full)
    return min(1.0, busy)


def kingman(measured: Measurement, profile: Profile = DEFAULT) -> float:
    """The utilisation at which requests wait as long as they do."""
    if not measured.wait_ms:
        return 0.0
    return measured.wait_ms / (measured.wait_ms + profile.wait_factor * measured.service_ms)


def blended(low: float, high: float, profile: Profile = DEFAULT) -> float:
    """From the utilisation to that of waiting times, if this is higher. Never falls if either rises."""
    weight = (low - profile.blend_from) / (profile.blend_to - profile.blend_from)
    return low + min(1.0, max(0.0, weight)) * max(0.0, high - low)


def broker_load(measured: Measurement, profile: Profile = DEFAULT) -> float:
    """A broker's load, from averages over a minute."""
    return blended(utilisation(measured, profile), kingman(measured, profile), profile)


def cluster_load(loads: Mapping[int, float | Unknown]) -> float | Unknown:
    """The most loaded broker's; unknown, with the brokers named, if one of them is."""
    unknown = [
        f"broker {broker}: {reason}"
        for broker, load in sorted(loads.items())
        if isinstance(load, Unknown)
        for reason in load.reasons
    ]
    if unknown or not loads:
        return Unknown(tuple(unknown) or ("no broker is known",))
    return max(load for load in loads.values() if not isinstance(load, Unknown))


def imbalance(loads: Mapping[int, float | Unknown]) -> float | Unknown:
    """The highest load ÷ the mean; 1 if all brokers are equally loaded."""
    highest = cluster_load(loads)
    if isinstance(highest, Unknown):
        return highest
    mean = sum(load for load in loads.values() if not isinstance(load, Unknown)) / len(loads)
    return highest / mean if mean else 1.0
