"""Builds the dashboard of clocks: offset, error bound and state of each clock, and suspect NIC pairs."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from grafana import queries
from grafana.panels import (
    BLUE,
    ORANGE,
    SKY,
    VERMILLION,
    choice,
    colored,
    link_override,
    new_dashboard,
    page_link,
    places,
    series_panel,
    stacked_panel,
    stat_panel,
    state_panel,
    table_panel,
    unit_override,
)


def clocks() -> dashboard.Dashboard:
    """Return the dashboard of clocks: the offset and error bound of each clock."""
    states = colored(
        stat_panel("Clocks", "By the state of their newest window.", queries.CLOCK_COUNT, "short").span(12),
        {"synced": BLUE, "holdover": ORANGE, "unsynced": VERMILLION},
    )
    band = colored(
        series_panel(
            "Error bound of the chosen clocks",
            "The true error is below its bound 99.9% of the time.",
            queries.CLOCK_BAND,
            "ns",
        ),
        {"bound_max_ns": VERMILLION, "bound_p50_ns": BLUE, "residual_ns": SKY},
    )
    listed = (
        table_panel("Clocks", "Newest window of each clock.", queries.CLOCK_TABLE)
        .override_by_regexp(".*_ns", unit_override("ns"))
        .override_by_regexp(".*_ppb", unit_override("suffix: ppb"))
        .override_by_name(
            "clock",
            link_override(
                "this clock", "/d/fabrictime-clocks?${__url_time_range}&var-clock=${__data.fields.clock}"
            ),
        )
    )
    spread = colored(
        series_panel(
            "Error bound of all clocks",
            "The true error is below its bound 99.9% of the time. Without UNSYNCED clocks.",
            queries.BOUND_SPREAD,
            "ns",
        ),
        {"p50_ns": BLUE, "p99_ns": ORANGE, "widest_ns": VERMILLION},
    )
    counted = colored(
        stacked_panel(
            "Clocks by state",
            "A clock counts with its worst state of each interval.",
            queries.CLOCK_STATES,
            "short",
        ),
        {"synced": BLUE, "holdover": ORANGE, "unsynced": VERMILLION},
    )
    rows = state_panel(
        "States of the clocks with most trouble",
        queries.STATE_ROWS,
        12,
        (("UNSYNCED", VERMILLION), ("HOLDOVER", ORANGE), ("SYNCED", BLUE)),
    )
    events = (
        table_panel(
            "Events",
            "Events of the windows: NEW, STEP, RATE_CHANGE, FALSETICKER (rms of what its pairs "
            "contradict), MERGED. At most 100 of a kind.",
            queries.CLOCK_EVENTS,
            10,
            12,
        )
        .override_by_name("moved_ns", unit_override("ns"))
        .override_by_name("clock", page_link("this clock on the page", "clocks?clock={clock}"))
        .override_by_name("rate_ppb", unit_override("suffix: ppb"))
    )
    suspects = (
        table_panel(
            "Suspect pairs",
            "Pairs that contradict the loops they are part of: the path out is slower "
            "than back by twice the asymmetry. weight: share of its vote that the solve left it.",
            queries.SUSPECTS,
            10,
            12,
        )
        .override_by_regexp(".*_ns", unit_override("ns"))
        .override_by_name("weight", unit_override("percentunit"))
    )
    residuals = colored(
        series_panel(
            "Residuals of all clocks",
            "rms of the residuals of a clock's pairs after the mesh is solved.",
            queries.RESIDUAL_SPREAD,
            "ns",
        ),
        {"p50_ns": BLUE, "p99_ns": ORANGE, "worst_ns": VERMILLION},
    )
    return new_dashboard(
        "fabrictime-clocks",
        "fabrictime: clocks",
        "Every clock's offset, its bound, and the mesh.",
        states,
        stat_panel(
            "Largest bound",
            "Of the clocks that are not UNSYNCED.",
            queries.WORST_BOUND,
            "ns",
            {1_000: ORANGE, 10_000: VERMILLION},
        ),
        stat_panel(
            "Suspect pairs",
            "Whose path looks asymmetric in the newest window.",
            queries.SUSPECT_COUNT,
            "short",
            {1: ORANGE},
        ),
        spread,
        counted,
        residuals,
        rows,
        events,
        suspects,
        series_panel(
            "Residuals of the worst clocks",
            "The 20 largest of the chosen clocks.",
            queries.WORST_RESIDUALS,
            "ns",
        ),
        series_panel("Asymmetry of the worst suspects", "The 20 largest.", queries.SUSPECT_SERIES, "ns"),
        series_panel(
            "Offset since the range's start",
            "How far each clock's offset moved.",
            queries.CLOCK_OFFSETS,
            "ns",
        ),
        series_panel("Error bound by clock", "", queries.CLOCK_BOUNDS, "ns"),
        series_panel(
            "Drift",
            "Rate of each clock against fabric time, in parts per billion.",
            queries.CLOCK_DRIFT,
            "suffix: ppb",
        ),
        band,
        listed,
        variables=(*places(), choice("clock", "Clock", queries.CLOCK_VALUES)),
    )
