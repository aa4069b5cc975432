"""The dashboards: the JSON is current, every panel's SQL runs and returns rows, units and colours are set."""

import json
import re

import pytest

from grafana import build, datasource

UIDS = sorted(build.DASHBOARDS)


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("uid", UIDS)
def test_the_committed_json_is_current(uid):
    current = (build.FOLDER / f"{uid}.json").read_text(encoding="utf-8")
    assert current == build.made(uid), "run: python -m grafana.build"


def test_there_is_no_dashboard_without_code():
    assert sorted(path.stem for path in build.FOLDER.glob("*.json")) == UIDS


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_names_its_unit_or_columns_and_describes_itself(uid):
    board = build.committed(uid)
    assert board["uid"] == uid
    assert board["schemaVersion"] >= 40
    for panel in panels(board):
        assert panel["title"]
        assert panel["datasource"] == {"type": datasource.PLUGIN, "uid": datasource.UID}
        config = panel.get("fieldConfig", {})
        assert panel["type"] in ("table", "heatmap") or config["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == datasource.UID
            assert target["editorType"] == "sql"


@pytest.mark.parametrize("uid", UIDS)
def test_no_colour_pair_of_red_and_green(uid):
    text = json.dumps(build.committed(uid)).lower()
    assert not re.search(r'"(dark-|light-|semi-dark-|super-light-)?(green|red)"', text)
    assert "gryl" not in text
    assert "palette-classic" not in text


@pytest.mark.parametrize("uid", UIDS)
def test_every_panels_sql_runs_and_returns_rows(asked, uid):
    board = build.committed(uid)
    values = {}
    for variable in board["templating"].get("list", []):
        values[variable["name"]] = [row[0] for row in asked(variable["query"], **values).result_rows]
        assert values[variable["name"]], variable["name"]
    for panel in panels(board):
        for target in panel["targets"]:
            result = asked(target["rawSql"], **values)
            assert result.result_rows, panel["title"]
            names = result.column_names
            assert len(set(names)) == len(names)
            if target["queryType"] == "timeseries":
                assert names[0] == "time", panel["title"]
            for override in panel.get("fieldConfig", {}).get("overrides", []):
                if override["matcher"]["id"] == "byName":
                    assert override["matcher"]["options"] in names, panel["title"]
