"""A claim of a paper: its text and section, what implements it here, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement that is either shown as a whole or open as a whole; a partly shown one is two claims."""

    section: str  # as the paper names it: "§5.2.1", "Table 1", "Committing offsets"
    text: str
    packages: tuple[str, ...] = ()  # dotted names of the modules that implement it
    evidence: tuple[str, ...] = ()  # `tests/area/test_module.py::test_name` or `bench.area::result-name`
    rows: tuple[str, ...] = ()  # requirements it belongs to: K1–K21, S1–S5, O1–O6, C1–C6, P1–P2

    @property
    def is_open(self) -> bool:
        return not self.evidence


@dataclass(frozen=True, slots=True)
class Paper:
    title: str
    claims: tuple[Claim, ...]
