"""Frames of the Delays tab: order, aggregation, differences, gaps."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.web.history_sql import Span
from fabrictime.web.tabs.clocks.queries import ClockPoint, ClockSeries, FleetPoint
from fabrictime.web.tabs.delays import frames
from fabrictime.web.tabs.delays.frames import Place, Scope
from fabrictime.web.tabs.delays.queries import NicRow, PairRow, PointRow, Series
from fabrictime.web.time_series import detrend

S = 1_000_000_000


def pair(nic: str, peer: str, **figures: Any) -> PairRow:
    given = {
        "count": 100,
        "lost": 0,
        "loss_max": 0.0,
        "min_ns": 8e3,
        "p50_ns": 1e4,
        "p99_ns": 2e4,
        "rtt_min_ns": 2e4,
        "bound_ns": 800.0,
        "last_ns": 0,
        **figures,
    }
    return PairRow(nic, peer, **given)


def fleet(nics: int, per_host: int = 1, per_rack: int = 0) -> list[Place]:
    return [
        Place(
            f"h{i // per_host}/e{i % per_host}",
            f"h{i // per_host}",
            f"r{i // per_rack}" if per_rack else None,
        )
        for i in range(nics)
    ]


def test_nics_are_ordered_by_rack_and_host() -> None:
    rows = [
        NicRow(f"{host}/eth0", host, "eth0", "s0", None, rack, "c", "KERNEL")
        for host, rack in (("h10", "r1"), ("h2", "r1"), ("h1", "r2"))
    ]
    ordered = frames.places(rows, [pair("h3/eth0", "h2/eth0")])
    assert [p.nic for p in ordered] == ["h3/eth0", "h2/eth0", "h10/eth0", "h1/eth0"]


@pytest.mark.parametrize(
    ("nics", "per_host", "per_rack", "level"),
    [
        (0, 1, 0, "nic"),
        (1, 1, 0, "nic"),
        (64, 1, 0, "nic"),
        (65, 8, 0, "host"),
        (1_000, 8, 32, "rack"),
        (1_000, 1, 0, "nic"),
        (100_000, 8, 8, "host"),
    ],
)
def test_the_level_follows_the_fleet_s_size(nics: int, per_host: int, per_rack: int, level: str) -> None:
    assert frames.level_for(fleet(nics, per_host, per_rack)) == level


def test_a_cell_of_many_pairs_shows_the_worst_and_all_losses() -> None:
    places = fleet(8, 2, 4)
    pairs = [
        pair("h0/e0", "h2/e0", p99_ns=5e4, lost=1),
        pair("h1/e1", "h3/e1", p99_ns=9e4, p50_ns=7e3, lost=2, bound_ns=950.0),
        pair("h0/e1", "h2/e1", p99_ns=None, p50_ns=None, lost=4),
    ]
    matrix = frames.heat_matrix(pairs, places, "p99", "forward", "rack")
    (cell,) = matrix.cells.values()
    number, value, p50, _p99, _min, count, lost, bound, _rtt, joined, nic, peer = cell
    assert (number, value, p50, count, lost, bound, joined) == (1, 90_000, 7_000, 300, 7, 950, 3)
    assert (matrix.names[nic], matrix.names[peer]) == ("h1/e1", "h3/e1")  # type: ignore[index]


def test_a_scope_shows_a_cells_rows_against_its_columns() -> None:
    places = fleet(8, 2, 4)
    matrix = frames.heat_matrix(
        [pair("h0/e0", "h2/e1"), pair("h2/e0", "h0/e0")],
        places,
        "p50",
        "forward",
        "nic",
        Scope("rack", "r0", "r1"),
    )
    assert [label["text"] for label in matrix.rows] == ["h0/e0", "h0/e1", "h1/e0", "h1/e1"]
    assert [label["text"] for label in matrix.cols] == ["h2/e0", "h2/e1", "h3/e0", "h3/e1"]
    assert list(matrix.cells) == [1]
    assert [label["silent"] for label in matrix.rows] == [False, True, True, True]


def test_only_changed_cells_are_sent() -> None:
    places = fleet(3)
    before = [pair("h0/e0", "h1/e0"), pair("h1/e0", "h2/e0"), pair("h2/e0", "h0/e0")]
    after = [before[0], pair("h1/e0", "h2/e0", p50_ns=3e4), pair("h2/e0", "h1/e0")]
    first = frames.heat_matrix(before, places, "p50", "forward", "nic")
    second = frames.heat_matrix(after, places, "p50", "forward", "nic")
    whole = frames.heat_frame(first, None)
    assert whole["full"]
    assert len(whole["cells"]) == 3
    change = frames.heat_frame(second, first)
    assert not change["full"]
    assert sorted(cell[0] for cell in change["cells"]) == [5, 7]
    assert change["gone"] == [6]
    assert frames.heat_frame(frames.heat_matrix(after, places, "p99", "forward", "nic"), second)["full"]


def test_invisible_changes_are_not_sent() -> None:
    places = fleet(2)
    one = frames.heat_matrix([pair("h0/e0", "h1/e0", p50_ns=10_000.4)], places, "p50", "forward", "nic")
    two = frames.heat_matrix([pair("h0/e0", "h1/e0", p50_ns=10_000.9)], places, "p50", "forward", "nic")
    assert frames.heat_frame(two, one)["cells"] == []


def point(path: int, at_ns: int, p50: float | None, lost: int = 0) -> PointRow:
    return PointRow(path, 0, at_ns, 100, lost, p50, p50, p50, p50, p50, p50, 2e4, 800.0)


def test_gaps_of_a_pair_are_none() -> None:
    start = 1_000 * S
    points = [point(1, start + S, 1e4), point(1, start + 3 * S, 3e4, lost=2), point(2, start + 3 * S, 5e4)]
    frame = frames.pair_frame(Series(points, Span(start, start + 5 * S)), "a", "b")
    assert frame["t"] == [1_001_000, 1_002_000, 1_003_000, 1_004_000]
    assert frame["series"][1]["forward"]["p50"] == [10_000, None, 30_000, None]
    assert frame["series"][1]["lost"] == [0, None, 2, None]
    assert frame["series"][2]["reverse"]["min"] == [None, None, 50_000, None]
    assert frame["median"]["forward"] == [10_000, None, 40_000, None]
    assert frame["bound"] == [800, None, 800, None]


def test_an_empty_pair_still_has_a_time_axis() -> None:
    frame = frames.pair_frame(Series([], Span(10 * S, 70 * S)), "a", "b")
    assert len(frame["t"]) == 60
    assert frame["paths"] == []


def test_the_note_of_a_pair_explains_its_band_or_why_nothing_is_drawn() -> None:
    nothing = Series([], Span(10 * S, 70 * S))
    for span, reason in (("1 min", "or a longer span has the last ones."), ("1 h", "or the history lags.")):
        note = frames.pair_note(nothing, span)
        assert note.startswith(f"No window of this pair in the last {span}: these NICs do not probe")
        assert note.endswith(reason)
    note = frames.pair_note(Series([point(1, 10 * S, 5.0)], Span(10 * S, 70 * S)), "1 min")
    assert "grey band: ± clock bound around the paths' median" in note


def test_wander_is_the_offset_minus_its_linear_fit() -> None:
    steady = [3e6 + 12_000.0 * i for i in range(20)]
    assert detrend(steady) == pytest.approx([0.0] * 20, abs=1e-3)
    bent = list(steady)
    bent[10] = None  # type: ignore[call-overload]
    bent[15] += 500.0
    flat = detrend(bent)
    assert flat[10] is None
    assert max(flat[:10] + flat[11:], key=lambda v: v or 0.0) == flat[15]
    restarted = [*steady, *([None] * 5), *(9e8 - 4_000.0 * i for i in range(20))]
    known = [value for value in detrend(restarted) if value is not None]
    assert known == pytest.approx([0.0] * 40, abs=1e-2)
    assert detrend([None, 7.0, None]) == [None, 0.0, None]
    assert detrend([]) == []


def test_the_chosen_clock_has_its_bound() -> None:
    points = [
        ClockPoint(name, i * S, 100.0 * i, 40.0, "SYNCED") for name in ("h2/c", "h10/c") for i in range(5, 10)
    ]
    frame = frames.clock_frame(ClockSeries(points, [], Span(0, 10 * S)), "offset", "h2/c")
    assert [(line["name"], line["bold"]) for line in frame["lines"]] == [("h2/c", True), ("h10/c", False)]
    assert frame["t"][0] == 5_000
    (band,) = frame["bands"]
    assert (band["low"][0], band["high"][0]) == (460.0, 540.0)
    series = ClockSeries(points, [], Span(0, 10 * S))
    assert frames.clock_note(series, "offset", "h2/c") == "bold: h2/c; band: ± its bound"
    assert frames.clock_note(series, "bound", "h2/c") == "bold: h2/c"
    assert frames.clock_note(series, "offset", "h3/c") == ""


def test_many_clocks_are_a_distribution() -> None:
    bounds, residuals = (10.0, 20.0, 30.0, 40.0), (1.0, 2.0, 3.0)
    spread = [FleetPoint(i * S, 997, 3, 0, *bounds, "h1/c", *residuals, "h2/c") for i in range(5)]
    frame = frames.clock_frame(ClockSeries([], spread, Span(0, 5 * S)), "wander", None)
    assert frame["kind"] == "spread"
    assert [line["v"][-1] for line in frame["lines"]] == [40, 30, 20, 10]


def test_a_clock_that_is_not_synced_is_a_gap() -> None:
    points = [
        ClockPoint(
            "h1/c", i * S, 1e9 if i == 2 else 5.0, 1e9 if i == 2 else 40.0, "UNSYNCED" if i == 2 else "SYNCED"
        )
        for i in range(5)
    ]
    frame = frames.clock_frame(ClockSeries(points, [], Span(0, 5 * S)), "offset", "h1/c")
    assert frame["lines"][0]["v"] == [5.0, 5.0, None, 5.0, 5.0]
    assert frame["bands"][0]["high"] == [45.0, 45.0, None, 45.0, 45.0]
