"""Frames of the Clocks tab: quantiles or lines, gaps, ranks, timelines, the mesh."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fabrictime.web.history_sql import Span
from fabrictime.web.tabs.clocks import frames
from fabrictime.web.tabs.clocks.queries import (
    MAX_MESH_NICS,
    ClockFleet,
    ClockPoint,
    ClockRow,
    ClockSeries,
    EventRow,
    FleetPoint,
    Mesh,
    MeshPair,
    MeshSize,
    StatePoint,
    SuspectRow,
    WanderPoint,
)
from fabrictime.web.tabs.clocks.view import ClocksChoice
from fabrictime.web.tabs.delays.queries import NicRow

S = 1_000_000_000
T = 1_800_000_000 * S


def fleet(clocks: int, seconds: int = 5, **fields: Any) -> ClockFleet:
    points = [
        FleetPoint(
            T + i * S, clocks, 0, 0, 10.0, 20.0, 30.0, 40.0 + i, f"h{i}/ptp0", 3.0, 6.0, 9.0 + i, f"h{i}/ptp1"
        )
        for i in range(seconds)
    ]
    given: dict[str, Any] = {"points": points, "wander": [], "events": [], "states": [], **fields}
    return ClockFleet(**given, span=Span(T - 60 * S, T + seconds * S))


def series(*points: ClockPoint) -> ClockSeries:
    return ClockSeries(list(points), [], Span(T - 60 * S, T + 5 * S))


def row(clock: str, bound_ns: float = 10.0, state: str = "SYNCED") -> ClockRow:
    return ClockRow(clock, "s0", "s0/0", T, 1e6, 500.0, bound_ns, state, 10, 4.0)


def nic(name: str, rack: str | None = None) -> NicRow:
    host, device = name.split("/")
    return NicRow(name, host, device, "s0", None, rack, f"{host}/ptp0", "HARDWARE")


def suspect(prober: str, peer: str, asymmetry_ns: float = 300.0) -> SuspectRow:
    return SuspectRow(prober, peer, "s0", asymmetry_ns, 4.0, 0.05, T, 3)


def test_many_clocks_are_quantiles_with_lines_of_the_drawn_ones() -> None:
    drawn = series(*(ClockPoint("h2/ptp0", T + i * S, 0.0, 50.0 + i, "SYNCED", 7.0) for i in range(5)))
    frame = frames.bounds_frame(fleet(1_000), drawn)
    assert [line["name"] for line in frame["lines"]] == ["widest", "p99", "p90", "median", "h2/ptp0"]
    assert frame["lines"][0]["v"] == [40, 41, 42, 43, 44]
    assert frame["worst"] == {"line": "widest", "names": [f"h{i}/ptp0" for i in range(5)]}
    assert [(band["low"][0], band["high"][0]) for band in frame["bands"]] == [(10, 20), (20, 30)]
    assert frame["lines"][-1]["v"] == [50, 51, 52, 53, 54]
    residuals = frames.residuals_frame(fleet(1_000), drawn)
    assert [line["name"] for line in residuals["lines"]] == ["worst", "p99", "median", "h2/ptp0"]
    assert (residuals["worst"]["names"][4], residuals["lines"][0]["v"][4]) == ("h4/ptp1", 13)
    assert residuals["lines"][-1]["v"] == [7] * 5
    holdover = series(ClockPoint("h2/ptp0", T, 0.0, 50.0, "HOLDOVER", 0.0), *drawn.points[1:])
    assert frames.residuals_frame(fleet(1_000), holdover)["lines"][-1]["v"] == [None, 7, 7, 7, 7]


def test_few_clocks_are_lines_only_and_unsynced_is_a_gap() -> None:
    drawn = series(
        ClockPoint("b/ptp0", T, 0.0, 9.0, "SYNCED"),
        ClockPoint("b/ptp0", T + S, 0.0, 1e9, "UNSYNCED"),
        ClockPoint("b/ptp0", T + 3 * S, 0.0, 9.0, "HOLDOVER"),
    )
    frame = frames.bounds_frame(fleet(2), drawn)
    assert [line["name"] for line in frame["lines"]] == ["b/ptp0"]
    assert frame["bands"] == []
    assert frame["lines"][0]["v"] == [9, None, None, 9, None]
    assert frame["t"][0] == T // 1_000_000


def test_offsets_have_their_bound_and_wander_the_fleets_quantiles() -> None:
    drawn = series(
        *(ClockPoint("a/ptp0", T + i * S, 2e6 + 900.0 * i, 25.0, "SYNCED", 0.0, 900.0 * i) for i in range(5)),
    )
    wander = [WanderPoint(T + i * S, -9.0, -5.0, 0.0, 5.0, 9.0) for i in range(5)]
    frame = frames.offsets_frame(fleet(100, wander=wander), drawn, "wander")
    assert frame["lines"][0]["v"] == pytest.approx([0.0] * 5, abs=0.01)
    assert [(band["low"][2], band["high"][2]) for band in frame["bands"]] == [(-9, 9), (-5, 5), (-25, 25)]
    raw = frames.offsets_frame(fleet(100, wander=wander), drawn, "offset")
    assert raw["lines"][0]["v"][1] == 2_000_900
    assert [band["name"] for band in raw["bands"]] == ["± bound of a/ptp0"]


def test_the_note_explains_the_bands_of_offsets_that_are_drawn() -> None:
    wander = [WanderPoint(T, -9.0, -5.0, 0.0, 5.0, 9.0)]
    for clocks in (1, frames.MAX_BOUND_BANDS, frames.MAX_BOUND_BANDS + 1):
        drawn = series(*(ClockPoint(f"h{k}/ptp0", T, 2e6, 25.0, "SYNCED") for k in range(clocks)))
        for view, has_grey in (("wander", True), ("offset", False)):
            frame = frames.offsets_frame(fleet(100, wander=wander), drawn, view)
            note = frames.offsets_note(fleet(100, wander=wander), drawn, view, 100)
            names = [band["name"] for band in frame["bands"]]
            assert any(name.startswith("± bound") for name in names) == ("coloured bands: ±" in note)
            assert any("all clocks" in name for name in names) == ("grey bands" in note) == has_grey


def test_events_of_the_drawn_clocks_are_marks() -> None:
    events = [
        EventRow(T + 2 * S, "a/ptp0", "s0", "STEP", 1_500.0, "SYNCED"),
        EventRow(T + S, "b/ptp0", "s0", "FALSETICKER", 250.0, "UNSYNCED"),
        EventRow(T - 30 * S, "a/ptp0", "s0", "NEW", 0.0, "SYNCED"),
    ]
    drawn = series(ClockPoint("a/ptp0", T, 0.0, 9.0, "SYNCED"))
    frame = frames.bounds_frame(fleet(2, events=events), drawn)
    assert [(mark["clock"], mark["text"]) for mark in frame["marks"]] == [("a/ptp0", "STEP +1.50 µs")]
    assert frames.event_text("RATE_CHANGE", -1_234.5) == "RATE_CHANGE -1,234 ppb"
    assert frames.event_text("FALSETICKER", 250.0) == "FALSETICKER 250 ns rms"
    assert frames.event_text("MERGED", -2e6) == "MERGED -2.00 ms"
    assert frames.event_text("NEW", 0.0) == "NEW"


def test_the_strip_ranks_by_bound_and_thins_out() -> None:
    frame = frames.strip_frame(
        [row("a", 5.0), row("b", 80.0), row("c", 1e9, "UNSYNCED"), row("d", 9.0, "HOLDOVER")], ["a"]
    )
    assert [(p[0], p[1], p[3], p[6]) for p in frame["points"]] == [
        (1, None, "c", 0),
        (2, 80, "b", 0),
        (3, 9, "d", 0),
        (4, 5, "a", 1),
    ]
    assert (frame["clocks"], frame["unsynced"]) == (4, 1)
    many = frames.strip_frame([row(f"h{i}", 10.0 + i) for i in range(10_000)], ["h3"])
    assert len(many["points"]) <= frames.STRIP_POINTS + 1
    assert [p[3] for p in many["points"][:3]] == ["h9999", "h9998", "h9997"]
    assert any(p[3] == "h3" for p in many["points"])
    assert many["clocks"] == 10_000


def test_timelines_join_equal_states_and_break_at_gaps() -> None:
    states = {0: "SYNCED", 1: "SYNCED", 2: "HOLDOVER", 3: "HOLDOVER", 9: "HOLDOVER"}
    points = [StatePoint("h10/c", T + i * S, state) for i, state in states.items()]
    points += [StatePoint("h2/c", T, "SYNCED")]
    events = [EventRow(T + 2 * S, clock, "s0", "STEP", 5.0, "HOLDOVER") for clock in ("h10/c", "elsewhere")]
    frame = frames.timeline_frame(fleet(20, seconds=10, states=points, events=events))
    ms = T // 1_000_000
    assert frame["rows"] == ["h2/c", "h10/c"]
    assert frame["segments"] == [
        [0, ms, ms + 1_000, 0],
        [1, ms, ms + 2_000, 0],
        [1, ms + 2_000, ms + 4_000, 1],
        [1, ms + 9_000, ms + 10_000, 1],
    ]
    assert frame["marks"] == [[1, ms + 2_000, "STEP", "STEP +5.00 ns"]]


def test_the_mesh_joins_both_directions_and_marks_suspects() -> None:
    nics = [nic(f"h{i}/eth{k}", f"r{i // 2}") for i in range(4) for k in range(2)]
    pairs = [
        MeshPair("h0/eth0", "h1/eth0", 3.0, 9_000.0, 500, 60),
        MeshPair("h1/eth0", "h0/eth0", 5.0, 8_000.0, 500, 40),
        MeshPair("h2/eth1", "h3/eth0", 2.0, 7_000.0, 500, 50),
    ]
    mesh = Mesh(MeshSize(5, 3), pairs, [suspect("h3/eth0", "h0/eth0", -412.0)])
    frame = frames.mesh_frame(mesh, nics, [row("h0/ptp0", 17.0), row("h3/ptp0", 1e9, "UNSYNCED")])
    nodes = {node[0]: (i, node) for i, node in enumerate(frame["nodes"])}
    assert [node[0] for node in frame["nodes"]] == [n.nic for n in nics], "by rack, host and device"
    (a, first), (b, _), (c, last) = nodes["h0/eth0"], nodes["h1/eth0"], nodes["h3/eth0"]
    assert frame["edges"][0] == [a, b, 2, 5, 8_000, 40]
    assert frame["suspects"] == [[c, a, -412, 4, 0.05]]
    assert first[3:] == ["h0/ptp0", "SYNCED", 17, 2, 1]
    assert last[3:] == ["h3/ptp0", "UNSYNCED", None, 1, 1]
    assert all(math.hypot(node[1], node[2]) == pytest.approx(1, abs=1e-3) for node in frame["nodes"])
    assert [group[0] for group in frame["groups"]] == ["h0", "h1", "h2", "h3"]
    note = frames.mesh_note(mesh, 8)
    assert note == "5 NICs, 3 directed pairs; 1 suspect pair, worst h3/eth0 → h0/eth0 -412 ns ± 4.00 ns"


def test_a_mesh_too_large_to_draw_has_only_its_suspects() -> None:
    nics = [nic(f"h{i}/eth0", f"r{i // 16}") for i in range(1_000)]
    size = MeshSize(MAX_MESH_NICS + 1, 10_000)
    mesh = Mesh(size, [], [suspect("h7/eth0", "h9/eth0"), suspect("h7/eth0", "h800/eth0")])
    frame = frames.mesh_frame(mesh, nics, [])
    assert [node[0] for node in frame["nodes"]] == ["h7/eth0", "h9/eth0", "h800/eth0"]
    assert (frame["edges"], len(frame["suspects"])) == ([], 2)
    assert frames.mesh_note(mesh, 1_000).endswith("Only these and their 3 NICs are drawn.")
    consistent = Mesh(size, [], [])
    assert frames.mesh_frame(consistent, nics, [])["nodes"] == []
    assert "no suspect pair. Too many to draw" in frames.mesh_note(consistent, 1_000)


def test_no_mesh_and_a_single_nic() -> None:
    empty = Mesh(MeshSize(0, 0), [], [])
    assert frames.mesh_frame(empty, [], [])["nodes"] == []
    assert frames.mesh_note(empty, 0) == "No pair was fitted in the last 10 s."
    (node,) = frames.mesh_frame(empty, [nic("h1/eth0")], [])["nodes"]
    assert node[0] == "h1/eth0"
    assert frames.mesh_note(empty, 1).startswith("A single NIC")


def test_a_choice_round_trips_and_invalid_values_become_defaults() -> None:
    choice = ClocksChoice(60, "offset", ("h1/ptp0", "h2/ptp0"))
    assert choice.address() == "span=60&view=offset&clock=h1%2Fptp0&clock=h2%2Fptp0"
    assert ClocksChoice.parse({"span": "60", "view": "offset"}, ["h1/ptp0", "h2/ptp0"]) == choice
    assert ClocksChoice.parse({"span": "7", "view": "x"}, ["", ""]) == ClocksChoice()
    assert choice.toggled("h1/ptp0").clocks == ("h2/ptp0",)
    full = ClocksChoice(clocks=tuple(f"h{i}" for i in range(8)))
    assert full.toggled("new").clocks == (*(f"h{i}" for i in range(1, 8)), "new")
