"""Clocks from power-on against clocks near Unix time: the same fleet, the same errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.clock.scenarios import SCENARIOS
from fabrictime.bench.robust.clocks import POWER_ON, UNIX, _score, compared


def test_both_scenarios_differ_by_their_epoch_alone() -> None:
    unix, free = SCENARIOS[UNIX], SCENARIOS[POWER_ON]
    same = replace(free, number=unix.number, name=unix.name, story=unix.story, power_on=False)
    assert same == unix


def test_a_small_fleet_from_power_on_has_the_errors_of_one_near_unix_time() -> None:
    scores = {name: _score(SCENARIOS[name].smaller(8, 4, 6)) for name in (UNIX, POWER_ON)}
    figure = compared(scores)["free_running_p99_over_unix_p99"]
    assert isinstance(figure, Figure)
    assert figure.value == pytest.approx(1, abs=0.3)
    assert "near Unix time" in (figure.note or "")
