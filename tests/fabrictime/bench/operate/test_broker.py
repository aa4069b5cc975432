"""The bench that kills a broker: which records count as lost, and which as stored twice."""

from collections import Counter

from fabrictime.bench import Figure
from fabrictime.bench.operate.broker import PATHS, Stored, figures_of

A, B, C = ("h1", 0), ("h1", 1), ("h2", 0)
KEYS = ("kafka_broker_killed_lost_acknowledged", "duplicates_in_history")


def counts(log, rows, rollup=None):
    samples = {identity: 100 * count for identity, count in rows.items()}
    figures = figures_of({A, B}, Counter(log), Stored(rows, samples, rollup or samples), "text")
    lost_and_twice = [figures[key] for key in KEYS]
    assert all(isinstance(figure, Figure) for figure in lost_and_twice)
    return [figure.value for figure in lost_and_twice]


def test_all_is_well_though_the_log_repeats_a_record_and_stores_one_without_its_acknowledgement():
    complete = dict.fromkeys((A, B, C), PATHS)
    assert counts([A, A, B, C], complete) == [0, 0]


def test_a_record_is_lost_if_any_place_lacks_it():
    both, rollup = dict.fromkeys((A, B), PATHS), {A: 200}
    assert counts([A], both) == [1, 0]
    assert counts([A, B], {A: PATHS}) == [1, 0]
    assert counts([A, B], both, rollup) == [1, 0]
    assert counts([], {A: PATHS}) == [2, 0]


def test_rows_or_samples_above_those_of_the_record_are_duplicates():
    both = dict.fromkeys((A, B), PATHS)
    assert counts([A, B], {**both, A: PATHS + 1}) == [0, 1]
    assert counts([A, B], both, {A: 200, B: 400}) == [0, 1]
