"""The pair fit against a simulated truth: accurate where it claims to be, honest where it cannot be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import NicWindow, ProbeColumns

T0_NS = 1_763_700_000_000_000_000


def fit(*batches: ProbeColumns):
    window = NicWindow(batches[0].nic)
    for batch in batches:
        window.add(batch)
    return window.fit()


def one(fits):
    """The single row as a dict of plain figures."""
    assert len(fits.peers) == 1
    return {
        name: getattr(fits, name)[0].item()
        for name in ("at_ns", "offset_ns", "drift_ppb", "sigma_ns", "drift_sigma_ppb", "rtt_min_ns",
                     "samples", "accepted")
    }  # fmt: skip


def check_sane(fits):
    """What the schema asks of every row, whatever went in."""
    for name in ("offset_ns", "drift_ppb", "sigma_ns", "drift_sigma_ppb", "rtt_min_ns"):
        assert np.isfinite(getattr(fits, name)).all(), name
    assert (fits.sigma_ns > 0).all()
    assert (fits.drift_sigma_ppb > 0).all()
    assert (fits.drift_sigma_ppb <= 1e6).all()
    assert (fits.rtt_min_ns >= 0).all()
    assert (fits.accepted > 0).all()
    assert (fits.accepted <= fits.samples).all()


def test_an_agent_clock_3_ms_and_12_ppm_off(simulated):
    row = one(fit(simulated(np.random.default_rng(1), offset_ns=3e6, drift_ppb=12_000)))
    truth = 3e6 + 12_000e-9 * (row["at_ns"] - T0_NS)
    assert abs(row["offset_ns"] - truth) < 5 * row["sigma_ns"] < 500
    assert abs(row["drift_ppb"] - 12_000) < 5 * row["drift_sigma_ppb"] < 500
    assert 10_000 < row["rtt_min_ns"] < 10_200
    assert row["samples"] == 480
    assert abs(row["at_ns"] - T0_NS - 500_000_000) < 200_000_000


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("idle kernel stamps", {}),
        ("a third queued", {"queued": 0.3}),
        ("most queued", {"queued": 0.8}),
        ("hardware stamps", {"noise_ns": 15.0, "queued": 0.1}),
        ("few samples", {"samples": 64}),
        ("single probes", {"spacing_ns": 0, "queued": 0.3}),
        ("long delays", {"noise_ns": 5_000.0, "queued": 0.3, "queue_ns": 5e6}),
    ],
)
def test_errors_are_what_sigma_says(simulated, label, options):
    rng = np.random.default_rng(7)
    off, drift_off = [], []
    for _ in range(150):
        offset_ns, drift_ppb = rng.normal(0, 3e6), rng.normal(0, 20_000)
        row = one(fit(simulated(rng, offset_ns=offset_ns, drift_ppb=drift_ppb, **options)))
        truth = offset_ns + drift_ppb * 1e-9 * (row["at_ns"] - T0_NS)
        off.append((row["offset_ns"] - truth) / row["sigma_ns"])
        drift_off.append((row["drift_ppb"] - drift_ppb) / row["drift_sigma_ppb"])
    for scaled in (np.abs(off), np.abs(drift_off)):
        assert (scaled < 1).mean() > 0.6, label  # 0.68 for a normal error
        assert (scaled < 3).mean() > 0.97, label
        assert scaled.max() < 6, label
    assert np.median(np.abs(off)) > 0.02, "sigma says nothing where it is far too large"


def test_queues_in_one_direction_do_not_pull(simulated):
    """Every tenth forward probe finds no queue; half a round trip would be 25 us wrong."""
    rng = np.random.default_rng(4)
    batch = simulated(rng, offset_ns=1e6, noise_ns=50.0)
    pairs = len(batch.sent) // 2
    queued = np.repeat(rng.random(pairs) < 0.9, 2)
    late = queued * (50_000 + rng.integers(0, 20_000, 2 * pairs))
    batch.forward = batch.forward + late.astype(np.int64)
    row = one(fit(batch))
    assert abs(row["offset_ns"] - 1e6) < 1_000
    assert abs(row["offset_ns"] - 1e6) < 5 * row["sigma_ns"]


def test_coded_pairs_that_saw_a_queue_are_left_out(simulated):
    rng = np.random.default_rng(4)
    clean = one(fit(simulated(rng, noise_ns=50.0)))
    queued = one(fit(simulated(rng, noise_ns=50.0, queued=0.5)))
    assert clean["accepted"] > 0.7 * clean["samples"]
    assert queued["accepted"] < 0.75 * queued["samples"]


def test_unequal_paths_are_within_half_a_round_trip(simulated):
    """What no sample can show: the error of unequal delays, bounded by rtt_min_ns as the schema says."""
    row = one(fit(simulated(np.random.default_rng(2), forward_ns=9_000, reverse_ns=3_000)))
    assert abs(row["offset_ns"] - 3_000) < 100
    assert abs(row["offset_ns"]) <= row["rtt_min_ns"] / 2


@pytest.mark.parametrize("epoch_ns", [0, -(2**61), 2**61])
def test_far_epochs_keep_their_nanoseconds(simulated, epoch_ns):
    """The peer counts from another epoch: whole nanoseconds of 2**61 are kept as far as a double can say."""
    batch = simulated(np.random.default_rng(2), drift_ppb=5_000)
    shift = epoch_ns - T0_NS if epoch_ns else 0
    batch.forward = batch.forward + shift
    batch.reverse = batch.reverse - shift
    row = one(fit(batch))
    truth = shift + 5e-6 * (row["at_ns"] - T0_NS)
    assert abs(row["offset_ns"] - truth) <= 100 + abs(np.spacing(float(shift)))


def test_one_sample_gives_half_its_round_trip(columns_of):
    row = one(fit(columns_of([("b", 1, 0, [T0_NS], [7_000], [9_000], [3_000])])))
    assert row["offset_ns"] == 2_000
    assert row["sigma_ns"] == 5_000
    assert row["drift_sigma_ppb"] == 1e6
    assert row["drift_ppb"] == 0
    assert (row["samples"], row["accepted"]) == (1, 1)


def test_few_samples_follow_the_fastest(columns_of):
    batch = columns_of(
        [
            (
                "b",
                1,
                0,
                [T0_NS, T0_NS + 10**6, T0_NS + 2 * 10**6],
                [90_000, 6_000, 50_000],
                [0] * 3,
                [5_000, 4_000, 9_000],
            )
        ]
    )
    row = one(fit(batch))
    assert row["offset_ns"] == 1_000
    assert row["sigma_ns"] == 5_000
    assert abs(row["at_ns"] - (T0_NS + 10**6)) < 10_000


def test_no_samples_no_rows(columns_of):
    assert fit(columns_of([])).peers == []
    assert fit(columns_of([("b", 1, 0, [], [], [], [])])).peers == []


def test_order_duplicates_and_batches_do_not_matter(simulated, columns_of):
    batch = simulated(np.random.default_rng(5), offset_ns=1e6, drift_ppb=3_000, spacing_ns=0, paths=1)
    columns = (batch.sent, batch.forward, batch.turnaround, batch.reverse)
    first = one(fit(batch))
    order = np.random.default_rng(6).permutation(len(batch.sent))
    assert one(fit(columns_of([("b/eth0", 1, 0, *(column[order] for column in columns))]))) == pytest.approx(
        first
    )
    halves = [columns_of([("b/eth0", 1, 0, *(column[i::2] for column in columns))]) for i in (0, 1)]
    assert one(fit(*halves)) == pytest.approx(first)
    twice = one(fit(batch, batch))
    assert twice["offset_ns"] == pytest.approx(first["offset_ns"], abs=first["sigma_ns"])
    assert twice["samples"] == 2 * first["samples"]


@pytest.mark.parametrize("step_ns", [3_000_000, 50_000, -50_000_000])
@pytest.mark.parametrize("at_s", [0.1, 0.5, 0.8])
def test_a_step_within_the_window_is_no_confident_answer(simulated, step_ns, at_s):
    batch = simulated(np.random.default_rng(8), offset_ns=1e6, step_ns=step_ns, step_at_ns=at_s * 1e9)
    row = one(fit(batch))
    truth = 1e6 + step_ns * (row["at_ns"] - T0_NS >= at_s * 1e9)
    assert abs(row["offset_ns"] - truth) < 4 * row["sigma_ns"]
    assert row["sigma_ns"] > abs(step_ns) / 10
    assert row["drift_sigma_ppb"] == 1e6


def test_a_prober_clock_that_jumps_seconds(simulated):
    """Half of the window on each side of a 100 s jump: no answer that claims to be good."""
    batch = simulated(np.random.default_rng(8), samples=400)
    later = np.arange(400) % 100 >= 50
    jump = 100 * 10**9
    batch.sent = batch.sent + jump * later
    batch.forward = batch.forward - jump * later
    batch.reverse = batch.reverse + jump * later
    row = one(fit(batch))
    assert row["sigma_ns"] >= 1e9


def test_a_few_absurd_stamps_among_good_ones(simulated):
    batch = simulated(np.random.default_rng(9), offset_ns=1e6)
    batch.sent = batch.sent.copy()
    batch.sent[10] = 0
    batch.forward[20] = -T0_NS
    batch.reverse[30] = 2**62
    batch.forward[40], batch.reverse[40] = -(2**62), -(2**62)
    row = one(fit(batch))
    assert abs(row["offset_ns"] - 1e6) < 5 * row["sigma_ns"] < 500


def test_only_impossible_round_trips_give_no_row(columns_of):
    """t4 - t1 below t3 - t2 cannot be: nothing to fit."""
    assert fit(columns_of([("b", 1, 0, [T0_NS] * 3, [-5_000] * 3, [0] * 3, [1_000] * 3)])).peers == []


def test_peers_have_rows_of_their_own(simulated, columns_of):
    rng = np.random.default_rng(3)
    batches = [simulated(rng, offset_ns=1e6 * k, peer=f"{k}/eth0", noise_ns=50.0) for k in range(5)]
    fits = fit(*batches)
    assert fits.peers == [f"{k}/eth0" for k in range(5)]
    assert fits.offset_ns == pytest.approx(1e6 * np.arange(5), abs=100)


wild = st.one_of(
    st.integers(-100_000, 100_000), st.integers(-(2**62), 2**62), st.sampled_from([0, 2**62, -(2**62), T0_NS])
)
extreme = st.one_of(wild, st.integers(-(2**63), 2**63 - 1))


@given(
    st.lists(st.tuples(extreme, extreme, extreme, extreme), min_size=1, max_size=80), st.sampled_from([0, 50])
)
@settings(max_examples=200, deadline=None)
def test_anything_gives_sane_rows_or_none(columns_of, rows, spacing_ns):
    rows = rows[: len(rows) // 2 * 2 or 1]
    columns = list(zip(*rows, strict=True))
    check_sane(fit(columns_of([("b", 1, spacing_ns if len(rows) % 2 == 0 else 0, *columns)])))


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_clumps_of_equal_stamps_give_sane_rows(columns_of, seed, n):
    rng = np.random.default_rng(seed)
    spread = 10 ** rng.integers(0, 12)
    columns = [rng.integers(0, spread, n) * int(10 ** rng.integers(0, 6)) for _ in range(4)]
    check_sane(fit(columns_of([("b", 1, 0, *columns)])))


def test_a_window_takes_only_its_own_prober(columns_of):
    with pytest.raises(ValueError, match="expected one of 'x/eth0'"):
        NicWindow("x/eth0").add(columns_of([]))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("sent", np.zeros(2, np.int64), "forward: 3 elements, expected 2"),
        ("forward", np.zeros(3, np.float64), "contiguous numpy array of int64"),
        ("forward", np.zeros(6, np.int64)[::2], "contiguous"),
        ("forward", [1, 2, 3], "numpy array"),
        ("start", np.array([0, 4]), "from 0 to 4"),
        ("path", np.zeros(2, np.int32), "path: 2 elements, expected 1"),
        ("peers", [7], "expected a string"),
    ],
)
def test_columns_that_do_not_fit_are_refused_whole(columns_of, name, value, text):
    batch = columns_of([("b", 1, 0, [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3])])
    setattr(batch, name, value)
    window = NicWindow("a/eth0")
    with pytest.raises(ValueError, match=text):
        window.add(batch)
    assert window.samples == 0
    assert window.fit().peers == []


def test_one_thread_at_a_time(simulated):
    """Fits give up the interpreter lock: whoever else calls meanwhile is refused, and nothing breaks."""
    rng = np.random.default_rng(3)
    batches = [simulated(rng, samples=40_000, peer=f"{k}/eth0") for k in range(4)]
    window = NicWindow("a/eth0")
    for batch in batches:
        window.add(batch)
    wanted = window.fit()

    def work(turn):
        try:
            if turn % 4 == 3:
                window.add(batches[0])
            return window.fit()
        except RuntimeError as refused:
            return str(refused)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(24)))
    fits = [result for result in results if not isinstance(result, str)]
    assert fits
    assert all("in use by another thread" in result for result in results if isinstance(result, str))
    assert all(result.peers == wanted.peers for result in fits)
