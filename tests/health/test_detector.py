"""States of brokers, from scenarios of evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.health.detector import BrokerHealth, HealthState, Verdict, judge
from penstock.health.evidence import Evidence, Sample, evidence_of, hurt_share, reliable, with_context
from penstock.model.events import BrokerLoad, HealthProbe, Probe, ProbeRole
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone

ZONES = {broker: "abc"[broker % 3] for broker in range(1, 7)}
GOOD = Sample(4, 4, 5_000.0)
BAD = Sample(4, 0)
WELL = Evidence(GOOD, GOOD, GOOD, GOOD, GOOD, GOOD, fenced=False)
CUT = Evidence(BAD, BAD, BAD, GOOD, BAD, GOOD, fenced=False)
STUCK = Evidence(BAD, BAD, BAD, BAD, GOOD, GOOD, fenced=False)
SLOW = replace(WELL, alone=Sample(4, 4, 400_000.0))
LAGGING = replace(WELL, followed=Sample(4, 4, 400_000.0))
FROZEN = Evidence(BAD, BAD, BAD, BAD, BAD, BAD, fenced=True)
FENCED = replace(FROZEN, inner=GOOD)


def run(*ticks: Evidence, before: Verdict | None = None, broker: int = 2, **options: Any) -> Verdict:
    verdict = before or Verdict()
    start = 5.0 * len(verdict.brokers.get(broker, BrokerHealth()).symptoms)
    for number, tick in enumerate(ticks):
        evidence = dict.fromkeys(ZONES, WELL) | {broker: tick}
        verdict = judge(verdict.brokers, evidence, start + 5.0 * number, zones=ZONES, **options)
    return verdict


@pytest.mark.parametrize(
    ("tick", "state"),
    [
        (CUT, HealthState.CUT_OFF),
        (STUCK, HealthState.STORAGE_STUCK),
        (FROZEN, HealthState.DOWN),
        (FENCED, HealthState.FENCED),
    ],
)
def test_a_broker_that_does_not_work_at_all_is_sick_after_ten_seconds(
    tick: Evidence, state: HealthState
) -> None:
    assert run(WELL, tick).brokers[2].state is HealthState.SUSPECT
    verdict = run(WELL, tick, tick)
    assert verdict.brokers[2].state is state
    (finding,) = verdict.findings
    assert (finding.broker, finding.state) == (2, state)
    assert finding.evidence
    assert verdict.cluster == ""


@pytest.mark.parametrize(("tick", "state"), [(SLOW, HealthState.SLOW), (LAGGING, HealthState.SLOW_FOLLOWER)])
def test_a_broker_is_slow_after_six_of_twelve_ticks(tick: Evidence, state: HealthState) -> None:
    assert run(*[tick] * 5).brokers[2].state is HealthState.SUSPECT
    assert run(*[tick] * 6).brokers[2].state is state
    assert run(*[tick, WELL] * 6).brokers[2].state is state
    assert run(*[tick, WELL, WELL] * 4).brokers[2].state is HealthState.HEALTHY


def test_a_broker_is_not_slow_below_the_floor_or_where_all_are_slow() -> None:
    assert run(*[replace(WELL, alone=Sample(4, 4, 40_000.0))] * 12).brokers[2].state is HealthState.HEALTHY
    verdict = Verdict()
    for number in range(12):
        verdict = judge(verdict.brokers, dict.fromkeys(ZONES, SLOW), 5.0 * number, zones=ZONES)
    assert {each.state for each in verdict.brokers.values()} == {HealthState.HEALTHY}


def test_the_follower_of_a_slow_leader_is_not_a_slow_one() -> None:
    """Otherwise every slow broker would make two: a fault of the cluster, and nothing would be done."""
    slow = Sample(4, 4, 400_000.0)
    verdict = Verdict()
    for number in range(12):
        evidence = dict.fromkeys(ZONES, WELL) | {
            2: replace(SLOW, followed=slow, leaders=frozenset({1})),
            3: replace(WELL, followed=slow, leaders=frozenset({2})),
        }
        verdict = judge(verdict.brokers, evidence, 5.0 * number, zones=ZONES)
    assert [(each.broker, each.state) for each in verdict.findings] == [(2, HealthState.SLOW)]
    assert verdict.cluster == ""


def test_recovery_takes_a_minute() -> None:
    sick = run(WELL, CUT, CUT)
    recovering = run(*[WELL] * 11, before=sick)
    assert recovering.brokers[2].state is HealthState.RECOVERING
    assert run(WELL, before=recovering).brokers[2].state is HealthState.HEALTHY


@pytest.mark.parametrize("gone", [FROZEN, FENCED])
def test_a_broker_that_comes_back_is_not_stuck_before_ten_seconds(gone: Evidence) -> None:
    """It responds before its partitions have leaders: a restart would only make it begin again."""
    sick = run(WELL, gone, gone)
    (state,) = {run(gone, before=sick).brokers[2].state}

    assert run(STUCK, before=sick).brokers[2].state is state
    assert run(STUCK, WELL, before=sick).brokers[2].state is HealthState.RECOVERING
    assert run(STUCK, STUCK, before=sick).brokers[2].state is HealthState.STORAGE_STUCK


def test_missing_evidence_is_unknown_and_heals_nothing() -> None:
    assert run(*[Evidence()] * 3).brokers[2].state is HealthState.UNKNOWN
    sick = run(WELL, CUT, CUT)
    assert run(*[Evidence()] * 20, before=sick).brokers[2].state is HealthState.CUT_OFF


def test_a_checker_that_dies_during_recovery_does_not_make_a_broker_healthy() -> None:
    recovering = run(WELL, CUT, CUT, *[WELL] * 3)
    silent = run(Evidence(), before=recovering)
    assert silent.brokers[2].state is HealthState.RECOVERING
    assert run(WELL, before=silent).brokers[2].state is HealthState.RECOVERING
    assert run(*[WELL] * 12, before=silent).brokers[2].state is HealthState.HEALTHY


def test_while_every_checker_stalls_a_broker_is_unknown_or_as_sick_as_before() -> None:
    well = run(FROZEN, FROZEN, FROZEN, before=run(WELL), stalled=True)
    assert {each.state for each in well.brokers.values()} == {HealthState.UNKNOWN}
    assert (well.findings, run(WELL, before=well).brokers[2].state) == ((), HealthState.HEALTHY)
    sick = run(WELL, WELL, before=run(WELL, CUT, CUT), stalled=True)
    assert (sick.brokers[2].state, sick.brokers[2].judged) == (HealthState.CUT_OFF, False)


def test_a_stall_does_not_delay_a_finding() -> None:
    stalled = run(WELL, before=run(WELL, CUT), stalled=True)
    assert run(CUT, before=stalled).brokers[2].state is HealthState.CUT_OFF


def test_a_restart_on_purpose_is_no_symptom() -> None:
    assert run(WELL, FROZEN, FROZEN, FROZEN, restarted={2}).findings == ()


def test_a_broker_that_is_filled_may_be_slow_and_not_silent() -> None:
    assert run(*[SLOW] * 12, moved={2}).findings == ()
    assert run(WELL, CUT, CUT, moved={2}).brokers[2].state is HealthState.CUT_OFF


def test_a_clock_that_is_set_back_forgets_no_spell_of_the_last_hour() -> None:
    sick = run(WELL, CUT, CUT)
    earlier = judge(sick.brokers, dict.fromkeys(ZONES, WELL), -600.0, zones=ZONES)
    assert len(earlier.brokers[2].spells) == 1
    much_earlier = judge(sick.brokers, dict.fromkeys(ZONES, WELL), -86_400.0, zones=ZONES)
    assert much_earlier.brokers[2].spells == ()


def test_several_sick_brokers_are_a_fault_of_the_cluster() -> None:
    verdict = Verdict()
    for number in range(3):
        evidence = dict.fromkeys(ZONES, WELL) | {2: CUT, 5: CUT}
        verdict = judge(verdict.brokers, evidence, 5.0 * number, zones=ZONES)
    assert verdict.cluster == "2 of 6 brokers are sick"


def test_three_spells_in_an_hour_are_flapping() -> None:
    verdict = Verdict()
    for _ in range(3):
        verdict = run(*[WELL] * 12, CUT, CUT, before=verdict)
    assert verdict.brokers[2].flapping


def probe(broker: int, **values: Any) -> HealthProbe:
    fields: dict[str, Any] = {
        "partition": 0, "probe": Probe.PRODUCE, "checker": "one", "sequence": 1, "time_ms": 1,
        "latency_us": 10, "role": ProbeRole.ALONE, "leader": broker,
    }  # fmt: skip
    fields |= values
    return HealthProbe(PhysicalClusterId("pkc-7hq2mz"), BrokerId(broker), Zone("a"), **fields)


def test_evidence_counts_what_each_broker_led_and_followed() -> None:
    failed = {"latency_us": None, "error": "TIMED_OUT"}
    evidence = evidence_of(
        [
            probe(1),
            probe(1, role=ProbeRole.PATH, leader=2),  # moved: it shows nothing about broker 1
            probe(1, role=ProbeRole.PAIR, leader=1, follower=2, **failed),
            probe(1, role=ProbeRole.SESSION, probe=Probe.CALL, latency_us=None, error="FENCED"),
        ],
        [1, 2, 3],
    )
    assert evidence[1].alone == Sample(1, 1, 10)
    assert evidence[1].path == Sample()
    assert evidence[1].pair == evidence[2].followed == Sample(1, 0)
    assert evidence[2].leaders == {1}
    assert (evidence[1].fenced, evidence[2].fenced) == (True, None)
    assert not evidence[3].known


def test_of_two_reports_on_a_session_the_newer_counts_whichever_is_read_first() -> None:
    session = {"role": ProbeRole.SESSION, "probe": Probe.CALL}
    alive = probe(1, **session, time_ms=2, sequence=2)
    fenced = probe(1, **session, time_ms=1, sequence=1, latency_us=None, error="FENCED")
    for reports in ([alive, fenced], [fenced, alive]):
        assert evidence_of(reports, [1])[1].fenced is False


def test_what_only_one_of_two_checkers_sees_counts_against_that_checker() -> None:
    failing = [probe(1, checker="two", sequence=n, latency_us=None, error="TIMED_OUT") for n in range(4)]
    assert evidence_of([probe(1), *failing], [1])[1].alone == Sample(1, 1, 10)
    assert evidence_of(failing, [1])[1].alone == Sample(4, 0)


def test_a_probe_that_waits_counts_as_failed_and_once() -> None:
    waiting = probe(1, role=ProbeRole.WAITING, latency_us=None, error="alone")
    assert evidence_of([waiting], [1])[1].alone == Sample(1, 0)
    assert evidence_of([waiting, probe(1, latency_us=5_000_000)], [1])[1].alone == Sample(1, 0, 5_000_000)


def test_a_partition_without_a_leader_shows_nothing_about_writes() -> None:
    offline = [
        probe(1, leader=None, latency_us=None, error="LEADER_NOT_AVAILABLE", sequence=n) for n in (1, 2)
    ]
    evidence = evidence_of(offline, [1])[1]
    assert (evidence.alone, evidence.leaderless) == (Sample(), True)
    alive = replace(WELL, alone=Sample(), leaderless=True)
    assert run(WELL, alive, alive).brokers[2].state is HealthState.STORAGE_STUCK


def itself(at_ms: int, late_ms: int = 0, **values: Any) -> HealthProbe:
    fields: dict[str, Any] = {"role": ProbeRole.SELF, "time_ms": at_ms, "latency_us": late_ms * 1000}
    return probe(-1, **(fields | values))


def test_a_checker_that_stalls_is_refused_or_silent_judges_nothing() -> None:
    assert reliable([itself(1_000), itself(2_000)], 0, 5_000) == {"one"}
    assert reliable([itself(1_000), itself(7_000, late_ms=4_000)], 0, 5_000) == frozenset()
    assert reliable([itself(1_000, latency_us=None, error="CHECKER_REFUSED")], 0, 5_000) == frozenset()
    assert reliable([itself(6_000)], 0, 5_000) == frozenset()


def test_a_log_directory_that_cannot_be_written_is_stuck_storage() -> None:
    hung = replace(WELL, alone=BAD, directory=BAD)
    assert run(WELL, hung, hung).brokers[2].state is HealthState.STORAGE_STUCK
    assert run(WELL, *[replace(WELL, directory=BAD)] * 3).brokers[2].state is HealthState.HEALTHY


def test_writes_that_fail_where_nothing_gets_through_show_nothing_about_storage() -> None:
    """A broker whose link is cut now and then must not be stopped for it."""
    halfway = replace(CUT, path=Sample(4, 1, 5_000.0))
    assert run(WELL, halfway, halfway).brokers[2].state is HealthState.SUSPECT


def test_a_loaded_broker_is_the_balancers_problem() -> None:
    loaded = replace(SLOW, load=0.9)
    idle = {broker: replace(WELL, load=0.2) for broker in ZONES}
    verdict = Verdict()
    for number in range(12):
        verdict = judge(verdict.brokers, idle | {2: loaded}, 5.0 * number, zones=ZONES)
    assert verdict.brokers[2].state is HealthState.SUSPECT
    assert "balancer" in verdict.brokers[2].reason


def test_clients_are_hurt_by_failures_and_by_long_waits() -> None:
    path = {"role": ProbeRole.PATH}
    probes = [
        probe(1, **path, sequence=1),
        probe(1, **path, sequence=2, latency_us=300_000),
        probe(1, **path, sequence=3, latency_us=None, error="TIMED_OUT"),
        probe(1, role=ProbeRole.WAITING, sequence=4, latency_us=None, error="path", leader=2),
        probe(1, sequence=5, latency_us=None, error="TIMED_OUT"),
    ]
    assert hurt_share(probes) == 0.75
    assert hurt_share(probes[4:]) is None


def test_telemetry_is_evidence_and_missing_telemetry_is_unknown() -> None:
    cluster = PhysicalClusterId("pkc-7hq2mz")
    measured = BrokerLoad(
        cluster, BrokerId(1), 1, 40, 0.5,
        recent_wait_ms=3.0, recent_handlers_busy=0.7, recent_local_ms=0.25, recent_flush_ms=8.0,
    )  # fmt: skip
    unknown = BrokerLoad(cluster, BrokerId(2), 1, None, None, missing=("no metrics agent is known",))
    context = with_context({1: WELL, 2: WELL, 3: WELL}, [measured, unknown], {1})
    assert (context[1].load, context[1].busy, context[1].pressed) == (0.5, 0.7, True)
    assert (context[1].wait_us, context[1].local_us, context[1].flush_us) == (3_000, 250, 8_000)
    assert context[2] == context[3] == replace(WELL, pressed=False)


def with_telemetry(broker: int, **values: Any) -> dict[int, Evidence]:
    """Its writes are slow; everyone's telemetry is known."""
    idle = {each: replace(WELL, load=0.3, busy=0.2, local_us=2_000.0) for each in ZONES}
    return idle | {broker: replace(idle[broker], alone=SLOW.alone, **values)}


