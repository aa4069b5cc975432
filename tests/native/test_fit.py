"""The pair fit against a simulated truth: accurate where it claims to be, honest where it cannot be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import NicWindow, ProbeColumns
from tests.examples import examples

T0_NS = 1_763_700_000_000_000_000


def fit(*batches: ProbeColumns):
    window = NicWindow(batches[0].nic)
    for batch in batches:
        window.add(batch)
    return window.fit()


def one(fits):
    """The single row as a dict of plain figures, with the fraction added to the offset."""
    assert len(fits.peers) == 1
    row = {
        name: getattr(fits, name)[0].item()
        for name in (
            "at_ns",
            "offset_ns",
            "drift_ppb",
            "sigma_ns",
            "drift_sigma_ppb",
            "rtt_min_ns",
            "samples",
            "accepted",
        )
    }
    row["offset_ns"] += fits.offset_fraction_ns[0].item()
    return row


def check_sane(fits):
    """What the schema asks of every row, whatever went in."""
    for name in ("offset_fraction_ns", "drift_ppb", "sigma_ns", "drift_sigma_ppb", "rtt_min_ns"):
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
def test_errors_match_sigma(simulated, label, options):
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


def with_stamp_noise(batch, rng, noise_ns=6.0):
    """The batch with normal noise on every one-way reading, in place."""
    batch.forward = batch.forward + np.rint(rng.normal(0, noise_ns, len(batch.sent))).astype(np.int64)
    batch.reverse = batch.reverse + np.rint(rng.normal(0, noise_ns, len(batch.sent))).astype(np.int64)
    return batch


def queue(batch, rng, out, back, min_ns=2_000, max_ns=20_000):
    """The batch with queueing where `out` and `back` are true, in place."""
    n = len(batch.sent)
    batch.forward = batch.forward + out * rng.integers(min_ns, max_ns, n)
    batch.reverse = batch.reverse + back * rng.integers(min_ns, max_ns, n)
    return batch


def test_the_one_clean_half_of_a_pair_is_used(simulated):
    """No coded pair is pure, since one half of each met a queue; the other half tells the clocks as well."""
    rng = np.random.default_rng(4)
    batch = with_stamp_noise(simulated(rng, noise_ns=0.0, offset_ns=1e6, drift_ppb=3_000), rng)
    first = np.arange(len(batch.sent)) % 2 == 0
    fits = fit(queue(batch, rng, first, ~first))
    row = one(fits)
    truth = 1e6 + 3e-6 * (row["at_ns"] - T0_NS)
    assert row["samples"] == 480
    assert 200 < row["accepted"] <= 240
    assert abs(row["offset_ns"] - truth) < 4 * row["sigma_ns"] < 4
    assert abs(row["drift_ppb"] - 3_000) < 4 * row["drift_sigma_ppb"] < 8


@pytest.mark.parametrize("busy", [0.1, 0.6, 0.97])
@pytest.mark.parametrize("wrong_ns", [300, 4_000, 400_000])
@pytest.mark.parametrize("column", ["forward", "reverse"])
def test_a_wrong_stamp_below_all_others_is_left_out(simulated, busy, wrong_ns, column):
    """Any reading below the floor would carry a line of lowest readings with it."""
    rng = np.random.default_rng([int(busy * 100), wrong_ns])
    batch = with_stamp_noise(simulated(rng, noise_ns=0.0, samples=960, forward_ns=5e5, reverse_ns=5e5), rng)
    pairs = np.repeat(rng.random((480, 2)) < busy, 2, axis=0)
    queue(batch, rng, pairs[:, 0], pairs[:, 1])
    before = one(fit(batch))
    readings = getattr(batch, column).copy()
    readings[100] = readings.min() - wrong_ns
    setattr(batch, column, readings)
    after = one(fit(batch))
    assert abs(before["offset_ns"]) < 4 * before["sigma_ns"] < 100
    assert after["offset_ns"] == pytest.approx(before["offset_ns"], abs=before["sigma_ns"])
    assert after["drift_ppb"] == pytest.approx(before["drift_ppb"], abs=before["drift_sigma_ppb"])


def test_margin_and_noise_are_the_paths_and_the_stamps(simulated):
    rng = np.random.default_rng(12)
    fits = fit(with_stamp_noise(simulated(rng, samples=960, noise_ns=0.0, drift_ppb=-20_000), rng, 6.0))
    assert fits.noise_ns[0] == pytest.approx(6, rel=0.1)
    assert fits.margin_ns[0] == pytest.approx(10_000, abs=2)
    assert fits.rtt_min_ns[0] < fits.margin_ns[0]


def corners_of(fits):
    """Row 0's corners: ns after at_ns and delay, out and back."""
    out, back = slice(*fits.forward_start[:2].tolist()), slice(*fits.reverse_start[:2].tolist())
    return (
        (fits.forward_after_ns[out], fits.forward_delay_ns[out]),
        (fits.reverse_after_ns[back], fits.reverse_delay_ns[back]),
    )


