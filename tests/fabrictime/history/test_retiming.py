"""Timestamps converted to fabric time by the SQL recipe, against known truth."""

import random
import time

import numpy as np
import pytest

from schemas import codec, topics
from schemas.kafka.message import Message
from schemas.retiming import retimed_sql
from streams.history.clickhouse import Writer
from streams.history.rows import rows_of
from streams.runtime.history_settings import HistorySinkSettings

S = 1_000_000_000
WINDOW_NS = 2 * S
WINDOWS = 60
STEP_WINDOW, BACK_WINDOW, LOST, HOLDOVER_WINDOWS = 12, 24, (36, 37), (44, 45, 46)
START = (time.time_ns() // WINDOW_NS - WINDOWS - 10) * WINDOW_NS
NOISE_NS, BOUND_NS = 2.0, 8.0


def truth_ns(name, fabric_ns):
    """The clock minus fabric time: 20 ppm, wander of some 100 ns, two steps of 'odd'."""
    after_s = (fabric_ns - START) / S
    ahead = 3e6 + 20_000.0 * after_s + 150.0 * np.sin(after_s / 15)
    if name == "odd/system":
        ahead += np.where(fabric_ns >= START + STEP_WINDOW * WINDOW_NS, 1e6, 0.0)
        ahead -= np.where(fabric_ns >= START + BACK_WINDOW * WINDOW_NS, 7e9, 0.0)
    return ahead


def offset(ahead, rng):
    """Return whole nanoseconds and fraction of a measured correction: -ahead with the estimator's error."""
    correction = float(rng.uniform(-NOISE_NS, NOISE_NS) - ahead)
    return round(correction), correction - round(correction)


def clock(name, window, rng):
    start_ns = START + window * WINDOW_NS
    middle_ns = start_ns + WINDOW_NS // 2
    ahead, rate = (
        truth_ns(name, middle_ns),
        10 * (truth_ns(name, middle_ns + S // 10) - truth_ns(name, middle_ns)),
    )
    knot_ahead = truth_ns(name, start_ns)
    (whole_ns, fraction_ns), (knot_whole_ns, knot_fraction_ns) = offset(ahead, rng), offset(knot_ahead, rng)
    odd = name == "odd/system"
    restarted = window == 0 or (odd and window in (STEP_WINDOW, BACK_WINDOW, LOST[0], LOST[1], LOST[1] + 1))
    state = "UNSYNCED" if odd and window in LOST else "HOLDOVER" if window in HOLDOVER_WINDOWS else "SYNCED"
    return {
        "clock": name,
        "at_ns": middle_ns + round(ahead),
        "state": state,
        "pairs": 9,
        "residual_ns": 3.0,
        "offset_ns": whole_ns,
        "offset_fraction_ns": fraction_ns,
        "bound_ns": BOUND_NS,
        "drift_ppb": -rate,
        "drift_sigma_ppb": 1.0,
        "event": "NEW" if window == 0 else "STEP" if odd and window == STEP_WINDOW else "NONE",
        "event_ns": 1e6 if odd and window == STEP_WINDOW else 0.0,
        "knot_at_ns": 0 if restarted else start_ns + round(knot_ahead),
        "knot_offset_ns": 0 if restarted else knot_whole_ns,
        "knot_offset_fraction_ns": 0.0 if restarted else knot_fraction_ns,
        "knot_bound_ns": 0.0 if restarted else BOUND_NS,
    }


@pytest.fixture(scope="module")
def timed(shared_server):
    """Two minutes of two clocks, inserted as the sink does."""
    rng = random.Random(5)
    writer = Writer(
        HistorySinkSettings(url=shared_server.url, password_file=shared_server.directory / "write.token")
    )
    client = shared_server.client()
    client.command("TRUNCATE TABLE fabrictime.clocks")
    messages = []
    for window in range(WINDOWS):
        start_ns = START + window * WINDOW_NS
        record = {
            "shard": "s0",
            "window": start_ns // WINDOW_NS,
            "part": 0,
            "parts": 1,
            "domain": "d0",
            "window_start_ns": start_ns,
            "window_end_ns": start_ns + WINDOW_NS,
            "log_offset_ns": 0,
            "solved_ns": start_ns + WINDOW_NS,
            "reference": "ensemble",
            "suspects": [],
            "clocks": [clock(name, window, rng) for name in ("even/system", "odd/system")],
        }
        wire = codec.decode(codec.encode("ClockOffsets", record), "ClockOffsets")
        messages.append(Message(start_ns + WINDOW_NS, topics.CLOCK_OFFSETS.name, 0, 0, "s0/0", None, wire))
    for table, block in rows_of(topics.CLOCK_OFFSETS.name, messages).items():
        writer.insert(table, block, "truth")
        writer.insert(table, block, "truth again, as after a crash")
    writer.close()
    client.close()


def retimed(reader, name, fabric_ns):
    """Correct timestamps of clock `name` at true fabric times; return (error in ns, bound; NaN where
    unknown)."""
    readings = fabric_ns + np.round(truth_ns(name, fabric_ns)).astype(np.int64)
    stamps = (
        "(SELECT 'event' AS what, {name:String} AS clock, "
        "arrayJoin(arrayZip({readings:Array(Int64)}, arrayEnumerate({readings:Array(Int64)}))) AS z, "
        "z.1 AS reading_ns, z.2 AS number)"
    )
    rows = reader.query(
        f"SELECT number, what, fabric_ns, bound_ns FROM ({retimed_sql(stamps)}) ORDER BY number",
        parameters={
            "name": name,
            "readings": readings.tolist(),
            "since_ns": START,
            "until_ns": START + WINDOWS * WINDOW_NS,
        },
    ).result_rows
    assert [row[0] for row in rows] == list(range(1, len(fabric_ns) + 1))
    assert {row[1] for row in rows} == {"event"}
    error = [
        np.nan if row[2] is None else row[2] - int(true) for row, true in zip(rows, fabric_ns, strict=True)
    ]
    return np.array(error, float), np.array([np.nan if row[3] is None else row[3] for row in rows])


def times(first, last, count, seed=3):
    rng = np.random.default_rng(seed)
    low, high = (int(START + edge * WINDOW_NS) for edge in (first, last))
    return np.sort(rng.integers(low, high, count))


def test_timestamps_of_two_minutes_are_corrected_within_their_bound(timed, reader):
    fabric_ns = times(0.51, WINDOWS - 0.01, 2_000)
    error, bound = retimed(reader, "even/system", fabric_ns)
    assert not np.isnan(error).any()
    assert (bound >= BOUND_NS).all()
    assert (bound < BOUND_NS + 10).all()
    assert (np.abs(error) <= bound).all()
    assert np.abs(error).max() < 6, "lines of 2 s through knots that are right to 2 ns"


def test_a_step_starts_a_new_line_and_uncovered_times_are_null(timed, reader):
    covered = {
        (0.51, STEP_WINDOW - 0.01): True,
        (STEP_WINDOW + 0.01, STEP_WINDOW + 0.49): False,
        (STEP_WINDOW + 0.51, STEP_WINDOW + 8): True,
        (BACK_WINDOW + 0.51, LOST[0] - 0.01): True,
        (LOST[0] + 0.01, LOST[1] + 1.49): False,
        (LOST[1] + 1.51, WINDOWS - 0.01): True,
        (WINDOWS + 0.01, WINDOWS + 5): False,
    }
    for (first, last), known in covered.items():
        error, bound = retimed(reader, "odd/system", times(first, last, 200))
        assert (np.isnan(error) == (not known)).all(), (first, last)
        if known:
            assert (np.abs(error) <= bound).all(), (first, last)


def test_a_repeated_reading_is_corrected_by_the_later_line(timed, reader):
    again = times(BACK_WINDOW + 0.6, BACK_WINDOW + 3, 200)
    error, _bound = retimed(reader, "odd/system", again)
    assert np.abs(error).max() < 6
    first = times(BACK_WINDOW - 2.5, BACK_WINDOW - 0.1, 200)
    error, _bound = retimed(reader, "odd/system", first)
    assert error == pytest.approx(7e9, rel=1e-4), "shown again 7 s later"


def test_timestamps_of_an_unknown_clock_or_another_epoch_have_no_fabric_time(timed, reader):
    stamps = "(SELECT arrayJoin(['nobody/ptp0', 'even/system']) AS clock, toInt64(12) AS reading_ns)"
    rows = reader.query(
        f"SELECT fabric_ns, bound_ns, correction_ns FROM ({retimed_sql(stamps)})",
        parameters={"since_ns": START, "until_ns": START + WINDOWS * WINDOW_NS},
    ).result_rows
    assert rows == [(None, None, None)] * 2