def minute(evidence: dict[int, Evidence]) -> Verdict:
    verdict = Verdict()
    for number in range(12):
        verdict = judge(verdict.brokers, evidence, 5.0 * number, zones=ZONES)
    return verdict


def test_a_broker_that_is_busy_now_is_overloaded_though_its_average_load_is_not_high_yet() -> None:
    verdict = minute(with_telemetry(2, load=0.6, busy=0.97))
    assert verdict.brokers[2].state is HealthState.SUSPECT
    assert "97%" in verdict.brokers[2].reason


@pytest.mark.parametrize("inside", ["local_us", "flush_us"])
def test_handlers_that_a_slow_disk_keeps_busy_are_no_overload(inside: str) -> None:
    evidence = {b: replace(e, flush_us=9_000.0) for b, e in with_telemetry(2, load=0.9, busy=0.97).items()}
    slow: dict[str, Any] = {inside: 400_000.0}
    evidence[2] = replace(evidence[2], **slow)
    verdict = minute(evidence)
    assert verdict.brokers[2].state is HealthState.SLOW


def test_a_broker_without_probes_is_slow_by_its_own_times() -> None:
    evidence = with_telemetry(2, local_us=400_000.0)
    verdict = minute(evidence | {2: replace(evidence[2], alone=Sample())})
    assert verdict.brokers[2].state is HealthState.SLOW
    assert "200 times" in verdict.brokers[2].reason


