"""The bench of the whole pipeline in one process: its shares add up."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure, evaluate, load
from fabrictime.bench._sim_pipeline import all_stages
from fabrictime.bench.sim import measured
from producers.sim.settings import SimSettings


def test_shares_add_up():
    values = measured("sim_speed_64", SimSettings(nics=8), 1)
    figures = evaluate(load("sim").TARGETS, values)
    assert figures["sim_speed_64"]["value"] > 0
    shares = [
        value.value for key, value in values.items() if key != "sim_speed_64" and isinstance(value, Figure)
    ]
    assert sum(shares) == pytest.approx(1)
    assert {f"sim_speed_64_{stage.name}" for stage in all_stages()} - figures.keys() <= {
        "sim_speed_64_diagnosis"
    }
