"""Data of another format is set aside with a line about it, and never deleted; data of this format stays."""

import os

import pytest

from fabrictime.runtime.data_format import FORMAT, set_aside


@pytest.fixture
def folders(tmp_path):
    return [tmp_path / "log", tmp_path / "history"]


def fill(folders):
    for folder in folders:
        folder.mkdir()
        (folder / "data").write_text(folder.name)


def test_new_and_empty_folders_are_marked_without_a_line(folders):
    folders[0].mkdir()
    assert set_aside(folders) == ""
    for folder in folders:
        assert (folder / "format").read_text() == f"{FORMAT}\n"
        assert os.listdir(folder) == ["format"]


def test_older_data_is_moved_aside_in_one_line_and_stays_readable(folders, tmp_path):
    fill(folders)
    line = set_aside(folders)
    assert line.count("\n") == 0
    for folder in folders:
        former = tmp_path / f"{folder.name}.format-1"
        assert str(former) in line
        assert (former / "data").read_text() == folder.name
        assert [path.name for path in folder.iterdir()] == ["format"]
        assert folder.stat().st_mode & 0o777 == 0o700


def test_data_of_this_format_stays(folders):
    set_aside(folders)
    for folder in folders:
        (folder / "data").write_text("new")
    assert set_aside(folders) == ""
    assert [(folder / "data").read_text() for folder in folders] == ["new", "new"]


def test_no_name_is_used_twice(folders, tmp_path):
    for number in (1, 2, 3):
        folders[0].mkdir(exist_ok=True)
        (folders[0] / "format").unlink(missing_ok=True)
        (folders[0] / "data").write_text(str(number))
        set_aside(folders[:1])
    contents = {path.name: (path / "data").read_text() for path in tmp_path.glob("log.*")}
    assert contents == {"log.format-1": "1", "log.format-1.2": "2", "log.format-1.3": "3"}


def test_a_newer_format_is_named_and_set_aside_too(folders):
    fill(folders)
    (folders[0] / "format").write_text("7\n")
    assert "log.format-7" in set_aside(folders)


def test_a_link_stays_a_link(folders, tmp_path):
    disk = tmp_path / "disk" / "store"
    disk.mkdir(parents=True)
    (disk / "data").write_text("old")
    folders[0].symlink_to(disk)
    set_aside(folders)
    assert folders[0].is_symlink()
    assert (disk / "format").exists()
    assert (tmp_path / "disk" / "store.format-1" / "data").read_text() == "old"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/log: Not a directory, expected a folder"):
        set_aside([tmp_path / "file" / "log"])


def test_an_error_names_the_folders_that_were_moved_before_it(folders, tmp_path):
    fill(folders)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/log: .*; its former data are in .*log\.format-1"):
        set_aside([folders[0], tmp_path / "file" / "log"])


def test_an_empty_mark_is_none(folders):
    fill(folders)
    (folders[0] / "format").write_text("")
    assert "log.format-1" in set_aside(folders[:1])