def test_slow_requests_of_tenants_alone_make_no_broker_slow() -> None:
    evidence = with_telemetry(2, local_us=400_000.0)
    assert minute(evidence | {2: replace(evidence[2], alone=GOOD)}).findings == ()


def test_a_link_that_heals_within_a_tick_is_no_stuck_storage() -> None:
    """The last writes fail, and so do most requests without data. Otherwise the broker would be stopped."""
    healing = replace(CUT, reach=Sample(5, 1, 2_000.0))
    verdict = run(WELL, CUT, CUT, healing)
    assert verdict.brokers[2].state is HealthState.CUT_OFF


def test_brokers_of_one_fault_that_recover_one_after_the_other_are_a_fault_of_the_cluster() -> None:
    """Otherwise the last one would be acted on, when it is about to be back."""
    verdict = Verdict()
    suspect = replace(WELL, path=Sample(4, 3, 5_000.0))
    for number, (one, other) in enumerate([(CUT, CUT)] * 3 + [(WELL, suspect)]):
        evidence = dict.fromkeys(ZONES, WELL) | {2: one, 5: other}
        verdict = judge(verdict.brokers, evidence, 5.0 * number, zones=ZONES)
    assert verdict.brokers[5].state is HealthState.CUT_OFF
    assert verdict.cluster
