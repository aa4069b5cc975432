"""Panels: their target as the plugin stores it, units, thresholds, and links between dashboards."""

import json
import re

import pytest

from grafana import build, panels, queries


def text(uid):
    return json.dumps(build.made(uid))


@pytest.mark.parametrize(("series", "kind", "number"), [(True, "timeseries", 0), (False, "table", 1)])
def test_a_target_is_answered_as_series_or_as_a_table(series, kind, number):
    target = panels.Query("SELECT 1", "B", series).build().to_json()
    assert (target["queryType"], target["format"], target["refId"]) == (kind, number, "B")
    assert target["rawSql"] == "SELECT 1"


def test_a_figure_changes_its_colour_from_each_value_on():
    steps = ((None, panels.BLUE), (5.0, panels.ORANGE))
    panel = panels.stat_panel("Lag", "Messages.", "SELECT 1", "short", {5.0: panels.ORANGE}).build()
    thresholds = panel.field_config.defaults.thresholds.steps
    assert [(step.value, step.color) for step in thresholds] == list(steps)
    assert panel.field_config.defaults.unit == "short"


@pytest.mark.parametrize("uid", sorted(build.DASHBOARDS))
def test_links_lead_to_dashboards_and_variables_that_exist(uid):
    for target, variables in re.findall(r'"/d/([\w-]+)\?([^"]*)"', text(uid)):
        assert target in build.DASHBOARDS
        names = {variable["name"] for variable in build.made(target)["templating"].get("list", [])}
        assert set(re.findall(r"var-(\w+)=", variables)) <= names, f"{uid} to {target}"


def test_links_to_the_page_open_a_tab_with_columns_of_the_row_and_the_time():
    addresses = {
        address for uid in build.DASHBOARDS for address in re.findall(r'"\$\{page\}/([^"]*)"', text(uid))
    }
    assert len(addresses) > 6
    for address in addresses:
        tab, _, parameters = address.partition("?")
        assert tab in ("now", "fabric", "contention", "alerts", "clocks", "jobs", "audit", "actions")
        assert parameters.endswith("at=${__to:date:iso}")
        for column, form in re.findall(r"\$\{__data\.fields\.(\w+):(\w+)\}", parameters):
            assert (form == "raw") == (column == "opens"), "encoded, unless the column holds parameters"


def test_colours_are_those_for_colour_blind_readers():
    colours = {panels.BLUE, panels.ORANGE, panels.VERMILLION, panels.SKY, panels.PURPLE, panels.GREY}
    used = {colour for uid in build.DASHBOARDS for colour in re.findall(r"#[0-9A-Fa-f]{6}", text(uid))}
    assert used <= colours


def test_every_query_is_shown_somewhere():
    dashboards = "".join(text(uid) for uid in build.DASHBOARDS)
    texts = {name: sql.replace('"', '\\"') for name, sql in vars(queries).items() if isinstance(sql, str)}
    names = [name for name in texts if name.isupper() and not name.startswith("_")]
    assert [name for name in names if texts[name] not in dashboards] == []
