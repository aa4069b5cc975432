"""Builds the dashboard of audits: unfit hosts, failed checks with remedies, values that differ."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from grafana import audit_queries
from grafana.panels import (
    GREY,
    ORANGE,
    PURPLE,
    VERMILLION,
    color_override,
    colored,
    new_dashboard,
    page_link,
    series_panel,
    stacked_panel,
    stat_panel,
    table_panel,
)


def audit() -> dashboard.Dashboard:
    """Return the dashboard of audits: the newest result of each host and check, and results over time."""
    outcomes = (
        stacked_panel("Results that did not pass", "By outcome.", audit_queries.LEVEL_SERIES, "short")
        .override_by_regexp(".*ERROR.*", color_override(VERMILLION))
        .override_by_regexp(".*WARNING.*", color_override(ORANGE))
        .override_by_regexp(".*UNKNOWN.*", color_override(PURPLE))
    )
    hosts = colored(
        series_panel(
            "Hosts", "Audited, and those with at least one error.", audit_queries.UNFIT_SERIES, "short"
        ),
        {"unfit": VERMILLION, "audited": GREY},
    )
    return (
        new_dashboard(
            "fabrictime-audit",
            "fabrictime: audit",
            "Checks of hosts and fabric, and remedies.",
            stat_panel("Hosts audited", "Within the range.", audit_queries.HOSTS, "short"),
            stat_panel(
                "Hosts not fit",
                "At least one error in the newest results.",
                audit_queries.UNFIT_HOSTS,
                "short",
                {1: VERMILLION},
            ),
            stat_panel(
                "Errors", "Failed checks of severity error.", audit_queries.ERRORS, "short", {1: VERMILLION}
            ),
            stat_panel(
                "Not known",
                "Checks that could not be read; never counted as passed.",
                audit_queries.UNKNOWN,
                "short",
                {1: PURPLE},
            ),
            table_panel(
                "Failed checks",
                "Errors first, then warnings and unknown ones; with the number of hosts and the remedy.",
                audit_queries.FAILED_CHECKS,
                12,
            ),
            outcomes,
            hosts,
            table_panel(
                "Hosts by errors", "Newest result of each check.", audit_queries.HOST_TABLE, span=12
            ).override_by_name("host", page_link("this host on the page", "audit?run={run}&host={host}")),
            table_panel(
                "Values that differ across the fleet",
                "Texts such as versions that are not equal on all hosts.",
                audit_queries.UNLIKE_VALUES,
                span=12,
            ),
            table_panel("Findings", "Each host's newest results.", audit_queries.FINDINGS, 12),
        )
        .time("now-7d", "now")
        .refresh("1m")
    )
