"""Builds the dashboard of actions: decisions, their reasons, outcomes and durations."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from grafana import queries
from grafana.panels import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    color_override,
    colored,
    new_dashboard,
    page_link,
    series_panel,
    stacked_panel,
    stat_panel,
    table_panel,
    unit_override,
)


def actions() -> dashboard.Dashboard:
    """Return the dashboard of actions: decisions with cause, outcome and duration."""
    reasons = (
        stacked_panel(
            "Decisions by reason", "How many a step of the picture.", queries.DECISION_SERIES, "short"
        )
        .override_by_regexp(".*DOWN.*", color_override(VERMILLION))
        .override_by_regexp(".*GREY.*", color_override(ORANGE))
        .override_by_regexp(".*HEALED.*", color_override(SKY))
        .override_by_regexp(".*COLLISION.*", color_override(BLUE))
        .override_by_regexp(".*INCAST.*", color_override(PURPLE))
    )
    outcomes = (
        stacked_panel(
            "What came of them",
            "Reports of actuators: APPLIED and LOCAL_REPAIR were done, the rest was not.",
            queries.OUTCOME_SERIES,
            "short",
        )
        .override_by_regexp(".*APPLIED.*", color_override(BLUE))
        .override_by_regexp(".*LOCAL_REPAIR.*", color_override(PURPLE))
        .override_by_regexp(".*OBSERVED.*", color_override(SKY))
        .override_by_regexp(".*FAILED.*", color_override(VERMILLION))
        .override_by_regexp(
            ".*(LIMITED|STALE|EXPIRED|NOT_ALLOWED|OLD_CONFIG|NO_FLOW).*", color_override(ORANGE)
        )
        .override_by_regexp(".*(DUPLICATE|ENDED|REVERTED).*", color_override(GREY))
    )
    duration_panel = colored(
        series_panel(
            "Time taken",
            "From the decision until the actuator had done, and the effector's part of it.",
            queries.TAKEN_SERIES,
            "ns",
        ),
        {"p50_ns": BLUE, "p99_ns": VERMILLION, "effector_p99_ns": SKY},
    )
    listed = (
        table_panel(
            "Decisions", "The newest, each with all that was reported of it.", queries.DECISION_TABLE, 12
        )
        .override_by_name("effector_ns", unit_override("ns"))
        .override_by_name("held_to_bps", unit_override("bps"))
        .override_by_name("flow", page_link("this flow on the page", "actions?flow={flow}"))
    )
    return new_dashboard(
        "fabrictime-actions",
        "fabrictime: actions",
        "Decisions about flows, and their outcomes.",
        stat_panel("Decisions", "Made within the range.", queries.DECISION_COUNT, "short"),
        stat_panel("Done", "Of those that an actuator answered.", queries.DONE_SHARE, "percentunit"),
        stat_panel(
            "Decision to done, p99",
            "99% of the actions took less.",
            queries.TAKEN_P99,
            "ns",
            {20_000_000: ORANGE, 100_000_000: VERMILLION},
        ).span(12),
        reasons,
        outcomes,
        duration_panel,
        series_panel(
            "By which means", "Moved sockets, changed ports, pacing and so on.", queries.MEANS_SERIES, "short"
        ),
        listed,
        table_panel(
            "Flows with most decisions",
            "A flow that comes again and again is worth a look.",
            queries.MAX_MOVED,
        ),
    )
