"""Builds the dashboard of one-way delays: pairs, paths and loss of the whole fleet."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

from grafana import queries
from grafana.panels import (
    ORANGE,
    VERMILLION,
    choice,
    fixed_color,
    heat_panel,
    link_override,
    new_dashboard,
    places,
    scaled_color,
    series_panel,
    stat_panel,
    table_panel,
    unit_override,
)


def delays() -> dashboard.Dashboard:
    """Return the dashboard of one-way delays: slow NIC pairs and paths, and loss."""
    pair_link = (
        "/d/fabrictime-delays?${__url_time_range}&var-nic=${__data.fields.nic}&var-peer=${__data.fields.peer}"
    )
    matrix = (
        table_panel(
            "p99 one-way delay, NIC by NIC",
            "Rows send, columns receive. Up to 4,096 pairs.",
            queries.PAIR_MATRIX,
            12,
            12,
        )
        .unit("ns")
        .color_scheme(scaled_color())
        .cell_options(
            common_models.TableColoredBackgroundCellOptions(
                mode=common_models.TableCellBackgroundDisplayMode.BASIC
            )
        )
        .with_transformation(
            models.DataTransformerConfig(
                id_val="groupingToMatrix",
                options={
                    "rowField": "nic",
                    "columnField": "peer",
                    "valueField": "p99_ns",
                    "emptyValue": "null",
                },
            )
        )
    )
    spread = heat_panel(
        "One-way delay, all samples",
        "How many samples took how long, sender to receiver, of the chosen NICs and peers.",
        queries.DELAY_SPREAD,
        "ns",
        12,
    )
    worst = (
        table_panel(
            "Slowest paths",
            "A path's worst window of the range. bound_ns: error of one-way figures.",
            queries.WORST_PATHS,
        )
        .override_by_regexp(".*_ns", unit_override("ns"))
        .override_by_name("loss", unit_override("percentunit"))
        .override_by_name("nic", link_override("this pair", pair_link))
    )
    return new_dashboard(
        "fabrictime-delays",
        "fabrictime: fleet delays",
        "True one-way delay of every pair and path.",
        stat_panel("Pairs measured", "Pairs of NICs with a window in range.", queries.PAIRS, "short"),
        stat_panel("Samples", "Samples with all four stamps, a second.", queries.SAMPLES, "cps"),
        stat_panel(
            "p99 of the fleet",
            "99% of all samples took less.",
            queries.FLEET_P99,
            "ns",
            {50_000: ORANGE, 200_000: VERMILLION},
        ),
        stat_panel(
            "Loss",
            "Requests without a reply.",
            queries.LOSS,
            "percentunit",
            {0.0001: ORANGE, 0.01: VERMILLION},
        ),
        matrix,
        spread,
        series_panel(
            "p99 of the slowest pairs", "The 20 slowest of the chosen pairs.", queries.PAIR_SERIES, "ns"
        ),
        series_panel(
            "p99 of the slowest paths",
            "The 20 slowest paths of these pairs: the path of "
            "a pair that is slow alone shares a link with others that are.",
            queries.PATH_SERIES,
            "ns",
        ),
        series_panel(
            "Loss", "Requests without a reply, of the chosen pairs.", queries.LOSS_SERIES, "percentunit", 24
        ).color_scheme(fixed_color(VERMILLION)),
        series_panel(
            "CE marks by class",
            "Share of the probes that a queue marked, of the chosen pairs, both directions.",
            queries.CE_SERIES,
            "percentunit",
        ),
        series_panel(
            "p99 by class",
            "The slowest path of each traffic class, of the chosen pairs.",
            queries.CLASS_SERIES,
            "ns",
        ),
        worst,
        variables=(
            *places(),
            choice("nic", "NIC", queries.NIC_VALUES),
            choice("peer", "Peer", queries.PEER_VALUES),
        ),
    )
