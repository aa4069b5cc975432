"""The plugin's part of the workload bench."""

from __future__ import annotations

from fabrictime.bench import Figure, Missing, parts_of, workload
from fabrictime.bench.workload import plugin


def test_each_part_owes_figures_with_targets():
    assert "plugin" in parts_of("workload")
    assert {key for keys in workload.PARTS.values() for key in keys} == set(workload.TARGETS)


def test_a_short_run_measures_every_figure():
    lines: list[str] = []
    figures = plugin.measure(lines.append, quick=True)
    assert set(figures) == set(workload.PARTS["plugin"])
    assert len(lines) == 4
    lost = figures.pop("plugin_events_lost")
    assert isinstance(lost, Figure | Missing), "a busy machine does not reach the rate"
    values = {key: value.value for key, value in figures.items() if isinstance(value, Figure)}
    assert values.keys() == figures.keys()
    assert values["loss_counted_exactly"] == 1.0
    assert 0 < values["sampled_split_error"] < 6
    assert 0.5 < values["plugin_ns_per_event_p50"] < 20
