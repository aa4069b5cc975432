"""Path changes: shifted round trips and ended losses mark paths that may have moved."""

from __future__ import annotations

import numpy as np

from native.core.columns import ProbeColumns
from producers.trace.path_changes import (
    AGREEING_WINDOWS,
    FORGET_S,
    LEARNING_WINDOWS,
    LOSS_REST_S,
    SILENT_S,
    PathChangeDetector,
)

KEY = ("h2/eth0", 9320)


def batch(rtt_ns: int | None, lost: int = 0) -> ProbeColumns:
    """Return a batch of one path with one sample, or with losses alone."""
    count = int(rtt_ns is not None)
    return ProbeColumns(
        "h1/eth0",
        peers=[KEY[0]],
        path=np.array([KEY[1]], np.int32),
        lost=np.array([lost], np.int32),
        start=np.array([0, count], np.int64),
        forward=np.full(count, rtt_ns or 0, np.int64),
        reverse=np.zeros(count, np.int64),
    )


def observe(detector: PathChangeDetector, rtts_ns: list[int], start_s: float = 0.0) -> list[int]:
    """Observe one round trip per window; return the positions at which the path was reported."""
    return [
        at
        for at, rtt_ns in enumerate(rtts_ns)
        if detector.observe(batch(rtt_ns), start_s + 1.1 * at) == [KEY]
    ]


def test_a_lasting_shift_is_reported_once_after_some_windows() -> None:
    learned, shifted = [10_000] * (LEARNING_WINDOWS + 1), [15_000] * 10
    assert observe(PathChangeDetector(), learned + shifted) == [len(learned) + AGREEING_WINDOWS - 1]
    assert observe(PathChangeDetector(), [15_000] * 6 + [10_000] * 10) == [6 + AGREEING_WINDOWS - 1]


def test_a_short_or_small_shift_is_not_reported() -> None:
    learned = [10_000] * (LEARNING_WINDOWS + 1)
    assert observe(PathChangeDetector(), [*learned, *[15_000] * (AGREEING_WINDOWS - 1), *learned]) == []
    assert observe(PathChangeDetector(), [*learned, *[10_900] * 10]) == []


def test_usual_noise_rarely_causes_a_report() -> None:
    rng = np.random.default_rng(1)
    assert len(observe(PathChangeDetector(), rng.integers(10_000, 30_000, 400).tolist())) <= 4


def test_a_path_that_died_and_lives_again_is_reported() -> None:
    detector = PathChangeDetector()
    assert detector.observe(batch(10_000), 0.0) == []
    assert detector.observe(batch(None, lost=3), 0.1) == []
    assert detector.observe(batch(10_000), 0.2) == [KEY]
    assert detector.observe(batch(10_000), 0.3) == []


def test_a_path_that_keeps_losing_probes_is_reported_at_intervals() -> None:
    detector = PathChangeDetector()
    reports = [t for t in range(50) if KEY in detector.observe(batch(10_000, lost=1), t + 0.0)]
    assert 50 / LOSS_REST_S - 1 <= len(reports) <= 50 / LOSS_REST_S + 1


def test_an_unseen_path_is_forgotten() -> None:
    detector = PathChangeDetector()
    observe(detector, [10_000] * (LEARNING_WINDOWS + 1))
    empty = ProbeColumns("h1/eth0")
    detector.observe(empty, 100 + FORGET_S)
    assert observe(detector, [50_000] * LEARNING_WINDOWS, 1000 + FORGET_S) == [], "learned from the beginning"


def test_a_peer_is_silent_while_a_path_loses_every_probe() -> None:
    detector = PathChangeDetector()
    detector.observe(batch(10_000), 0.0)
    silent_s = [
        t for t in range(1, 30) if detector.observe(batch(None, lost=5), float(t)) or detector.silent_peers
    ]
    assert silent_s == list(range(1 + int(SILENT_S), 30))
    detector.observe(batch(10_000), 30.0)
    detector.observe(batch(10_000), 32.0)
    assert not detector.silent_peers
    detector.observe(batch(10_000, lost=1), 33.0)
    detector.observe(batch(10_000, lost=1), 50.0)
    assert not detector.silent_peers, "a path that answers some probes is not silent"
