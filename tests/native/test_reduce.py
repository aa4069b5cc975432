"""Path delays: one-way figures with the clocks taken out, held equal to exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import ClockLine, NicWindow, bucket_edges_ns, bucket_of
from tests.examples import examples

T0_NS = 1_763_700_000_000_000_000
DIRECTED = [
    f"{direction}_{figure}_ns" for direction in ("forward", "reverse") for figure in ("min", "p50", "p99")
]


def exact(batch, prober, peer):
    """Forward and reverse delays in exact arithmetic."""

    def fabric(line, at):
        offset_ns = line.offset_ns + Fraction(line.offset_fraction_ns)
        return offset_ns + Fraction(line.drift_ppb) / 10**9 * (at - line.at_ns) + at

    forward, reverse = [], []
    for t1, f, turnaround, r in zip(
        batch.sent.tolist(),
        batch.forward.tolist(),
        batch.turnaround.tolist(),
        batch.reverse.tolist(),
        strict=True,
    ):
        t2, t3, t4 = t1 + f, t1 + f + turnaround, t1 + f + turnaround + r
        forward.append(fabric(peer, t2) - fabric(prober, t1))
        reverse.append(fabric(prober, t4) - fabric(peer, t3))
    return forward, reverse


def nearest_rank(values, percent):
    return float(sorted(values)[math.ceil(percent * len(values) / 100) - 1])


def delays(batches, prober, peers):
    window = NicWindow(batches[0].nic)
    for batch in batches:
        window.add(batch)
    return window.delays(prober, peers)


def buckets(columns, direction, row):
    start = getattr(columns, f"{direction}_bucket_start")
    part = slice(int(start[row]), int(start[row + 1]))
    numbers, counts = (
        getattr(columns, f"{direction}_bucket")[part],
        getattr(columns, f"{direction}_bucket_count")[part],
    )
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize("shift_ns", [0, 3_000_000, -(10**15)])
@pytest.mark.parametrize("samples", [1, 2, 3, 99, 100, 101, 480])
def test_equals_exact_arithmetic(simulated, columns_of, shift_ns, samples):
    batch = simulated(
        np.random.default_rng(1), offset_ns=shift_ns, drift_ppb=12_000, paths=1, samples=2 * samples
    )
    batch = columns_of(
        [
            (
                "b/eth0",
                7,
                0,
                *(c[:samples] for c in (batch.sent, batch.forward, batch.turnaround, batch.reverse)),
            )
        ]
    )
    prober = ClockLine(T0_NS - 10**9, 123, 50.0, 20.0, 0.25)
    peer = ClockLine(T0_NS, -shift_ns - 77, -11_900.0, 35.0, -0.5)
    got = delays([batch], prober, {"b/eth0": peer})
    forward, reverse = exact(batch, prober, peer)
    rtt = (batch.forward + batch.reverse).tolist()
    for direction, values in (("forward", forward), ("reverse", reverse), ("rtt", rtt)):
        for figure, percent in (("min", 0.0001), ("p50", 50), ("p99", 99)):
            value = getattr(got, f"{direction}_{figure}_ns")[0]
            assert value == pytest.approx(nearest_rank(values, percent), abs=1e-3), (direction, figure)
    assert got.bound_ns.tolist() == [55.0]
    for direction, values in (("forward", forward), ("reverse", reverse)):
        found = buckets(got, direction, 0)
        assert sum(found.values()) == samples
        assert list(found) == sorted(found)
        counted = {}
        for value in values:
            counted[bucket_of(float(value))] = counted.get(bucket_of(float(value)), 0) + 1
        assert found == counted


def test_a_known_truth_comes_back(simulated):
    """Clocks 3 ms and 12 ppm apart, 5 us each way: with the true lines, the delays are the simulated ones."""
    batch = simulated(np.random.default_rng(2), offset_ns=3e6, drift_ppb=12_000, noise_ns=100.0)
    prober, peer = ClockLine(T0_NS, 0, 0.0, 1.0), ClockLine(T0_NS, -3_000_000, -12_000.0, 1.0)
    got = delays([batch], prober, {"b/eth0": peer})
    for name in ("forward_min_ns", "reverse_min_ns"):
        assert getattr(got, name) == pytest.approx(np.full(4, 5_000.0), abs=40)
    assert got.forward_p99_ns == pytest.approx(np.full(4, 5_480.0), abs=300)


def test_spacings_and_batches_of_a_path_are_one_row(columns_of):
    groups = [
        [
            ("b", 1, 0, [1], [10], [0], [30]),
            ("b", 1, 50, [2, 3], [20, 21], [0, 0], [30, 31]),
            ("c", 1, 0, [], [], [], []),
        ],
        [("b", 2, 0, [4], [50], [0], [60]), ("b", 1, 0, [5], [12], [0], [36])],
    ]
    batches = [
        columns_of(groups[0], lost=[1, 2, 4], no_t3=[1, 1, 1]),
        columns_of(groups[1], lost=[8, 16], no_t3=[0, 5]),
    ]
    got = delays(batches, None, {})
    assert list(zip(got.peers, got.path.tolist(), strict=True)) == [("b", 1), ("c", 1), ("b", 2)]
    assert got.count.tolist() == [4, 0, 1]
    assert got.lost.tolist() == [19, 4, 8]
    assert got.no_t3.tolist() == [7, 1, 0]
    assert got.rtt_min_ns[0] == 40
    assert got.rtt_p50_ns[0] == 48
    assert got.rtt_p99_ns[0] == 52
    assert np.isnan(got.rtt_min_ns[1])


def test_classes_of_a_path_are_rows_with_their_own_delays_and_marks(columns_of):
    groups = [
        ("b", 1, 0, [1, 2], [10, 12], [0, 0], [30, 30]),
        ("b", 1, 0, [3, 4, 5], [90, 80, 70], [0, 0, 0], [30, 30, 30]),
    ]
    batch = columns_of(groups, lost=[1, 4])
    batch.dscp, batch.ecn = np.array([0, 26], np.int32), np.array([2, 3], np.int32)
    batch.forward_ce, batch.reverse_ce = np.array([2, 4]), np.array([1, 3])
    plain = columns_of(groups[:1])  # of an agent that knows no classes
    got = delays([batch, plain, batch], None, {})
    assert (got.path.tolist(), got.dscp.tolist()) == ([1, 1], [0, 26])
    assert (got.count.tolist(), got.lost.tolist(), got.ecn.tolist()) == ([6, 6], [2, 8], [4, 6])
    assert (got.forward_ce.tolist(), got.reverse_ce.tolist()) == ([0, 4], [2, 2])
    assert got.rtt_min_ns.tolist() == [40, 100]


@pytest.mark.parametrize(
    ("prober", "peers"),
    [
        (None, {"b/eth0": ClockLine(0, 0, 0.0, 1.0)}),
        (ClockLine(0, 0, 0.0, 1.0), {}),
        (ClockLine(0, 0, math.nan, 1.0), {"b/eth0": ClockLine(0, 0, 0.0, 1.0)}),
        (ClockLine(0, 0, math.inf, 1.0), {"b/eth0": ClockLine(0, 0, 0.0, 1.0)}),
    ],
)
def test_without_both_clocks_only_round_trips(simulated, prober, peers):
    got = delays([simulated(np.random.default_rng(2))], prober, peers)
    for name in (*DIRECTED, "bound_ns"):
        assert np.isnan(getattr(got, name)).all(), name
    assert np.isfinite(got.rtt_p99_ns).all()
    assert got.forward_bucket.size == got.reverse_bucket.size == 0
    assert got.forward_bucket_start.tolist() == [0] * 5
    assert got.count.tolist() == [120] * 4


def test_round_trips_are_never_negative(columns_of):
    got = delays([columns_of([("b", 1, 0, [1, 2], [-50, 10], [0, 0], [20, 20])])], None, {})
    assert got.rtt_min_ns.tolist() == [0]
    assert got.rtt_p99_ns.tolist() == [30]


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), min_size=1, max_size=40))
@settings(max_examples=examples(100))
def test_absurd_stamps_give_finite_ordered_figures(columns_of, rows):
    line = ClockLine(T0_NS, 10**18, 5e4, 1.0)
    got = delays([columns_of([("b", 1, 0, *zip(*rows, strict=True))])], line, {"b": line})
    for direction in ("forward", "reverse", "rtt"):
        lowest, middle, high = (
            getattr(got, f"{direction}_{figure}_ns")[0] for figure in ("min", "p50", "p99")
        )
        assert np.isfinite([lowest, middle, high]).all()
        assert lowest <= middle <= high
    assert sum(buckets(got, "forward", 0).values()) == len(rows)


def test_many_rows_and_paths(columns_of):
    groups = [
        (f"p{p}", path, 0, [1], [10**k], [0], [2**k])
        for p in range(40)
        for path in range(30)
        for k in range(9)
    ]
    line = ClockLine(0, 0, 0.0, 1.0)
    got = delays([columns_of(groups)], line, {f"p{p}": line for p in range(40)})
    assert len(got.peers) == 1_200
    assert got.count.tolist() == [9] * 1_200
    assert buckets(got, "forward", 1_199) == {bucket_of(10**k): 1 for k in range(9)}


def test_buckets_are_four_an_octave():
    assert [bucket_of(ns) for ns in (-5, 0, 0.99, 1, 1.24, 1.25, 1.5, 1.75, 2, 4, 5_000)] == [
        0,
        0,
        0,
        0,
        0,
        1,
        2,
        3,
        4,
        8,
        48,
    ]
    assert bucket_of(math.inf) == bucket_of(1e300) == 255
    assert bucket_of(math.nan) == 0
    assert bucket_edges_ns(0)[0] == 0
    for bucket in range(1, 255):
        low, high = bucket_edges_ns(bucket)
        assert bucket_of(low) == bucket
        assert bucket_of(math.nextafter(high, 0)) == bucket
        assert bucket_edges_ns(bucket + 1)[0] == high
    for wrong in (-1, 256):
        with pytest.raises(ValueError, match="expected 0 to 255"):
            bucket_edges_ns(wrong)
