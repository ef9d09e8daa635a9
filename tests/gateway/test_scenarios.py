"""Every scenario of `scenarios/` holds for a connection without I/O."""

from __future__ import annotations

import pytest

from tests.gateway.scenario import Gateway, Player, scenarios

SCENARIOS = list(scenarios())
AT_ONCE = "at once"  # the outcome depends on what is read at once

Lines = list[tuple[int, str]]


def play(file: str, lines: Lines, piece_bytes: int | None = None) -> None:
    player = Player(Gateway(piece_bytes))
    for number, line in lines:
        try:
            player.play(line)
        except AssertionError as failure:
            pytest.fail(f"{file}:{number} {line}\n{failure}")
    assert not player.unexpected(), f"{file}: not expected: {player.unexpected()}"


@pytest.mark.parametrize(
    ("file", "lines"), [pytest.param(file, lines, id=name) for file, name, lines in SCENARIOS]
)
def test_scenario(file: str, lines: Lines) -> None:
    play(file, lines)


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        pytest.param(file, lines, id=name)
        for file, name, lines in SCENARIOS
        if AT_ONCE not in [line for _, line in lines]
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 13])
def test_scenario_in_pieces(file: str, lines: Lines, piece_bytes: int) -> None:
    """However the bytes of either side are cut, the same comes out."""
    play(file, lines, piece_bytes)


def test_scenarios_have_names_of_their_own() -> None:
    names = [name for _, name, _ in SCENARIOS]

    assert len(names) == len(set(names))
