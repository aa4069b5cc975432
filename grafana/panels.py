"""Builders of the panels that the dashboards use: figures, time series, tables, heat maps, states.

The dashboards are for Grafana 11.6, built with its foundation SDK. The colours suit colour-blind readers
(Okabe and Ito's blue, orange and vermillion; viridis for heat): nothing depends on telling red from green.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from grafana import queries
from grafana.dashboard_files import PAGE, PAGE_URL
from grafana.datasource import PLUGIN, UID, target

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
VERMILLION: Final = "#D55E00"
SKY: Final = "#56B4E9"
PURPLE: Final = "#CC79A7"
GREY: Final = "#8B94A5"
TAG: Final = "fabrictime"
SOURCE: Final = models.DataSourceRef(type_val=PLUGIN, uid=UID)

Override = list[models.DynamicConfigValue]
Colored = TypeVar("Colored", stat.Panel, timeseries.Panel)
Panel = TypeVar("Panel", stat.Panel, timeseries.Panel, table.Panel, heatmap.Panel, statetimeline.Panel)


class ClickHouseQuery(variants.Dataquery):
    """A panel's query for the ClickHouse plugin: raw SQL, whose result is read as series or as a table."""

    def __init__(self, sql: str, ref_id: str = "A", series: bool = False) -> None:
        self.sql = sql
        self.ref_id = ref_id
        self.series = series

    def to_json(self) -> dict[str, Any]:
        """Return the query in the plugin's stored format."""
        return target(self.sql, self.ref_id, self.series)


class Query(Builder[ClickHouseQuery]):
    """Builder of a `ClickHouseQuery`."""

    def __init__(self, sql: str, ref_id: str = "A", series: bool = False) -> None:
        self._query = ClickHouseQuery(sql, ref_id, series)

    def build(self) -> ClickHouseQuery:
        """Return the built query."""
        return self._query


class Marks(Builder[models.AnnotationQuery]):
    """Builder of annotations in all panels, from rows of time, timeEnd, title, text and tags."""

    def __init__(self, name: str, sql: str, color: str) -> None:
        self._query = models.AnnotationQuery(name=name, datasource=SOURCE, enable=True, icon_color=color)
        query: Any = ClickHouseQuery(sql, "Anno")  # the SDK knows only the target of Grafana's own marks
        self._query.target = query

    def build(self) -> models.AnnotationQuery:
        """Return the query of the annotations."""
        return self._query


def _framed(panel: Panel, title: str, doc: str, query: Query, height: int, span: int) -> Panel:
    return panel.title(title).description(doc).datasource(SOURCE).height(height).span(span).with_target(query)


def fixed_color(color: str) -> dashboard.FieldColor:
    """Return a colour option that gives all values the same colour."""
    return dashboard.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(color)


def scaled_color() -> dashboard.FieldColor:
    """Return a colour option that colours a series by its last value, from blue over yellow to red."""
    return dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_YL_RD)


def stat_panel(
    title: str, doc: str, sql: str, unit: str, colors: Mapping[float | None, str] | None = None
) -> stat.Panel:
    """Return a panel with a single figure.

    `colors` maps each lower limit to the colour from there on; figures below all limits are blue.
    """
    steps = [
        models.Threshold(value=value, color=color) for value, color in {None: BLUE, **(colors or {})}.items()
    ]
    return (
        _framed(stat.Panel(), title, doc, Query(sql), 4, 6)
        .unit(unit)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    )


def series_panel(title: str, doc: str, sql: str, unit: str, span: int = 12) -> timeseries.Panel:
    """Return a panel of time series, with a line for each label in the query's result."""
    return (
        _framed(timeseries.Panel(), title, doc, Query(sql, series=True), 9, span)
        .unit(unit)
        .color_scheme(scaled_color())
        .line_width(1)
        .fill_opacity(0)
        .show_points(common_models.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )


def colored(panel: Colored, colors: Mapping[str, str]) -> Colored:
    """Return the panel with a colour for each series; `colors` maps the series' name to its colour."""
    for name, color in colors.items():
        panel = panel.override_by_name(name, color_override(color))
    return panel


def stacked_panel(title: str, doc: str, sql: str, unit: str) -> timeseries.Panel:
    """Return a panel of time series that are stacked as filled areas, so that their values add up."""
    return (
        series_panel(title, doc, sql, unit)
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        .fill_opacity(60)
    )


def color_override(color: str) -> Override:
    """Return the override that sets a field's colour."""
    return [models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})]


