"""Broker load: waits and utilisation between two scrapes, averaged, and joined into one number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.broker_load import (
    DEFAULT,
    Measurement,
    Profile,
    Recent,
    Scrape,
    Unknown,
    averaged,
    blended,
    broker_load,
    cluster_load,
    imbalance,
    kingman,
    measure,
    recent,
    utilisation,
)
from penstock.kafka.broker_metrics import BrokerMetrics, RequestTimes, Times, Traffic

SHARE = st.floats(0, 1)


def scrape(time: float, *, busy: float = 0.0, wait_ms: float = 0.0, requests: int = 0) -> Scrape:
    """A broker that had been this busy from its start at second 0 on."""
    idle = (1 - busy) * time * 1e9
    waited = Times(count=requests * time, mean=wait_ms / 2)
    return Scrape(
        time,
        start_ms=1.0,
        metrics=BrokerMetrics(
            handler_idle_nanoseconds=idle,
            network_idle_nanoseconds={"GATEWAY": time * 1e9, "INTERNAL": (1 - busy / 2) * time * 1e9},
            network_responses=requests * time,
            traffic=Traffic(bytes_in=1000 * time),
            requests={"Produce": RequestTimes(queue=waited, response=waited)},
        ),
    )


def test_a_window_has_the_waits_and_the_busy_shares_between_two_scrapes() -> None:
    before = scrape(100, busy=0.1, wait_ms=1, requests=10)
    after = scrape(200, busy=0.4, wait_ms=3, requests=10)

    window = measure(before, after)

    assert window is not None
    assert window.handlers_busy == pytest.approx(0.7)  # 40 s of 200 s, less 10 s of the first 100 s
    assert window.network_busy == pytest.approx(0.35)  # the busiest listener's
    assert window.wait_ms == pytest.approx(5)
    assert (window.requests, window.bytes_in) == (10, 1000)
    assert window.service_ms == pytest.approx(70)


def timed(at: float, *, local: Times, flushes: float = -1.0, flush_ms: float = 0.0) -> Scrape:
    metrics = replace(scrape(at).metrics, log_flushes=flushes, log_flush_ms_mean=flush_ms)
    produce = replace(metrics.requests["Produce"], local=local)
    return Scrape(at, 1.0, replace(metrics, requests={"Produce": produce}))


def test_the_newest_window_is_not_averaged_with_earlier_ones() -> None:
    before = timed(10, local=Times(100, 2.0), flushes=10, flush_ms=4.0)
    after = timed(20, local=Times(200, 102.0), flushes=12, flush_ms=15.0)
    newest = recent(before, after, Measurement(wait_ms=3.0, handlers_busy=0.9))
    assert newest == Recent(3.0, 0.9, local_ms=202.0, flush_ms=70.0)


def test_without_a_request_or_a_flush_their_times_are_unknown() -> None:
    before, after = (timed(at, local=Times(100, 2.0), flushes=10, flush_ms=4.0) for at in (10, 20))
    assert recent(before, after, Measurement()) == Recent(0.0, 0.0, None, None)
    before, after = (timed(at, local=Times(at, 2.0)) for at in (10, 20))
    assert recent(before, after, Measurement()).flush_ms is None


def test_a_blocked_acceptor_counts_as_a_busy_listener() -> None:
    before, after = scrape(0), scrape(10)
    before = replace(before, metrics=replace(before.metrics, acceptor_blocked_nanoseconds={"GATEWAY": 0}))
    after = replace(after, metrics=replace(after.metrics, acceptor_blocked_nanoseconds={"GATEWAY": 9e9}))

    window = measure(before, after)

    assert window is not None
    assert window.network_busy == pytest.approx(0.9)


def test_a_restart_yields_no_window_even_if_its_counters_have_caught_up() -> None:
    before, after = scrape(10, requests=5), scrape(20, requests=50)

    assert measure(after, scrape(30, requests=1)) is None  # fewer requests than before
    assert measure(before, replace(after, start_ms=2.0)) is None
    assert measure(before, replace(after, time=10.5)) is None  # too close


@given(SHARE, st.floats(0, 1e3), st.integers(1, 30))
def test_averages_do_not_depend_on_the_distance_of_scrapes(busy: float, wait_ms: float, windows: int) -> None:
    start, now = Measurement(wait_ms=7, handlers_busy=0.3), Measurement(wait_ms=wait_ms, handlers_busy=busy)

    at_once, in_steps = averaged(start, now, 60), start
    for _ in range(windows):
        in_steps = averaged(in_steps, now, 60 / windows)

    assert in_steps.wait_ms == pytest.approx(at_once.wait_ms)
    assert in_steps.handlers_busy == pytest.approx(at_once.handlers_busy)


def test_the_first_window_is_the_first_average() -> None:
    window = Measurement(wait_ms=3, handlers_busy=0.2)

    assert averaged(None, window, 10) == window


@given(SHARE, SHARE, SHARE, SHARE, st.floats(0.05, 0.9), st.floats(0.01, 0.09))
def test_the_blend_is_monotone(
    low: float, high: float, rise: float, lift: float, start: float, width: float
) -> None:
    profile = Profile(blend_from=start, blend_to=start + width)

    before = blended(low, high, profile)
    after = blended(low + (1 - low) * rise, high + (1 - high) * lift, profile)

    assert after >= before - 1e-12
    assert 0 <= before <= 1


@given(SHARE, SHARE)
def test_the_blend_is_continuous(low: float, high: float) -> None:
    step = 1e-6
    slope_max = 1 + 1 / (DEFAULT.blend_to - DEFAULT.blend_from)

    assert abs(blended(min(1, low + step), high) - blended(low, high)) <= slope_max * step * 1.01


def test_utilisation_decides_at_low_load_and_waits_at_high_load() -> None:
    quiet = Measurement(wait_ms=50, handlers_busy=0.4, requests=100)  # waits of a burst
    busy = Measurement(wait_ms=36, handlers_busy=0.85, requests=100)

    assert broker_load(quiet) == 0.4
    assert broker_load(busy) == max(utilisation(busy), kingman(busy))


@given(st.floats(0.01, 0.99), st.floats(0.1, 5), st.floats(0.01, 20))
def test_kingmans_formula_is_inverted(load: float, factor: float, service_ms: float) -> None:
    waited = factor * service_ms * load / (1 - load)
    measured = Measurement(wait_ms=waited, handlers_busy=0.5, requests=500 / service_ms)

    assert kingman(measured, Profile(wait_factor=factor)) == pytest.approx(load)


def test_load_grows_with_the_offered_load_where_waits_explode() -> None:
    """One server with random arrivals and service times (M/M/1): E[W] = τ·ρ/(1 − ρ)."""
    loads, waits = [], []
    for offered in (0.5, 0.95):
        waits.append(4 * offered / (1 - offered))
        loads.append(broker_load(Measurement(waits[-1], offered, 0.1, requests=offered * 250)))

    assert loads == pytest.approx([0.5, 0.95])
    assert waits[1] / waits[0] == pytest.approx(19)


def test_one_slow_handler_is_loaded_though_its_processors_are_not() -> None:
    """180 writes of 4 ms a second keep one handler busy; the processors have nothing to do."""
    assert broker_load(Measurement(wait_ms=4, handlers_busy=0.72, requests=180)) >= 0.7


def test_load_falls_below_a_tenth_within_150_seconds_of_idle() -> None:
    measured = Measurement(wait_ms=500, handlers_busy=1.0, network_busy=1.0, requests=1000)
    for _ in range(15):
        measured = averaged(measured, Measurement(), 10)

    assert broker_load(measured) < 0.1


def test_a_profile_declares_how_busy_threads_are_at_saturation() -> None:
    measured = Measurement(handlers_busy=0.1, network_busy=0.2)

    assert broker_load(measured, Profile(handlers_full=0.2, network_full=0.8)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "values", [{"wait_factor": 0.0}, {"blend_from": 0.8}, {"blend_to": 1.1}, {"handlers_full": math.inf}]
)
def test_an_impossible_profile_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Profile(**values)


def test_the_load_of_a_cluster_is_that_of_its_most_loaded_broker() -> None:
    assert cluster_load({1: 0.2, 2: 0.6, 3: 0.1}) == 0.6
    assert imbalance({1: 0.2, 2: 0.6, 3: 0.1}) == pytest.approx(2.0)
    assert imbalance({1: 0.0, 2: 0.0}) == 1.0


def test_an_unknown_broker_makes_the_cluster_unknown_and_is_named() -> None:
    loads: dict[int, float | Unknown] = {1: 0.2, 2: Unknown(("no response",))}

    assert cluster_load(loads) == imbalance(loads) == Unknown(("broker 2: no response",))
    assert isinstance(cluster_load({}), Unknown)