def test_modes_need_no_hull_vertices_and_queues_pass_them_on(simulated):
    rng = np.random.default_rng(13)
    quiet = fit(with_stamp_noise(simulated(rng, noise_ns=0.0), rng))
    assert all(len(after) == 0 for after, _ in corners_of(quiet))
    assert quiet.noise_ns[0] > 0
    busy = fit(with_stamp_noise(simulated(rng, noise_ns=0.0, queued=0.97), rng))
    assert all(len(after) > 0 for after, _ in corners_of(busy))
    assert busy.noise_ns[0] == 0, "not known without a hill"


def test_hull_vertices_rotate_the_line_as_all_samples_would(simulated):
    """Whoever knows the rate gets the floors at that rate from the corners alone."""
    rng = np.random.default_rng(14)
    batch = simulated(rng, offset_ns=2e6, drift_ppb=8_000, queued=0.98, queue_ns=5_000.0, noise_ns=20.0)
    fits = fit(batch)
    row = one(fits)
    trip = batch.forward + batch.reverse
    x_forward = batch.sent - row["at_ns"] + trip / 2
    x_reverse = x_forward + batch.turnaround
    (after_f, delay_f), (after_r, delay_r) = corners_of(fits)
    assert len(after_f) >= 2 or len(after_r) >= 2
    for sigmas in (-3.0, -1.0, 0.0, 0.5, 2.0):
        extra_slope = sigmas * row["drift_sigma_ppb"] * 1e-9
        slope = row["drift_ppb"] * 1e-9 + extra_slope
        floor_f = (batch.forward - slope * x_forward).min()
        floor_r = (batch.reverse + slope * x_reverse).min()
        offset_ns = (
            row["offset_ns"]
            + ((delay_f - extra_slope * after_f).min() - (delay_r + extra_slope * after_r).min()) / 2
        )
        assert offset_ns == pytest.approx((floor_f - floor_r) / 2, abs=0.01)
        margin_ns = (delay_f - extra_slope * after_f).min() + (delay_r + extra_slope * after_r).min()
        assert margin_ns == pytest.approx(floor_f + floor_r, abs=0.01)


def test_unequal_paths_are_within_half_a_round_trip(simulated):
    """What no sample can show: the error of unequal delays, bounded by rtt_min_ns as the schema says."""
    row = one(fit(simulated(np.random.default_rng(2), forward_ns=9_000, reverse_ns=3_000)))
    assert abs(row["offset_ns"] - 3_000) < 100
    assert abs(row["offset_ns"]) <= row["rtt_min_ns"] / 2


@pytest.mark.parametrize("epoch_ns", [0, -(2**61), 2**61])
def test_far_epochs_keep_their_nanoseconds(simulated, epoch_ns):
    """The peer counts from another epoch: the offset is exact to a fraction of a ns."""
    batch = simulated(np.random.default_rng(2), drift_ppb=5_000)
    shift = epoch_ns - T0_NS if epoch_ns else 0
    batch.forward = batch.forward + shift
    batch.reverse = batch.reverse - shift
    fits = fit(batch)
    near = one(fit(simulated(np.random.default_rng(2), drift_ppb=5_000)))
    assert fits.offset_ns[0] - shift == round(near["offset_ns"])
    assert fits.offset_fraction_ns[0] == pytest.approx(near["offset_ns"] - round(near["offset_ns"]), abs=1e-6)


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


