"""Files of dashboards: all of ours are read and written; other files of a folder stay."""

import json

import pytest

from grafana import dashboard_files

BOARDS = {"fabrictime-a": {"uid": "fabrictime-a"}, "fabrictime-b": {"title": "ü"}}


def test_written_dashboards_are_read(tmp_path):
    folder = tmp_path / "new" / "folder"
    paths = dashboard_files.write_all(folder, BOARDS)
    assert [path.name for path in paths] == ["fabrictime-a.json", "fabrictime-b.json"]
    assert dashboard_files.read_all(folder) == BOARDS


def test_a_dashboard_that_is_no_more_is_removed_and_other_files_stay(tmp_path):
    dashboard_files.write_all(tmp_path, BOARDS)
    (tmp_path / "mine.json").write_text("{}")
    dashboard_files.write_all(tmp_path, {"fabrictime-a": {}})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fabrictime-a.json", "mine.json"]
    assert json.loads((tmp_path / "fabrictime-a.json").read_text()) == {}


def test_without_a_build_the_remedy_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no dashboards, expected those that `make build` writes"):
        dashboard_files.read_all(tmp_path)
