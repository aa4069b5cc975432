"""Latencies from planted faults: percentiles of the effects, and the share without one."""

from __future__ import annotations

from fabrictime.bench import Figure, Missing
from fabrictime.bench.pipeline._events import latency_figures
from fabrictime.bench.pipeline.faults import Trial, _firsts_ms


def test_the_first_effect_after_a_fault_counts_for_each_subject() -> None:
    trials = [Trial(10.0, "c", frozenset({"f", "g"})), Trial(20.0, "c", frozenset({"g"}))]
    effects = [(9.0, "f"), (10.05, "f"), (10.2, "f"), (20.1, "g"), (29.0, "h")]
    assert [round(ms) for ms in _firsts_ms(trials, effects, lambda trial: sorted(trial.flow_ids))] == [
        50,
        100,
    ]


def test_trials_without_an_effect_are_a_figure() -> None:
    figures = latency_figures("dead_link", [40.0, 60.0], 4)
    assert figures["dead_link_ms_p50"] == Figure(50.0, "ms", "2 of 4, 40 to 60 ms")
    assert figures["dead_link_missed"] == Figure(0.5, "1", "of 4")
    assert isinstance(latency_figures("dead_link", [], 4)["dead_link_ms_p99"], Missing)
