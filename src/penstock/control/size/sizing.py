"""Advice on the size of physical clusters, their cost, and automatic sizing within bounds.

Hardware profiles and prices are files on the control plane's host: `sizing/profiles/*.yaml` and
`sizing/prices.yaml` below its home. They are read again for each request, so an edit counts at once. A
physical cluster names its profile; without one, advice knows neither cost nor other hardware.

In each round the active control plane notes its advice as the condition `size-advised`, with the command to
run. In a cluster whose mode is `auto` it asks for that growth or shrinking itself; the condition then shows
what it waits for.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance.advice import (
    DAY_HOURS,
    HISTORY_HOURS_MIN,
    WEEK_HOURS,
    Advice,
    Alternative,
    Situation,
    Verdict,
    advise,
    affordable,
)
from penstock.balance.cost import MonthlyCost, Traffic, machine_month, monthly_cost, read_prices
from penstock.balance.load_hours import changed_hours, observed_hours, recent, work_row
from penstock.balance.profiles import read_profile
from penstock.balance.sizing import Demand, packed, sized
from penstock.control.decisions import Decision, new_operation
from penstock.control.load.load_hours import hour_now
from penstock.control.registry import Put
from penstock.control.size.automatic import ACTOR, Shrinking, Waiting, automatic_change, history_of
from penstock.model.entities import Condition, ConditionKind, LogicalCluster, PhysicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import (
    BudgetTooSmall,
    HardwareUnknown,
    HistoryTooShort,
    PricesMissing,
    ProfileUnknown,
    SizeBoundsInvalid,
    SizeMaxTooSmall,
)
from penstock.model.events import Dimension
from penstock.model.zone_traffic import INGRESS, ZoneDimension, zone_dimension

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import date
    from pathlib import Path

    from penstock.balance.cost import Prices
    from penstock.balance.profiles import HardwareProfile
    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry
    from penstock.control.size.resizer import Resizer
    from penstock.model.entities import Entity
    from penstock.model.events import LoadHour, QuotaShares
    from penstock.model.ids import LogicalClusterId

ROUND_SECONDS: Final = 600.0
FACTOR: Final = 3  # replication factor
PROFILES_MAX: Final = 1_000  # files
BOUND_KEYS: Final = ("brokers_min", "brokers_max", "budget_month")
BROKERS_MAX: Final = 1_000

log = structlog.get_logger("penstock.control")


@dataclass(frozen=True, slots=True)
class SizingFiles:
    """Where profiles and prices are."""

    directory: Path | None = None  # None: there are none

    def profiles(self) -> dict[str, HardwareProfile]:
        if self.directory is None:
            return {}
        paths = sorted((self.directory / "profiles").glob("*.yaml"))[:PROFILES_MAX]
        return {each.name: each for each in (read_profile(path, today()) for path in paths)}

    def profile(self, name: str) -> HardwareProfile:
        known = self.profiles()
        if name not in known:
            raise ProfileUnknown(profile=name, known=", ".join(known) or "none")
        return known[name]

    def prices(self) -> Prices:
        path = None if self.directory is None else self.directory / "prices.yaml"
        if path is None or not path.is_file():
            raise PricesMissing(path=path or "the control plane's home")
        return read_prices(path, today())

    def prices_if_any(self) -> Prices | None:
        try:
            return self.prices()
        except PricesMissing:
            return None


def today() -> date:
    return datetime.now(UTC).date()


class Plane(Protocol):
    """What sizing needs of a control plane."""

    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def shares(self) -> Mapping[LogicalClusterId, QuotaShares]: ...
    @property
    def resizer(self) -> Resizer: ...


class History(Protocol):
    """Hours of load by physical cluster."""

    async def hours(self, cluster: str) -> Mapping[int, LoadHour]: ...


class Sizing:
    """Advice and cost of the physical clusters of one control plane."""

    def __init__(
        self, plane: Plane, history: History, is_active: Callable[[], bool], files: SizingFiles
    ) -> None:
        self._plane, self.history, self._is_active, self.files = plane, history, is_active, files
        self.targets: dict[str, int] = {}  # brokers that the last advice gave, by physical cluster
        self.months: dict[str, MonthlyCost] = {}

    async def advice(self, cluster: str) -> Advice:
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        return advice_on(physical, await self.history.hours(physical.id), hour_now(), self.files)

    async def cost(self, cluster: str) -> tuple[MonthlyCost, Traffic, Prices]:
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        prices = self.files.prices()
        traffic = traffic_of(recent(await self.history.hours(physical.id), hour_now(), WEEK_HOURS))
        crossing = self.zones(cluster, members_of(self._plane.registry, cluster)).values()
        traffic = replace(
            traffic,
            cross_zone_ingress=sum(each.cross_zone_ingress for each in crossing),
            cross_zone_egress=sum(each.cross_zone_egress for each in crossing),
        )
        return cost_of(physical, traffic, prices, self.files), traffic, prices

    def tenants(self, cluster: str, members: set[str]) -> dict[str, Traffic]:
        """What each tenant of a physical cluster moves now, from its usage reports."""
        return {
            tenant: traffic_used(shares)
            for tenant, shares in sorted(self._plane.shares.items())
            if tenant in members
        }

    def zones(self, cluster: str, members: set[str]) -> dict[tuple[str, str], Traffic]:
        """What crosses zones now, by the zones of brokers and clients."""
        crossing: dict[tuple[str, str], Traffic] = {}
        for tenant, shares in self._plane.shares.items():
            for used in shares.used.values() if tenant in members else ():
                for name, rate in used.items():
                    if (one := zone_dimension(name)) is not None:
                        pair = one.broker_zone, one.client_zone
                        crossing[pair] = crossing.get(pair, Traffic()) + crossing_of(one, rate)
        return dict(sorted(crossing.items()))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if not self._is_active():
                continue
            try:
                clusters = [physical.id for physical in self._plane.registry.all(PhysicalCluster)]
            except PenstockError:  # the registry is being read again
                continue
            for cluster in clusters:
                try:
                    await self.run_round(cluster)
                except PenstockError as failure:
                    log.info("cluster not sized", cluster=cluster, error=str(failure))
                except Exception:  # it belongs to this cluster, not to the control plane
                    log.exception("round raised", cluster=cluster)

    async def run_round(self, cluster: str) -> None:
        """One cluster: its advice as a condition, and its cost as a metric."""
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        advice = await self.advice(cluster)
        self.targets[cluster] = advice.target
        if physical.hardware and self.files.prices_if_any() is not None:
            self.months[cluster] = (await self.cost(cluster))[0]
        detail, remedy = condition_of(physical, advice)
        if obstacle := await self._change(physical, advice):
            detail = f"{detail}; not done by itself: {obstacle}"
        known = physical.condition(ConditionKind.SIZE_ADVISED)
        if (known.detail if known is not None else "") != detail:
            noted = partial(note_size, physical_id=physical.id, detail=detail, remedy=remedy)
            await self._plane.decide(noted, PhysicalCluster, actor=ACTOR)

    async def _change(self, physical: PhysicalCluster, advice: Advice) -> str:
        """Carries out advice where that is allowed. Why it does not; empty if there is nothing to do."""
        hours = await self.history.hours(physical.id)
        change = automatic_change(
            self._plane.registry,
            physical,
            advice,
            history=history_of(hours, hour_now()),
            brokers_max=affordable(situation_of(physical, hours, hour_now(), self.files)),
            now_ms=int(time.time() * 1000),
        )
        try:
            match change:
                case None:
                    return ""
                case Waiting(reason):
                    return reason
                case Shrinking(brokers):
                    await self._plane.resizer.shrink(physical.id, brokers, actor=ACTOR)
                case _:
                    await self._plane.resizer.grow(physical.id, change, actor=ACTOR)
        except PenstockError as refusal:
            return str(refusal)
        log.info("size changes by itself", cluster=physical.id, brokers=advice.brokers, target=advice.target)
        return ""


def bounds_of(physical: PhysicalCluster) -> tuple[int, int, float | None]:
    """Fewest and most brokers, and the monthly budget."""
    bounds = physical.size_bounds
    return (
        int(bounds.get("brokers_min", min(FACTOR, len(physical.brokers) or FACTOR))),
        int(bounds.get("brokers_max", BROKERS_MAX)),
        bounds.get("budget_month"),
    )


def advice_on(
    physical: PhysicalCluster, hours: Mapping[int, LoadHour], now_hour: int, files: SizingFiles
) -> Advice:
    observed = observed_hours(hours, now_hour)
    if observed < HISTORY_HOURS_MIN:
        raise HistoryTooShort(cluster=physical.id, hours=observed, hours_min=HISTORY_HOURS_MIN)
    return advise(work_row(hours, now_hour), situation_of(physical, hours, now_hour, files))


def situation_of(
    physical: PhysicalCluster, hours: Mapping[int, LoadHour], now_hour: int, files: SizingFiles
) -> Situation:
    fewest, most, budget = bounds_of(physical)
    changed = changed_hours(hours, now_hour)
    lately = recent(hours, now_hour, DAY_HOURS)
    busiest = max(lately, key=lambda each: each.work, default=None)
    situation = Situation(
        len(physical.brokers),
        max(len(physical.zones), 1),
        math.inf if changed is None else changed / DAY_HOURS,
        fewest,
        most,
        1.0 if busiest is None else busiest.imbalance,
    )
    prices = files.prices_if_any()
    if prices is not None and physical.hardware:
        profile = files.profile(physical.hardware)
        situation = replace(situation, machine_month=machine_month(profile, prices), budget_month=budget)
        demand = demand_of(recent(hours, now_hour, 4 * WEEK_HOURS), situation.zones)
        others = {name: each for name, each in files.profiles().items() if name != profile.name}
        situation = replace(situation, alternative=cheapest(demand, others, prices))
    return situation


def demand_of(hours: list[LoadHour], zones: int) -> Demand:
    """The highest of each measurement in these hours."""
    return Demand(
        ingress=max((each.bytes_in for each in hours), default=0.0),
        egress=max((each.bytes_out for each in hours), default=0.0),
        requests=max((each.requests for each in hours), default=0.0),
        replicas=max((each.replicas for each in hours), default=0),
        stored_bytes=max((each.disk_used_bytes for each in hours), default=0),
        factor=FACTOR,
        zones=zones,
    )


def cheapest(demand: Demand, profiles: Mapping[str, HardwareProfile], prices: Prices) -> Alternative | None:
    """The cheapest fleet among profiles with a price; an unmeasured one only if none was measured."""
    priced = [each for each in profiles.values() if each.name in prices.compute_hour]
    priced = [each for each in priced if each.measured is not None] or priced
    if not priced:
        return None
    sizes = sized([demand], priced)
    options = [
        Alternative(
            each.name, int(count), float(machine_month(each, prices) * count), each.measured is not None
        )
        for each, count, fits in zip(priced, sizes.brokers[:, 0], sizes.fits[:, 0], strict=True)
        if fits
    ]
    return min(options, key=lambda each: each.month, default=None)


def traffic_of(hours: list[LoadHour]) -> Traffic:
    """The average of these hours."""
    count = max(len(hours), 1)
    return Traffic(
        sum(each.bytes_in for each in hours) / count, sum(each.bytes_out for each in hours) / count
    )


def traffic_used(shares: QuotaShares) -> Traffic:
    total = Traffic()
    for used in shares.used.values():
        total += Traffic(
            float(used.get(Dimension.INGRESS_BYTES, 0.0)), float(used.get(Dimension.EGRESS_BYTES, 0.0))
        )
        for name, rate in used.items():
            if (one := zone_dimension(name)) is not None:
                total += crossing_of(one, rate)
    return total


def crossing_of(dimension: ZoneDimension, rate: float) -> Traffic:
    if dimension.direction == INGRESS:
        return Traffic(cross_zone_ingress=rate)
    return Traffic(cross_zone_egress=rate)


def members_of(registry: Registry, cluster: str) -> set[str]:
    """The logical clusters on a physical one."""
    return {str(each.id) for each in registry.all(LogicalCluster) if each.cluster == cluster}


def cost_of(physical: PhysicalCluster, traffic: Traffic, prices: Prices, files: SizingFiles) -> MonthlyCost:
    if not physical.hardware:
        raise HardwareUnknown(cluster=physical.id)
    profile = files.profile(physical.hardware)
    brokers, zones = len(physical.brokers), max(len(physical.zones), 1)
    demand = Demand(traffic.ingress, traffic.egress, factor=FACTOR, zones=zones)
    extra = packed(demand, profile, brokers).additional
    return monthly_cost(
        profile, brokers, traffic, prices, factor=FACTOR, zones=zones, additional_machines=extra
    )


def condition_of(physical: PhysicalCluster, advice: Advice) -> tuple[str, str]:
    """Detail and remedy; empty for a cluster that is right-sized."""
    name = physical.name
    if advice.verdict is Verdict.RIGHT_SIZED:
        return "", ""
    if advice.verdict is Verdict.REBALANCE:
        return "rebalance first", f"penstock balance plan {name}"
    if advice.verdict is Verdict.OTHER_PROFILE:
        return f"another profile: {advice.target} × {advice.profile}", "penstock fleet advise --explain"
    count = abs(advice.target - advice.brokers)
    if not count:
        return f"expand, but {advice.bounded}", f"penstock fleet set {name} --brokers-max N"
    command = f"penstock fleet grow --physical-cluster {physical.id} --brokers {count}"
    if advice.target < advice.brokers:
        command = f"penstock fleet shrink with {count} broker ids, the same number in every zone"
    return f"{advice.verdict} by {count} brokers", command


def set_sizing(
    registry: Registry,
    context: DecisionContext,
    physical_id: str,
    changes: Mapping[str, str | float | None],
    files: SizingFiles,
) -> Decision:
    """Sets `mode`, `hardware` and the bounds; None removes a bound, what is absent stays."""
    before = registry.need(PhysicalCluster, physical_id)
    bounds = dict(before.size_bounds)
    for key in BOUND_KEYS:
        if key in changes:
            value = changes[key]
            bounds.pop(key, None)
            if value is not None:
                bounds[key] = float(value)
    after = before.changed(
        context.now_ms,
        size_mode=str(changes.get("mode") or before.size_mode),
        hardware=str(changes.get("hardware") or before.hardware),
        size_bounds=bounds,
    )
    if after.hardware:
        files.profile(after.hardware)
    check_bounds(after, files)
    operation = new_operation(registry, context, "physical.sizing", before.id, None)
    text = ", ".join(f"{key} {value:g}" for key, value in bounds.items()) or "no bounds"
    operation = replace(operation, detail=f"sizes: {after.size_mode}, {text}")
    return Decision(operation, (Put(after), Put(operation)), after, before)


def check_bounds(physical: PhysicalCluster, files: SizingFiles) -> None:
    fewest, most, budget = bounds_of(physical)
    brokers, zones = len(physical.brokers), max(len(physical.zones), 1)

    def invalid(reason: str) -> SizeBoundsInvalid:
        return SizeBoundsInvalid(brokers_min=fewest, brokers_max=most, cluster=physical.id, reason=reason)

    if fewest > most:
        raise invalid("the minimum is above the maximum")
    for count in (fewest, most):
        if count % zones and count != BROKERS_MAX:
            raise invalid(f"{count} is not a multiple of {zones} zones")
    if most < brokers:
        raise SizeMaxTooSmall(cluster=physical.id, brokers=brokers, brokers_max=most)
    if budget is None:
        return
    if not physical.hardware:
        raise HardwareUnknown(cluster=physical.id)
    prices = files.prices()
    least = machine_month(files.profile(physical.hardware), prices) * fewest
    if budget < least:
        raise BudgetTooSmall(cluster=physical.id, budget=budget, currency=prices.currency, least=least)


def note_size(
    registry: Registry, context: DecisionContext, physical_id: str, detail: str, remedy: str
) -> Decision:
    """Sets, changes or removes the condition; its start time stays."""
    before = registry.need(PhysicalCluster, physical_id)
    known = before.condition(ConditionKind.SIZE_ADVISED)
    conditions = tuple(each for each in before.conditions if each is not known)
    if detail:
        since = context.now_ms if known is None else known.since_ms
        conditions += (Condition(str(ConditionKind.SIZE_ADVISED), since, detail, remedy),)
    after = before.changed(context.now_ms, conditions=conditions)
    operation = new_operation(registry, context, "physical.condition", physical_id, None)
    operation = replace(operation, detail=detail or "right-sized")
    return Decision(operation, (Put(after), Put(operation)), after, before)
