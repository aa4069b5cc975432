"""Builds the dashboard of the pipeline's health: input, backlog and rejects."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from grafana import queries
from grafana.panels import (
    BLUE,
    ORANGE,
    VERMILLION,
    colored,
    link_override,
    new_dashboard,
    series_panel,
    table_panel,
    unit_override,
)


def pipeline() -> dashboard.Dashboard:
    """Return the dashboard of the pipeline's health: input, backlog and rejected messages."""
    rates = colored(
        series_panel("Messages and samples a second", "As the map stage read them.", queries.MESSAGES, "cps"),
        {"messages": ORANGE, "samples": BLUE},
    )
    lateness = colored(
        series_panel(
            "Age of a window's fits",
            "From the window's end to the log's append time of its ClockFits.",
            queries.LATENESS,
            "ms",
        ),
        {"p50_ms": BLUE, "p99_ms": VERMILLION},
    )
    faults = colored(
        series_panel(
            "Late and refused messages", "Late ones count into the next window.", queries.FAULTS, "short"
        ),
        {"late": ORANGE, "rejected": VERMILLION},
    )
    nics = (
        table_panel(
            "Probers", "Lost batches are messages missing by their counter.", queries.NIC_TABLE, 10, 12
        )
        .override_by_name("largest_jump_ns", unit_override("ns"))
        .override_by_name(
            "nic",
            link_override(
                "its delays", "/d/fabrictime-delays?${__url_time_range}&var-nic=${__data.fields.nic}"
            ),
        )
    )
    return new_dashboard(
        "fabrictime-pipeline",
        "fabrictime: pipeline health",
        "From the probers to the published windows.",
        rates,
        series_panel("Lag", "Messages in the log that the map stage had not read yet.", queries.LAG, "short"),
        lateness,
        faults,
        nics,
        table_panel("Refused messages", "What could not be read, and why.", queries.REJECTS, 10, 12),
    )
