"""A plan as a durable document: which partitions move where, why, and how far the plan is.

A plan is stored in `_penstock.plans` as one header and as many chunks of moves as it needs. Chunks never
change and are written first; a header whose chunks are incomplete is no plan. Only the header is written
again when the plan starts, reports progress, or ends. Which moves are done is not stored: it is read from
the cluster, so that any control plane resumes a plan from the document alone. Stored are the moves that were
dropped, with the reason, because the cluster does not show those.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the schema reads it
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Self

from penstock.model.errors.balance import (
    PlanAlreadyRun,
    PlanNotRunning,
    PlanOfAnotherCluster,
    PlanStale,
    RateTooLow,
)
from penstock.model.ids import ID_ALPHABET, ID_LENGTH
from penstock.model.key_names import PLANS_TOPIC
from penstock.model.schema import EVENT_BYTES_MAX, Event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.balance.executing import Observation
    from penstock.balance.planner import Action, Plan
    from penstock.model.ids import Choice

CHUNK_BYTES_MAX: Final = EVENT_BYTES_MAX // 2  # of one record; estimated, so half of the limit
MOVES_MAX: Final = 100_000  # of one plan: those after them are left to the next plan
RATE_DEFAULT: Final = 50e6  # bytes a second that one broker sends or receives for moves
RATE_MIN: Final = 1_000_000  # below that, single fetches hardly get through
CHANGES_SHOWN_MAX: Final = 3
UNMET_MAX: Final = 1_000  # that a header lists


class PlanState(StrEnum):
    PROPOSED = "proposed"
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (PlanState.DONE, PlanState.CANCELLED, PlanState.FAILED)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One partition's new replicas, preferred leader first."""

    topic: str
    topic_id: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    goal: str = ""
    reason: str = ""
    bytes: int = 0  # that each added replica copies
    carried_before: float = 0.0  # by the source, of the goal's resource
    carried_after: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def reversed(self) -> PlannedMove:
        """The move that undoes this one."""
        return replace(self, before=self.after, after=self.before, reason=f"undo: {self.reason}")


@dataclass(frozen=True, slots=True)
class Dropped:
    """Moves that will not be made, by their numbers in the plan."""

    reason: str
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """As last reported by the control plane that runs the plan."""

    done: int = 0
    copying: int = 0
    bytes_done: int = 0
    rate: float = 0.0  # bytes a second, after slowing down
    waiting: str = ""  # why nothing starts now


@dataclass(frozen=True, slots=True)
class UnmetGoal:
    """A broker that stays above a goal's target, and how many replicas each reason kept there."""

    broker: int
    goal: str
    carried: float
    target: float
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MissingCapacity:
    """What a cell lacks for the plan, and how many brokers would cover it."""

    cell: str  # empty: brokers that are in no cell
    what: str
    missing: float
    brokers: int


