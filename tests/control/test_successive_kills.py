"""The order in which control planes die, with simulated ones of which the newest always gets leadership."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.control.successive_kills import die_in_turn

SESSION = 5  # polls between a death and the next leader


@dataclass
class Group:
    """Works through the points of one operation: a plane dies at its own, and its successor repeats that."""

    points: tuple[str, ...]
    members: list[SimulatedPlane] = field(default_factory=list)
    owner: SimulatedPlane | None = None
    session_left: int = 0
    requested: bool = False
    passed: int = 0
    deaths: list[str] = field(default_factory=list)

    def start(self, fault: str) -> SimulatedPlane:
        self.members.append(SimulatedPlane(self, fault))
        return self.members[-1]

    def request(self, plane: SimulatedPlane) -> None:
        assert plane is self.owner
        self.requested = True

    def advance(self) -> None:
        if self.session_left:
            self.session_left -= 1
        elif self.owner is None:
            self.owner = next((plane for plane in reversed(self.members) if not plane.ended), None)
        elif self.requested and self.passed < len(self.points):
            point = self.points[self.passed]
            if self.owner.fault == point:
                self.deaths.append(point)
                self.owner.ended, self.owner, self.session_left = True, None, SESSION
            else:
                self.passed += 1


@dataclass(eq=False)
class SimulatedPlane:
    group: Group
    fault: str
    ended: bool = False

    @property
    def dead(self) -> bool:
        self.group.advance()
        return self.ended

    def role(self) -> str:
        return "active" if self.group.owner is self else "standby"


def test_every_control_plane_dies_at_its_point_although_the_newest_one_always_takes_over() -> None:
    points = ("state", "cordon", "plan", "empty")
    group = Group(points)

    last = die_in_turn(group.start, points, group.request)

    assert tuple(group.deaths) == points
    assert not last.dead
    while group.passed < len(points):
        group.advance()
    assert group.owner is last
