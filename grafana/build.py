"""Builds the dashboards: `python -m grafana.build` writes the JSON in grafana/dashboards/.

The dashboards are for Grafana 11.6, made with its foundation SDK. The colours suit colour-blind readers
(Okabe and Ito's blue, orange and vermillion; viridis for heat), and no meaning depends on red against green.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog import builder as cogbuilder
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from grafana import queries
from grafana.datasource import PLUGIN, PLUGIN_VERSION, UID

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
VERMILLION: Final = "#D55E00"
SKY: Final = "#56B4E9"
PURPLE: Final = "#CC79A7"
GREY: Final = "#8B94A5"
TAG: Final = "fabrictime"
SOURCE: Final = models.DataSourceRef(type_val=PLUGIN, uid=UID)
TABLE_FORMAT: Final = 1
SERIES_FORMAT: Final = 0


class ClickHouseQuery(variants.Dataquery):
    """A target of the ClickHouse plugin: SQL as it stands, answered as series or as a table."""

    def __init__(self, sql: str, ref_id: str = "A", series: bool = False) -> None:
        self.sql = sql
        self.ref_id = ref_id
        self.series = series

    def to_json(self) -> dict[str, Any]:
        """Return the target as the plugin stores it."""
        return {
            "refId": self.ref_id,
            "datasource": {"type": PLUGIN, "uid": UID},
            "editorType": "sql",
            "queryType": "timeseries" if self.series else "table",
            "format": SERIES_FORMAT if self.series else TABLE_FORMAT,
            "rawSql": self.sql,
            "pluginVersion": PLUGIN_VERSION,
        }


class Query(cogbuilder.Builder[ClickHouseQuery]):
    """Builder of a `ClickHouseQuery`."""

    def __init__(self, sql: str, ref_id: str = "A", series: bool = False) -> None:
        self._query = ClickHouseQuery(sql, ref_id, series)

    def build(self) -> ClickHouseQuery:
        """Return the target."""
        return self._query


def _thresholds(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    made = [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _fixed(color: str) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(color)


def _scaled() -> dashboard.FieldColor:
    """Series coloured by their last value, from blue over yellow to red."""
    return dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_YL_RD)


def _stat(title: str, doc: str, sql: str, unit: str, *steps: tuple[float | None, str]) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .description(doc)
        .datasource(SOURCE)
        .height(4)
        .span(6)
        .unit(unit)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .thresholds(_thresholds(*(steps or ((None, BLUE),))))
        .with_target(Query(sql))
    )


def _lines(title: str, doc: str, sql: str, unit: str, span: int = 12) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(title)
        .description(doc)
        .datasource(SOURCE)
        .height(9)
        .span(span)
        .unit(unit)
        .color_scheme(_scaled())
        .line_width(1)
        .fill_opacity(0)
        .show_points(common_models.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        .with_target(Query(sql, series=True))
    )


def _color_override(color: str) -> list[models.DynamicConfigValue]:
    return [models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})]


def _unit_override(unit: str) -> list[models.DynamicConfigValue]:
    return [models.DynamicConfigValue(id_val="unit", value=unit)]


def _link_override(title: str, url: str) -> list[models.DynamicConfigValue]:
    return [
        models.DynamicConfigValue(id_val="links", value=[{"title": title, "url": url, "targetBlank": False}])
    ]


def _table(title: str, doc: str, sql: str, height: int = 10, span: int = 24) -> table.Panel:
    return (
        table.Panel()
        .title(title)
        .description(doc)
        .datasource(SOURCE)
        .height(height)
        .span(span)
        .color_scheme(_fixed(BLUE))
        .filterable(True)
        .with_target(Query(sql))
    )


def _values(name: str, label: str, sql: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(sql)
        .multi(True)
        .include_all(True)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .current(models.VariableOption(text="All", value="$__all"))
    )


def _board(uid: str, title: str, doc: str) -> dashboard.Dashboard:
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(doc)
        .tags([TAG])
        .timezone("browser")
        .refresh("5s")
        .time("now-15m", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink(TAG)
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .include_vars(False)
            .keep_time(True)
        )
    )


def delays() -> dashboard.Dashboard:
    """Fleet delays: one-way delays, slow pairs and paths, loss."""
    pair_link = (
        "/d/fabrictime-delays?${__url_time_range}&var-nic=${__data.fields.nic}&var-peer=${__data.fields.peer}"
    )
    matrix = (
        _table(
            "p99 one-way delay, NIC by NIC",
            "Rows send, columns receive. Up to 4,096 pairs.",
            queries.PAIR_MATRIX,
            12,
            12,
        )
        .unit("ns")
        .color_scheme(_scaled())
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
    spread = (
        heatmap.Panel()
        .title("One-way delay, all samples")
        .description("How many samples took how long, sender to receiver, of the chosen NICs and peers.")
        .datasource(SOURCE)
        .height(12)
        .span(12)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Viridis")
            .steps(64)
            .reverse(False)
            .exponent(0.5)
            .fill(BLUE)
        )
        .y_axis(heatmap.YAxisConfig().unit("ns"))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.LE))
        .with_target(Query(queries.DELAY_SPREAD, series=True))
    )
    worst = (
        _table(
            "Slowest paths",
            "A path's worst window of the range. bound_ns: error of one-way figures.",
            queries.WORST_PATHS,
        )
        .override_by_regexp(".*_ns", _unit_override("ns"))
        .override_by_name("loss", _unit_override("percentunit"))
        .override_by_name("nic", _link_override("this pair", pair_link))
    )
    return (
        _board("fabrictime-delays", "fabrictime: fleet delays", "True one-way delay of every pair and path.")
        .with_variable(_values("nic", "NIC", queries.NIC_VALUES))
        .with_variable(_values("peer", "Peer", queries.PEER_VALUES))
        .with_panel(_stat("Pairs measured", "Pairs of NICs with a window in range.", queries.PAIRS, "short"))
        .with_panel(_stat("Samples", "Samples with all four stamps, a second.", queries.SAMPLES, "cps"))
        .with_panel(
            _stat(
                "p99 of the fleet",
                "99% of all samples took less.",
                queries.FLEET_P99,
                "ns",
                (None, BLUE),
                (50_000, ORANGE),
                (200_000, VERMILLION),
            )
        )
        .with_panel(
            _stat(
                "Loss",
                "Requests without a reply.",
                queries.LOSS,
                "percentunit",
                (None, BLUE),
                (0.0001, ORANGE),
                (0.01, VERMILLION),
            )
        )
        .with_panel(matrix)
        .with_panel(spread)
        .with_panel(
            _lines(
                "p99 of the slowest pairs", "The 20 slowest of the chosen pairs.", queries.PAIR_SERIES, "ns"
            )
        )
        .with_panel(
            _lines(
                "p99 of the slowest paths",
                "The 20 slowest paths of these pairs: the path of "
                "a pair that is slow alone shares a link with others that are.",
                queries.PATH_SERIES,
                "ns",
            )
        )
        .with_panel(
            _lines(
                "Loss",
                "Requests without a reply, of the chosen pairs.",
                queries.LOSS_SERIES,
                "percentunit",
                24,
            ).color_scheme(_fixed(VERMILLION))
        )
        .with_panel(worst)
    )


def clocks() -> dashboard.Dashboard:
    """Clocks: offset and bound of each clock."""
    states = (
        _stat("Clocks", "By the state of their newest window.", queries.CLOCK_COUNT, "short")
        .span(12)
        .override_by_name("synced", _color_override(BLUE))
        .override_by_name("holdover", _color_override(ORANGE))
        .override_by_name("unsynced", _color_override(VERMILLION))
    )
    band = (
        _lines(
            "Error bound of the chosen clocks",
            "The true error is below its bound 99.9% of the time.",
            queries.CLOCK_BAND,
            "ns",
        )
        .override_by_name("bound_max_ns", _color_override(VERMILLION))
        .override_by_name("bound_p50_ns", _color_override(BLUE))
        .override_by_name("residual_ns", _color_override(SKY))
    )
    listed = (
        _table("Clocks", "Newest window of each clock.", queries.CLOCK_TABLE)
        .override_by_regexp(".*_ns", _unit_override("ns"))
        .override_by_regexp(".*_ppb", _unit_override("suffix: ppb"))
        .override_by_name(
            "clock",
            _link_override(
                "this clock", "/d/fabrictime-clocks?${__url_time_range}&var-clock=${__data.fields.clock}"
            ),
        )
    )
    spread = (
        _lines(
            "Error bound of all clocks",
            "The true error is below its bound 99.9% of the time. Without UNSYNCED clocks.",
            queries.BOUND_SPREAD,
            "ns",
        )
        .override_by_name("p50_ns", _color_override(BLUE))
        .override_by_name("p99_ns", _color_override(ORANGE))
        .override_by_name("widest_ns", _color_override(VERMILLION))
    )
    counted = (
        _lines(
            "Clocks by state",
            "A clock counts with its worst state of each interval.",
            queries.CLOCK_STATES,
            "short",
        )
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        .fill_opacity(60)
        .override_by_name("synced", _color_override(BLUE))
        .override_by_name("holdover", _color_override(ORANGE))
        .override_by_name("unsynced", _color_override(VERMILLION))
    )
    rows = (
        statetimeline.Panel()
        .title("States of the clocks with most trouble")
        .description("Worst state of each interval.")
        .datasource(SOURCE)
        .height(9)
        .span(12)
        .unit("short")
        .color_scheme(_fixed(BLUE))
        .show_value(common_models.VisibilityMode.NEVER)
        .row_height(0.8)
        .merge_values(True)
        .mappings(
            [
                models.ValueMap(
                    options={
                        "0": models.ValueMappingResult(text="UNSYNCED", color=VERMILLION, index=0),
                        "1": models.ValueMappingResult(text="HOLDOVER", color=ORANGE, index=1),
                        "2": models.ValueMappingResult(text="SYNCED", color=BLUE, index=2),
                    }
                )
            ]
        )
        .with_target(Query(queries.STATE_ROWS, series=True))
    )
    events = (
        _table(
            "Events",
            "Events of the windows: NEW, STEP, RATE_CHANGE, FALSETICKER (rms of what its pairs "
            "contradict), MERGED. At most 100 of a kind.",
            queries.CLOCK_EVENTS,
            10,
            12,
        )
        .override_by_name("moved_ns", _unit_override("ns"))
        .override_by_name("rate_ppb", _unit_override("suffix: ppb"))
    )
    suspects = (
        _table(
            "Suspect pairs",
            "Pairs that contradict the loops they are part of: the path out is slower "
            "than back by twice the asymmetry. weight: share of its vote that the solve left it.",
            queries.SUSPECTS,
            10,
            12,
        )
        .override_by_regexp(".*_ns", _unit_override("ns"))
        .override_by_name("weight", _unit_override("percentunit"))
    )
    residuals = (
        _lines(
            "Residuals of all clocks",
            "rms of the residuals of a clock's pairs after the mesh is solved.",
            queries.RESIDUAL_SPREAD,
            "ns",
        )
        .override_by_name("p50_ns", _color_override(BLUE))
        .override_by_name("p99_ns", _color_override(ORANGE))
        .override_by_name("worst_ns", _color_override(VERMILLION))
    )
    return (
        _board("fabrictime-clocks", "fabrictime: clocks", "Every clock's offset, its bound, and the mesh.")
        .with_variable(_values("clock", "Clock", queries.CLOCK_VALUES))
        .with_panel(states)
        .with_panel(
            _stat(
                "Largest bound",
                "Of the clocks that are not UNSYNCED.",
                queries.WORST_BOUND,
                "ns",
                (None, BLUE),
                (1_000, ORANGE),
                (10_000, VERMILLION),
            )
        )
        .with_panel(
            _stat(
                "Suspect pairs",
                "Whose path looks asymmetric in the newest window.",
                queries.SUSPECT_COUNT,
                "short",
                (None, BLUE),
                (1, ORANGE),
            )
        )
        .with_panel(spread)
        .with_panel(counted)
        .with_panel(residuals)
        .with_panel(rows)
        .with_panel(events)
        .with_panel(suspects)
        .with_panel(
            _lines(
                "Residuals of the worst clocks",
                "The 20 largest of the chosen clocks.",
                queries.WORST_RESIDUALS,
                "ns",
            )
        )
        .with_panel(
            _lines("Asymmetry of the worst suspects", "The 20 largest.", queries.SUSPECT_SERIES, "ns")
        )
        .with_panel(
            _lines(
                "Offset since the range's start",
                "How far each clock's offset moved.",
                queries.CLOCK_OFFSETS,
                "ns",
            )
        )
        .with_panel(_lines("Error bound by clock", "", queries.CLOCK_BOUNDS, "ns"))
        .with_panel(
            _lines(
                "Drift",
                "Rate of each clock against fabric time, in parts per billion.",
                queries.CLOCK_DRIFT,
                "suffix: ppb",
            )
        )
        .with_panel(band)
        .with_panel(listed)
    )


def pipeline() -> dashboard.Dashboard:
    """Pipeline health: input, backlog, rejects."""
    rates = (
        _lines("Messages and samples a second", "As the map stage read them.", queries.MESSAGES, "cps")
        .override_by_name("messages", _color_override(ORANGE))
        .override_by_name("samples", _color_override(BLUE))
    )
    lateness = (
        _lines(
            "Age of a window's fits",
            "From the window's end to the log's append time of its ClockFits.",
            queries.LATENESS,
            "ms",
        )
        .override_by_name("p50_ms", _color_override(BLUE))
        .override_by_name("p99_ms", _color_override(VERMILLION))
    )
    faults = (
        _lines("Late and refused messages", "Late ones count into the next window.", queries.FAULTS, "short")
        .override_by_name("late", _color_override(ORANGE))
        .override_by_name("rejected", _color_override(VERMILLION))
    )
    nics = (
        _table("Probers", "Lost batches are messages missing by their counter.", queries.NIC_TABLE, 10, 12)
        .override_by_name("clock_jump_ns", _unit_override("ns"))
        .override_by_name(
            "nic",
            _link_override(
                "its delays", "/d/fabrictime-delays?${__url_time_range}&var-nic=${__data.fields.nic}"
            ),
        )
    )
    return (
        _board(
            "fabrictime-pipeline", "fabrictime: pipeline health", "From the probers to the published windows."
        )
        .with_panel(rates)
        .with_panel(
            _lines("Lag", "Messages in the log that the map stage had not read yet.", queries.LAG, "short")
        )
        .with_panel(lateness)
        .with_panel(faults)
        .with_panel(nics)
        .with_panel(_table("Refused messages", "What could not be read, and why.", queries.REJECTS, 10, 12))
    )


def fabric() -> dashboard.Dashboard:
    """The fabric: dead and flapping links, queues, contention, alerts, and the flows concerned."""
    states = (
        _stat(
            "In trouble",
            "Cables, NICs and hosts by the state of the range's end.",
            queries.LINK_COUNT,
            "short",
        )
        .override_by_name("down", _color_override(VERMILLION))
        .override_by_name("flapping", _color_override(PURPLE))
        .override_by_name("grey", _color_override(ORANGE))
    )
    rows = (
        statetimeline.Panel()
        .title("Links with most trouble")
        .description("Worst state of each interval.")
        .datasource(SOURCE)
        .height(9)
        .span(14)
        .unit("short")
        .color_scheme(_fixed(BLUE))
        .show_value(common_models.VisibilityMode.NEVER)
        .row_height(0.8)
        .merge_values(True)
        .mappings(
            [
                models.ValueMap(
                    options={
                        "0": models.ValueMappingResult(text="UNKNOWN", color=GREY, index=0),
                        "1": models.ValueMappingResult(text="UP", color=BLUE, index=1),
                        "2": models.ValueMappingResult(text="GREY", color=ORANGE, index=2),
                        "3": models.ValueMappingResult(text="FLAPPING", color=PURPLE, index=3),
                        "4": models.ValueMappingResult(text="DOWN", color=VERMILLION, index=4),
                    }
                )
            ]
        )
        .with_target(Query(queries.LINK_ROWS, series=True))
    )
    spread = (
        heatmap.Panel()
        .title("Queues of all links")
        .description("How many links had which deepest queue, in bytes.")
        .datasource(SOURCE)
        .height(10)
        .span(12)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Viridis")
            .steps(64)
            .reverse(False)
            .exponent(0.5)
            .fill(BLUE)
        )
        .y_axis(heatmap.YAxisConfig().unit("decbytes"))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.LE))
        .with_target(Query(queries.QUEUE_SPREAD, series=True))
    )
    contention = (
        _table(
            "Contention",
            "Where a queue stood, why, and whose flows met there; the standing ones first, "
            "then the heaviest (bytes over the threshold times seconds).",
            queries.CONTENTION_TABLE,
        )
        .override_by_regexp(".*_ns", _unit_override("ns"))
        .override_by_name("depth_peak_bytes", _unit_override("decbytes"))
        .override_by_name("over_byte_s", _unit_override("suffix: B s"))
    )
    flows = (
        _table("Heaviest flows", "Mean rate over the range.", queries.FLOW_TABLE)
        .override_by_name("rate_bps", _unit_override("bps"))
        .override_by_name("rtt_ns", _unit_override("ns"))
    )
    return (
        _board("fabrictime-fabric", "fabrictime: fabric", "Links, queues, contention and alerts.")
        .with_panel(states)
        .with_panel(
            _stat(
                "Flaps",
                "Times that a link went down within the range.",
                queries.FLAP_COUNT,
                "short",
                (None, BLUE),
                (1, ORANGE),
                (9, VERMILLION),
            )
        )
        .with_panel(
            _stat(
                "Contention now",
                "Queues that stand.",
                queries.CONTENTION_COUNT,
                "short",
                (None, BLUE),
                (1, ORANGE),
            )
        )
        .with_panel(
            _stat(
                "Standing alerts",
                "Raised and not cleared.",
                queries.ALERT_COUNT,
                "short",
                (None, BLUE),
                (1, VERMILLION),
            )
        )
        .with_panel(rows)
        .with_panel(
            _lines(
                "Flaps", "Times that a link went down, the 20 with most.", queries.FLAP_SERIES, "short", 10
            )
        )
        .with_panel(
            _table(
                "Links in trouble", "What was not UP within the range, as last judged.", queries.LINK_TABLE
            )
        )
        .with_panel(spread)
        .with_panel(
            _lines(
                "Deepest queues",
                "Mean depth of a window; the 20 deepest links.",
                queries.QUEUE_SERIES,
                "decbytes",
            ).height(10)
        )
        .with_panel(
            _lines(
                "Busiest links",
                "Share of the time that a link sends; the 20 busiest.",
                queries.LOAD_SERIES,
                "percentunit",
            )
        )
        .with_panel(_lines("Contention windows opened", "By kind.", queries.CONTENTION_SERIES, "short"))
        .with_panel(contention)
        .with_panel(_table("Alerts", "Standing ones first.", queries.ALERT_TABLE))
        .with_panel(flows)
    )


def actions() -> dashboard.Dashboard:
    """Actions: decisions with cause, outcome and duration."""
    reasons = (
        _lines("Decisions by reason", "How many a step of the picture.", queries.DECISION_SERIES, "short")
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        .fill_opacity(60)
        .override_by_regexp(".*DOWN.*", _color_override(VERMILLION))
        .override_by_regexp(".*GREY.*", _color_override(ORANGE))
        .override_by_regexp(".*HEALED.*", _color_override(SKY))
        .override_by_regexp(".*COLLISION.*", _color_override(BLUE))
        .override_by_regexp(".*INCAST.*", _color_override(PURPLE))
    )
    outcomes = (
        _lines(
            "What came of them",
            "Reports of actuators: APPLIED and LOCAL_REPAIR were done, the rest was not.",
            queries.OUTCOME_SERIES,
            "short",
        )
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        .fill_opacity(60)
        .override_by_regexp(".*APPLIED.*", _color_override(BLUE))
        .override_by_regexp(".*LOCAL_REPAIR.*", _color_override(PURPLE))
        .override_by_regexp(".*OBSERVED.*", _color_override(SKY))
        .override_by_regexp(".*FAILED.*", _color_override(VERMILLION))
        .override_by_regexp(
            ".*(LIMITED|STALE|EXPIRED|NOT_ALLOWED|OLD_CONFIG|NO_FLOW).*", _color_override(ORANGE)
        )
        .override_by_regexp(".*(DUPLICATE|ENDED|REVERTED).*", _color_override(GREY))
    )
    taken = (
        _lines(
            "Time taken",
            "From the decision until the actuator had done, and the effector's part of it.",
            queries.TAKEN_SERIES,
            "ns",
        )
        .override_by_name("p50_ns", _color_override(BLUE))
        .override_by_name("p99_ns", _color_override(VERMILLION))
        .override_by_name("effector_p99_ns", _color_override(SKY))
    )
    listed = (
        _table("Decisions", "The newest, each with all that was reported of it.", queries.DECISION_TABLE, 12)
        .override_by_name("effector_ns", _unit_override("ns"))
        .override_by_name("held_to_bps", _unit_override("bps"))
    )
    return (
        _board("fabrictime-actions", "fabrictime: actions", "Decisions about flows, and their outcomes.")
        .with_panel(_stat("Decisions", "Made within the range.", queries.DECISION_COUNT, "short"))
        .with_panel(_stat("Done", "Of those that an actuator answered.", queries.DONE_SHARE, "percentunit"))
        .with_panel(
            _stat(
                "Decision to done, p99",
                "99% of the actions took less.",
                queries.TAKEN_P99,
                "ns",
                (None, BLUE),
                (20_000_000, ORANGE),
                (100_000_000, VERMILLION),
            ).span(12)
        )
        .with_panel(reasons)
        .with_panel(outcomes)
        .with_panel(taken)
        .with_panel(
            _lines(
                "By which means",
                "Moved sockets, changed ports, pacing and so on.",
                queries.MEANS_SERIES,
                "short",
            )
        )
        .with_panel(listed)
        .with_panel(
            _table(
                "Flows with most decisions",
                "A flow that comes again and again is worth a look.",
                queries.MAX_MOVED,
            )
        )
    )


DASHBOARDS: Final[Mapping[str, Callable[[], dashboard.Dashboard]]] = {
    "fabrictime-delays": delays,
    "fabrictime-clocks": clocks,
    "fabrictime-pipeline": pipeline,
    "fabrictime-fabric": fabric,
    "fabrictime-actions": actions,
}
"""Builder of each dashboard by its uid."""


def made(uid: str) -> str:
    """Return the JSON text of a dashboard. Raises KeyError for an unknown uid."""
    return (
        json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(DASHBOARDS[uid]().build())), indent=1) + "\n"
    )


def committed(uid: str) -> dict[str, Any]:
    """Return a dashboard as it stands in grafana/dashboards/."""
    loaded: dict[str, Any] = json.loads((FOLDER / f"{uid}.json").read_text(encoding="utf-8"))
    return loaded


def main() -> int:
    """Write all dashboards. Returns the exit code."""
    for uid in DASHBOARDS:
        path = FOLDER / f"{uid}.json"
        path.write_text(made(uid), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
