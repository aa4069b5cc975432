"""The plugin's part of the workload bench."""

from __future__ import annotations

from fabrictime.bench import parts_of, workload


def test_each_part_owes_figures_with_targets():
    assert "plugin" in parts_of("workload")
    assert {key for keys in workload.PARTS.values() for key in keys} == set(workload.TARGETS)