def unit_override(unit: str) -> Override:
    """Return the override that sets a field's unit."""
    return [models.DynamicConfigValue(id_val="unit", value=unit)]


def link_override(title: str, url: str) -> Override:
    """Return the override that links a field's values to another page."""
    return [
        models.DynamicConfigValue(id_val="links", value=[{"title": title, "url": url, "targetBlank": False}])
    ]


def table_panel(title: str, doc: str, sql: str, height: int = 10, span: int = 24) -> table.Panel:
    """Return a panel with a table whose columns can be filtered."""
    return (
        _framed(table.Panel(), title, doc, Query(sql), height, span)
        .color_scheme(fixed_color(BLUE))
        .filterable(True)
    )


def heat_panel(title: str, doc: str, sql: str, unit: str, height: int) -> heatmap.Panel:
    """Return a heat map of how many observations fell into each bucket of a value, over time."""
    return (
        _framed(heatmap.Panel(), title, doc, Query(sql, series=True), height, 12)
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
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.LE))
    )


def state_panel(title: str, sql: str, span: int, states: Sequence[tuple[str, str]]) -> statetimeline.Panel:
    """Return a timeline of states, one row per subject; `states` has (name, colour) of states 0, 1, ..."""
    options = {
        str(number): models.ValueMappingResult(text=name, color=color, index=number)
        for number, (name, color) in enumerate(states)
    }
    return (
        _framed(
            statetimeline.Panel(), title, "Worst state of each interval.", Query(sql, series=True), 9, span
        )
        .unit("short")
        .color_scheme(fixed_color(BLUE))
        .show_value(common_models.VisibilityMode.NEVER)
        .row_height(0.8)
        .merge_values(True)
        .mappings([models.ValueMap(options=options)])
    )


def page_link(title: str, path: str) -> Override:
    """Return the override that links a field's values to the live page at the end of the time range.

    `path` is the tab with its parameters. `{name}` stands for a column of the same row, `{name:raw}` for a
    column that holds parameters.
    """
    address = re.sub(r"\{(\w+)\}", r"${__data.fields.\1:percentencode}", path)
    address = re.sub(r"\{(\w+):raw\}", r"${__data.fields.\1:raw}", address)
    return link_override(title, f"${{page}}/{address}&at=${{__to:date:iso}}")


def hidden() -> Override:
    """Return the override that hides a column which exists only for links."""
    return [models.DynamicConfigValue(id_val="custom.hidden", value=True)]


def choice(name: str, label: str, sql: str) -> dashboard.QueryVariable:
    """Return a dashboard variable with the values that `sql` returns, of which viewers select some or all.

    The default, all, is sent as the empty text (see `queries.chosen`), so that a query does not grow with the
    fleet.
    """
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(sql)
        .multi(True)
        .include_all(True)
        .all_value("''")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .current(models.VariableOption(text="All", value="$__all"))
    )


def places() -> tuple[dashboard.QueryVariable, ...]:
    """Return the variables for rack and rail, which filter the NICs, clocks and links of a dashboard."""
    return choice("rack", "Rack", queries.RACK_VALUES), choice("rail", "Rail", queries.RAIL_VALUES)


def new_dashboard(
    uid: str,
    title: str,
    doc: str,
    *panels: Builder[models.Panel],
    variables: Sequence[dashboard.QueryVariable] = (),
) -> dashboard.Dashboard:
    """Return a dashboard with these panels, annotations, and links to the page and the other dashboards."""
    board = (
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
        .link(
            dashboard.DashboardLink("live page")
            .type(models.DashboardLinkType.LINK)
            .url("${page}/now?at=${__to:date:iso}")
            .tooltip("The live page as it was at the end of this range.")
            .icon("external link")
            .target_blank(True)
        )
        .annotation(Marks("Alerts", queries.ALERT_MARKS, VERMILLION))
        .annotation(Marks("Actions", queries.ACTION_MARKS, BLUE))
        .with_variable(dashboard.TextBoxVariable(PAGE).label("Live page").default_value(PAGE_URL))
    )
    for variable in variables:
        board = board.with_variable(variable)
    for panel in panels:
        board = board.with_panel(panel)
    return board
