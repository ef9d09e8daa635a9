"""What to do about a leader whose log has lost its beginning, while others still have it. Pure.

A replica that leads drags its followers: they raise their log starts to its own, and delete the records. So a
broker whose replica lost them must not lead. It is demoted, which moves leadership without copying anything.

Healing may make things worse. So it acts only if everything holds:

1. The finding is open, and the log of the broker still lacks the offsets.
2. A majority contradicts one replica: every other in-sync replica has the offsets, at least two of them, and
   no fewer than the topic's minimum of in-sync replicas.
3. Nothing else intervenes: no roll, and no move, restore or link on that partition.
4. One broker of a cluster at a time, and at most ten times an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.audit.rules.log_start import UNEXPLAINED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.model.durability import FindingRecord

ACTIONS_MAX: Final = 10  # within an hour
HOUR_MS: Final = 3600 * 1000
KEEPERS_MIN: Final = 2


class HealingMode(StrEnum):
    OFF = "off"
    ASK = "ask"  # the commands are shown, and an operator runs them
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A replica that a finding accuses, and its partition as it is now."""

    finding: FindingRecord
    broker: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int
    starts: Mapping[int, int]  # of logs, by broker; those that respond
    busy: str = ""  # who else works on the partition; empty: nothing does

    @property
    def first(self) -> int:
        return self.finding.first

    @property
    def keepers(self) -> list[int]:
        """In-sync replicas that have the offsets."""
        return [each for each in self.isr if self.starts.get(each, self.first + 1) <= self.first]


@dataclass(frozen=True, slots=True)
class Demotion:
    """Take leadership from this broker."""

    broker: int
    findings: tuple[FindingRecord, ...]

    @property
    def reason(self) -> str:
        return f"audit: {', '.join(each.id for each in self.findings)}"

    @property
    def commands(self) -> tuple[str, ...]:
        """What an operator runs instead."""
        shown = ", ".join(each.id[:8] for each in self.findings)
        return (f'penstock broker demote {self.broker} --reason "audit finding {shown}"',)


@dataclass(frozen=True, slots=True)
class Verdict:
    demotion: Demotion | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)  # by finding: why nothing is done about it


def accused(finding: FindingRecord) -> int | None:
    """The broker whose replica lost the beginning of its log; None for any other finding."""
    return accused_once(finding) if finding.is_open else None


def accused_once(finding: FindingRecord) -> int | None:
    """Also by a finding that operators have acknowledged or resolved."""
    broker = finding.evidence.get("broker")
    return broker if finding.rule == UNEXPLAINED and isinstance(broker, int) else None


def decide(
    suspects: Iterable[Suspect], demoted: Collection[int], acted_ms: Sequence[int], now_ms: int
) -> Verdict:
    """`demoted`: brokers that healing has demoted and not restored; `acted_ms`: the times of its actions."""
    guilty: dict[int, list[FindingRecord]] = {}
    withheld: dict[str, str] = {}
    for suspect in suspects:
        if suspect.broker in demoted or not _is_dangerous(suspect):
            continue
        if reason := _obstacle(suspect):
            withheld[suspect.finding.id] = reason
        else:
            guilty.setdefault(suspect.broker, []).append(suspect.finding)
    if not guilty:
        return Verdict(None, withheld)
    chosen = min(guilty)
    obstacle = _rate_obstacle(acted_ms, now_ms) or _broker_obstacle(guilty, demoted)
    if obstacle:
        withheld |= {each.id: obstacle for findings in guilty.values() for each in findings}
        return Verdict(None, withheld)
    findings = sorted(guilty[chosen], key=lambda each: each.id)
    return Verdict(Demotion(chosen, tuple(findings)), withheld)


def to_restore(
    findings: Iterable[FindingRecord], demoted: Collection[int], *, off: bool = False
) -> list[int]:
    """Demoted brokers whose findings an operator has resolved or acknowledged, all of them.

    One that no finding accuses stays demoted: findings that cannot be seen show nothing, and a corrupt
    replica that leads again makes the others delete their records. An operator who turns healing off, and
    whose findings are gone, gets it back."""
    every = list(findings)
    still, handled = {accused(each) for each in every}, {accused_once(each) for each in every}
    return sorted(broker for broker in demoted if broker not in still and (off or broker in handled))


def _is_dangerous(suspect: Suspect) -> bool:
    """Whether the replica leads, or will lead next, and still lacks the offsets."""
    leads = suspect.broker == suspect.leader or suspect.broker == suspect.replicas[0]
    start = suspect.starts.get(suspect.broker)
    return leads and suspect.broker in suspect.isr and (start is None or start > suspect.first)


def _obstacle(suspect: Suspect) -> str:
    silent = [each for each in suspect.isr if each not in suspect.starts]
    if silent:
        return f"broker {silent[0]} does not report where its log starts"
    lacking = [each for each in suspect.isr if each not in suspect.keepers]
    if lacking != [suspect.broker]:
        return f"brokers {', '.join(map(str, sorted(lacking)))} all lack offset {suspect.first}"
    keepers = len(suspect.keepers)
    if keepers < max(KEEPERS_MIN, suspect.min_isr):
        return (
            f"{keepers} in-sync replicas have offset {suspect.first}, "
            f"{max(KEEPERS_MIN, suspect.min_isr)} are needed"
        )
    return suspect.busy


def _rate_obstacle(acted_ms: Sequence[int], now_ms: int) -> str:
    recent = sum(1 for each in acted_ms if now_ms - each < HOUR_MS)
    return f"healing has acted {recent} times within an hour" if recent >= ACTIONS_MAX else ""


def _broker_obstacle(guilty: Mapping[int, object], demoted: Collection[int]) -> str:
    """Evidence against several brokers at once is rather evidence against itself."""
    if len(guilty) > 1:
        return f"brokers {', '.join(map(str, sorted(guilty)))} are accused at once"
    return f"broker {min(demoted)} is demoted already" if demoted else ""
