"""Journal: the newest state of each name survives a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from actuators.journal import Journal


def reopen(path: Path) -> Journal:
    return Journal(path)


def test_the_newest_state_of_each_name_is_restored(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.save("a", {"n": 1})
    assert journal.save("b", {"n": 2})
    assert journal.save("a", {"n": 3})
    assert journal.save("b", None)
    journal.close()
    assert reopen(tmp_path / "journal").states == {"a": {"n": 3}}


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal"
    Journal(path).save("a", {})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_unreadable_lines_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal"
    path.write_bytes(
        b'["a",{"n":1}]\nrubbish\n[5,{}]\n["b",7]\n' + b"[" * 100_000 + b'\n["c",{"n":2}]\n["d",{"n"'
    )
    journal = reopen(path)
    assert journal.states == {"a": {"n": 1}, "c": {"n": 2}}
    assert journal.unreadable == 5
    assert "5 lines could not be read" in caplog.text


def test_the_file_is_rewritten_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, max_bytes=1000)
    for number in range(500):
        journal.save("a", {"n": number})
    assert path.stat().st_size < 1100
    assert reopen(path).states == {"a": {"n": 499}}


def test_a_link_in_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / "journal.new").symlink_to(elsewhere)
    Journal(tmp_path / "journal").save("a", {})
    assert elsewhere.read_text() == "precious"