@dataclass(frozen=True, slots=True)
class PlanHeader(Event):
    """All of a plan but its moves."""

    kind: ClassVar[str] = "plan"
    topic: ClassVar[str] = PLANS_TOPIC

    id: str
    cluster: str  # physical cluster
    created_ms: int
    actor: str
    purpose: str
    state: PlanState = PlanState.PROPOSED
    rate: float = RATE_DEFAULT
    roll_back: bool = False  # while cancelling: moves that were made are undone
    take_over: bool = False  # reassignments of other clients are replaced instead of awaited
    moves: int = 0
    chunks: int = 0
    size_bytes: int = 0  # that all moves copy together
    changed_ms: int = 0
    goals_run: tuple[str, ...] = ()
    goals_skipped: tuple[str, ...] = ()
    partial: bool = False
    unmet: tuple[UnmetGoal, ...] = ()
    missing: tuple[MissingCapacity, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    progress: PlanProgress = field(default_factory=PlanProgress)
    error: str = ""

    @property
    def key(self) -> bytes:
        return f"plan/{self.id}".encode()

    @property
    def dropped_moves(self) -> dict[int, str]:
        """The reason by number of the move."""
        return {number: group.reason for group in self.dropped for number in group.moves}

    # Changes of state; each raises if the plan is not in the right one.

    def started(self, now_ms: int, *, cluster: str | None = None, take_over: bool = False) -> Self:
        if cluster is not None and cluster != self.cluster:
            raise PlanOfAnotherCluster(plan=self.id, cluster=self.cluster, requested=cluster)
        if self.state is not PlanState.PROPOSED:
            raise PlanAlreadyRun(plan=self.id, state=self.state)
        return replace(self, state=PlanState.RUNNING, changed_ms=now_ms, take_over=take_over)

    def cancelled(self, now_ms: int, *, roll_back: bool) -> Self:
        """Not begun: it ends at once. Running: its reassignments are cancelled first."""
        if self.state is PlanState.PROPOSED:
            return replace(self, state=PlanState.CANCELLED, changed_ms=now_ms)
        if self.state not in (PlanState.RUNNING, PlanState.CANCELLING):
            raise PlanNotRunning(plan=self.id, state=self.state)
        roll_back = roll_back or self.roll_back
        return replace(self, state=PlanState.CANCELLING, roll_back=roll_back, changed_ms=now_ms)

    def paced(self, now_ms: int, rate: float) -> Self:
        if rate < RATE_MIN:
            raise RateTooLow(rate=rate, rate_min=RATE_MIN)
        if self.state.ended:
            raise PlanNotRunning(plan=self.id, state=self.state)
        return replace(self, rate=rate, changed_ms=now_ms)

    def with_dropped(self, reasons: Mapping[int, str]) -> Self:
        """With these moves, by number, dropped, too."""
        groups: dict[str, list[int]] = {}
        for number, reason in sorted({**reasons, **self.dropped_moves}.items()):
            groups.setdefault(reason, []).append(number)
        return replace(self, dropped=tuple(Dropped(r, tuple(m)) for r, m in sorted(groups.items())))


@dataclass(frozen=True, slots=True)
class PlanChunk(Event):
    """A part of a plan's moves."""

    kind: ClassVar[str] = "plan-moves"
    topic: ClassVar[str] = PLANS_TOPIC

    plan: str
    number: int
    moves: tuple[PlannedMove, ...]

    @property
    def key(self) -> bytes:
        return chunk_key(self.plan, self.number)


def chunk_key(plan: str, number: int) -> bytes:
    return f"plan-moves/{plan}/{number:04}".encode()


@dataclass(frozen=True, slots=True)
class PlanDocument:
    header: PlanHeader
    moves: tuple[PlannedMove, ...]

    @property
    def id(self) -> str:
        return self.header.id

    def records(self) -> list[tuple[bytes, bytes]]:
        """Key and value of each record; the header is the last."""
        chunks = list(_chunked(self.id, self.moves))
        header = replace(self.header, chunks=len(chunks), moves=len(self.moves))
        return [(one.key, one.to_bytes()) for one in (*chunks, header)]


@dataclass(frozen=True, slots=True)
class Names:
    """What a model's numbers stand for."""

    partitions: Sequence[tuple[str, str, int]]  # topic, topic id, number in the topic
    brokers: Sequence[int]  # ids
    cells: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Who made a plan, when and for what."""

    id: str
    cluster: str
    created_ms: int
    actor: str
    purpose: str


def new_plan_id(choice: Choice) -> str:
    return "plan-" + "".join(choice(ID_ALPHABET) for _ in range(ID_LENGTH))


def document_of(plan: Plan, names: Names, origin: Origin, *, rate: float = RATE_DEFAULT) -> PlanDocument:
    """The document of what the planner returned."""
    made = new_document(
        [_move(action, names) for action in plan.actions[:MOVES_MAX]],
        origin,
        rate=rate,
        goals=(plan.goals_run, plan.goals_skipped),
        partial=plan.partial or len(plan.actions) > MOVES_MAX,
    )
    unmet = tuple(
        UnmetGoal(int(names.brokers[each.broker]), each.goal, each.carried, each.target, dict(each.refused))
        for each in plan.remainders[:UNMET_MAX]
    )
    missing = tuple(
        MissingCapacity(_cell(names, each.cell), each.what, each.missing, each.brokers)
        for each in plan.shortfalls[:UNMET_MAX]
    )
    return replace(made, header=replace(made.header, unmet=unmet, missing=missing))


def new_document(
    moves: Sequence[PlannedMove],
    origin: Origin,
    *,
    rate: float = RATE_DEFAULT,
    goals: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    partial: bool = False,
) -> PlanDocument:
    if rate < RATE_MIN:
        raise RateTooLow(rate=rate, rate_min=RATE_MIN)
    header = PlanHeader(
        id=origin.id,
        cluster=origin.cluster,
        created_ms=origin.created_ms,
        changed_ms=origin.created_ms,
        actor=origin.actor,
        purpose=origin.purpose,
        rate=rate,
        moves=len(moves),
        size_bytes=sum(move.bytes * len(move.adding) for move in moves),
        goals_run=goals[0],
        goals_skipped=goals[1],
        partial=partial,
    )
    return PlanDocument(header, tuple(moves))


def changes_since(moves: Iterable[PlannedMove], seen: Observation, brokers: Collection[int]) -> list[str]:
    """What changed on the cluster since the plan was made, in words; one entry per partition or broker."""
    changes: list[str] = []
    missing: set[int] = set()
    for move in moves:
        now = seen.partitions.get((move.topic, move.partition))
        missing |= {broker for broker in move.adding if broker not in brokers}
        if now is None:
            changes.append(f"{move.name} does not exist")
        elif now.topic_id != move.topic_id:
            changes.append(f"topic {move.topic} was created again")
        elif now.target not in (move.before, move.after):
            changes.append(f"{move.name} has replicas {list(now.target)}, not {list(move.before)}")
    return [f"broker {broker} is down" for broker in sorted(missing)] + list(dict.fromkeys(changes))


def require_current(document: PlanDocument, seen: Observation, brokers: Collection[int]) -> None:
    """Raises if the cluster is not the one that the plan was made for."""
    if changes := changes_since(document.moves, seen, brokers):
        shown = "; ".join(changes[:CHANGES_SHOWN_MAX])
        more = len(changes) - CHANGES_SHOWN_MAX
        raise PlanStale(plan=document.id, changes=shown + (f"; and {more} more" if more > 0 else ""))


class PlanDocuments:
    """The plans of the topic, folded from its records in order."""

    def __init__(self) -> None:
        self.headers: dict[str, PlanHeader] = {}
        self._chunks: dict[str, dict[int, tuple[PlannedMove, ...]]] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        kind, _, rest = key.decode().partition("/")
        plan, _, number = rest.partition("/")
        if kind == PlanHeader.kind:
            if value is None:
                self.headers.pop(plan, None)
            else:
                self.headers[plan] = PlanHeader.from_bytes(value)
        elif kind == PlanChunk.kind:
            chunks = self._chunks.setdefault(plan, {})
            if value is None:
                chunks.pop(int(number), None)
            else:
                chunks[int(number)] = PlanChunk.from_bytes(value).moves
            if not chunks:
                del self._chunks[plan]

    def document(self, plan: str) -> PlanDocument | None:
        """The plan, if it is complete."""
        header, chunks = self.headers.get(plan), self._chunks.get(plan, {})
        if header is None or any(number not in chunks for number in range(header.chunks)):
            return None
        return PlanDocument(header, tuple(m for number in range(header.chunks) for m in chunks[number]))

    def tombstones(self, plan: str) -> list[bytes]:
        """The keys to delete a plan by, the header first."""
        header = [f"plan/{plan}".encode()] if plan in self.headers else []
        return header + [chunk_key(plan, number) for number in sorted(self._chunks.get(plan, ()))]


def _cell(names: Names, number: int) -> str:
    return names.cells[number] if 0 <= number < len(names.cells) else ""


def _move(action: Action, names: Names) -> PlannedMove:
    topic, topic_id, partition = names.partitions[action.partition]
    source, destination = names.brokers[action.source], names.brokers[action.destination]
    return PlannedMove(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        before=tuple(int(names.brokers[broker]) for broker in action.before),
        after=tuple(int(names.brokers[broker]) for broker in action.after),
        goal=action.goal,
        reason=f"{action.kind} from broker {source} to broker {destination} for {action.goal}",
        bytes=int(action.bytes),
        carried_before=float(action.carried_before),
        carried_after=float(action.carried_after),
    )


def _chunked(plan: str, moves: Sequence[PlannedMove]) -> Iterable[PlanChunk]:
    chunk: list[PlannedMove] = []
    size = number = 0
    for move in moves:
        cost = 300 + len(move.topic) + len(move.reason) + 8 * (len(move.before) + len(move.after))
        if chunk and size + cost > CHUNK_BYTES_MAX:
            yield PlanChunk(plan, number, tuple(chunk))
            chunk, size, number = [], 0, number + 1
        chunk.append(move)
        size += cost
    if chunk:
        yield PlanChunk(plan, number, tuple(chunk))
