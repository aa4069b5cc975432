"""Dashboards: the build writes them, every panel's SQL runs and returns rows, units and colours are set."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from grafana import build, dashboard_files, datasource

ROOT = Path(__file__).resolve().parents[2]
UIDS = sorted(build.DASHBOARDS)
MARK_COLUMNS = "time", "timeEnd", "title", "text", "tags"
"""Columns that Grafana maps to annotations by their names."""


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_build_writes_every_dashboard_and_no_other(tmp_path, capsys):
    (tmp_path / "fabrictime-former.json").write_text("{}")
    (tmp_path / "mine.json").write_text("{}")
    assert build.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{uid}.json") for uid in build.DASHBOARDS]
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == [*UIDS, "mine"]
    assert dashboard_files.read_all(tmp_path) == {uid: build.made(uid) for uid in UIDS}


def test_the_requirements_of_the_build_are_enough(tmp_path):
    """pip builds a wheel with nothing else, as from a git URL."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [re.split(r"[>=]", each)[0].replace("-", "_") for each in project["build-system"]["requires"]]
    script = (
        "import importlib.abc, sys\n"
        "class Blocked(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        known = {{*sys.stdlib_module_names, *{names!r}, 'grafana', 'schemas', 'sitecustomize'}}\n"
        "        if name.partition('.')[0] not in known:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from grafana.build import main\n"
        f"sys.exit(main([{str(tmp_path)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.json"))) == len(UIDS)


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_names_its_unit_or_columns_and_describes_itself(uid):
    board = build.made(uid)
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
    text = json.dumps(build.made(uid)).lower()
    assert not re.search(r'"(dark-|light-|semi-dark-|super-light-)?(green|red)"', text)
    assert "gryl" not in text
    assert "palette-classic" not in text


@pytest.mark.parametrize("uid", UIDS)
def test_every_panels_sql_runs_and_returns_rows(asked, uid):
    board = build.made(uid)
    values = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            values[variable["name"]] = [row[0] for row in asked(variable["query"], **values).result_rows]
            assert values[variable["name"]], variable["name"]
            assert variable["allValue"] == "''"
    for mark in board["annotations"]["list"]:
        marks = asked(mark["target"]["rawSql"], **values)
        assert marks.result_rows, mark["name"]
        assert {"time", "text", "tags"} <= set(marks.column_names) <= {*MARK_COLUMNS}
    for panel in panels(board):
        for target in panel["targets"]:
            result = asked(target["rawSql"], **values)
            assert result.result_rows, panel["title"]
            assert asked(target["rawSql"]).result_rows == result.result_rows, "all, as one text"
            names = result.column_names
            assert len(set(names)) == len(names)
            if target["queryType"] == "timeseries":
                assert names[0] == "time", panel["title"]
            for override in panel.get("fieldConfig", {}).get("overrides", []):
                if override["matcher"]["id"] == "byName":
                    assert override["matcher"]["options"] in names, panel["title"]