@pytest.mark.parametrize("busy", [0.0, 0.5])
@pytest.mark.parametrize("step_ns", [50, -120, 400, -3_000, 30_000, 5e7])
def test_small_steps_are_no_confident_answers_either(simulated, busy, step_ns):
    """Stamps good to 6 ns: neither side of the step, nor a rate, is claimed wrongly."""
    rng = np.random.default_rng([int(busy * 10), int(abs(step_ns))])
    for _ in range(10):
        at_s = rng.uniform(0.25, 0.75)
        batch = simulated(rng, samples=960, noise_ns=0.0, step_ns=step_ns, step_at_ns=at_s * 1e9)
        with_stamp_noise(batch, rng)
        queue(batch, rng, rng.random(960) < busy, rng.random(960) < busy)
        row = one(fit(batch))
        off_ns = min(abs(row["offset_ns"]), abs(row["offset_ns"] - step_ns))
        assert off_ns < 5 * row["sigma_ns"]
        assert row["sigma_ns"] > abs(step_ns) / 10
        assert row["drift_sigma_ppb"] >= abs(row["drift_ppb"]) / 5


@pytest.mark.parametrize("step_ns", [8, 64, 1_000])
@pytest.mark.parametrize("drift_ppb", [0.0, 3.0, 40.0, 4_000.0])
def test_errors_match_sigma_for_stamps_in_steps(simulated, step_ns, drift_ppb):
    """Clocks that hardly drift apart: a reading takes two values, of which neither is right."""
    rng = np.random.default_rng([step_ns, int(drift_ppb)])
    off = []
    for _ in range(80):
        offset_ns = rng.uniform(-1e6, 1e6)
        batch = simulated(rng, offset_ns=offset_ns, drift_ppb=drift_ppb, noise_ns=0.0, spacing_ns=0)
        t1 = batch.sent - T0_NS + rng.uniform(-0.5, 0.5, len(batch.sent))
        times = [t1, t1 + batch.forward, t1 + batch.forward + batch.turnaround]
        times.append(times[-1] + batch.reverse)
        lattice = [
            np.rint((t + rng.normal(0, 1, len(t))) / step_ns).astype(np.int64) * step_ns for t in times
        ]
        batch.sent = lattice[0] + T0_NS
        batch.forward, batch.turnaround, batch.reverse = np.diff(lattice, axis=0)
        row = one(fit(batch))
        off.append(
            (row["offset_ns"] - offset_ns - drift_ppb * 1e-9 * (row["at_ns"] - T0_NS)) / row["sigma_ns"]
        )
    assert np.abs(off).max() < 5
    assert np.sqrt(np.mean(np.square(off))) < 1.4


@given(st.integers(0, 2**32 - 1), st.integers(-(2**40), 2**40), st.sampled_from([0.0, 0.5, 0.97]))
@settings(max_examples=examples(40))
def test_a_constant_on_one_clock_moves_its_offset_alone(simulated, seed, constant_ns, busy):
    rng = np.random.default_rng(seed)
    batch = simulated(rng, samples=400, noise_ns=20.0, queued=busy, drift_ppb=rng.normal(0, 5_000))
    before = fit(batch)
    batch.forward, batch.reverse = batch.forward + constant_ns, batch.reverse - constant_ns
    after = fit(batch)
    moved_ns = int(after.offset_ns[0] - before.offset_ns[0]) - constant_ns
    moved_ns += after.offset_fraction_ns[0] - before.offset_fraction_ns[0]
    assert moved_ns == pytest.approx(0, abs=1e-3)
    for name in set(before.__slots__) - {"peers", "offset_ns", "offset_fraction_ns"}:
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-6, abs=1e-3), name


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
@settings(max_examples=examples(200))
def test_anything_gives_sane_rows_or_none(columns_of, rows, spacing_ns):
    rows = rows[: len(rows) // 2 * 2 or 1]
    columns = list(zip(*rows, strict=True))
    check_sane(fit(columns_of([("b", 1, spacing_ns if len(rows) % 2 == 0 else 0, *columns)])))


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
@settings(max_examples=examples(100))
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

    def work(index):
        try:
            if index % 4 == 3:
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
