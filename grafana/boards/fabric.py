"""Builds the dashboard of the fabric: links, queues, contention, alerts and the heaviest flows."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from grafana import queries
from grafana.panels import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    VERMILLION,
    choice,
    colored,
    heat_panel,
    hidden,
    link_override,
    new_dashboard,
    page_link,
    places,
    series_panel,
    stat_panel,
    state_panel,
    table_panel,
    unit_override,
)


def fabric() -> dashboard.Dashboard:
    """Return the dashboard of the fabric: dead and flapping links, queues, contention, alerts, flows."""
    states = colored(
        stat_panel(
            "In trouble",
            "Cables, NICs and hosts by the state of the range's end.",
            queries.LINK_COUNT,
            "short",
        ),
        {"down": VERMILLION, "flapping": PURPLE, "grey": ORANGE},
    )
    rows = state_panel(
        "Links with most trouble",
        queries.LINK_ROWS,
        14,
        (("UNKNOWN", GREY), ("UP", BLUE), ("GREY", ORANGE), ("FLAPPING", PURPLE), ("DOWN", VERMILLION)),
    )
    spread = heat_panel(
        "Queues of all links",
        "How many links had which deepest queue, in bytes.",
        queries.QUEUE_SPREAD,
        "decbytes",
        10,
    )
    contention = (
        table_panel(
            "Contention",
            "Where a queue stood, why, and whose flows met there; the standing ones first, "
            "then the heaviest (bytes over the threshold times seconds).",
            queries.CONTENTION_TABLE,
        )
        .override_by_regexp(".*_ns", unit_override("ns"))
        .override_by_name("depth_peak_bytes", unit_override("decbytes"))
        .override_by_name("over_byte_s", unit_override("suffix: B s"))
        .override_by_name("ce_share", unit_override("percentunit"))
        .override_by_name("window_id", hidden())
        .override_by_name("link", page_link("this queue on the page", "contention?window={window_id}"))
    )
    links = (
        table_panel(
            "Links in trouble",
            "Subjects that were not UP within the range, with their last state.",
            queries.LINK_TABLE,
        )
        .override_by_name("opens", hidden())
        .override_by_name("subject", page_link("this link on the page", "fabric?{opens:raw}"))
    )
    alerts = (
        table_panel("Alerts", "Standing ones first.", queries.ALERT_TABLE)
        .override_by_name("alert_id", hidden())
        .override_by_name("text", page_link("this alert on the page", "alerts?alert={alert_id}"))
    )
    flows = (
        table_panel("Heaviest flows", "Mean rate over the range.", queries.FLOW_TABLE)
        .override_by_name("rate_bps", unit_override("bps"))
        .override_by_name("rtt_ns", unit_override("ns"))
        .override_by_name(
            "job",
            link_override("this job", "/d/fabrictime-jobs?${__url_time_range}&var-job=${__data.fields.job}"),
        )
    )
    return new_dashboard(
        "fabrictime-fabric",
        "fabrictime: fabric",
        "Links, queues, contention and alerts.",
        states,
        stat_panel(
            "Flaps",
            "Times that a link went down within the range.",
            queries.FLAP_COUNT,
            "short",
            {1: ORANGE, 9: VERMILLION},
        ),
        stat_panel("Contention now", "Queues that stand.", queries.CONTENTION_COUNT, "short", {1: ORANGE}),
        stat_panel(
            "Standing alerts", "Raised and not cleared.", queries.ALERT_COUNT, "short", {1: VERMILLION}
        ),
        rows,
        series_panel(
            "Flaps", "Times that a link went down, the 20 with most.", queries.FLAP_SERIES, "short", 10
        ),
        links,
        spread,
        series_panel(
            "Deepest queues",
            "Mean depth of a window; the 20 deepest links.",
            queries.QUEUE_SERIES,
            "decbytes",
        ).height(10),
        series_panel(
            "Busiest links",
            "Share of the time that a link sends; the 20 busiest.",
            queries.LOAD_SERIES,
            "percentunit",
        ),
        series_panel("Contention windows opened", "By kind.", queries.CONTENTION_SERIES, "short"),
        contention,
        alerts,
        flows,
        variables=(*places(), choice("link", "Link", queries.LINK_VALUES)),
    )
