"""An unexpected exception is one line with class, place and file, and exit code 70."""

import stat

import pytest

from fabrictime.commands import cli, crash, options


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Make `fabrictime clock` fail in an unexpected way."""

    def fail(*_args, **_kwargs):
        raise KeyError("no such\nthing")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(options, "settings_of", fail)
    return tmp_path


def test_an_internal_error_is_one_line_with_its_place_and_the_traceback_in_a_file(
    broken, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", ["fabrictime", "clock"])
    assert cli.main() == crash.CRASH_EXIT
    error = capsys.readouterr().err
    [file] = (broken / "fabrictime" / "crashes").iterdir()
    assert error.startswith("fabrictime: internal error, KeyError: 'no such\\nthing' at tests/fabrictime/")
    assert error.endswith(f"; please report it (traceback in {file})\n")
    assert error.count("\n") == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith("fabrictime clock\nTraceback")


def test_debug_shows_the_traceback(broken, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fabrictime", "--debug", "clock"])
    assert cli.main() == crash.CRASH_EXIT
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_without_a_place_for_the_file_the_line_names_debug(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    error = ValueError("x")
    assert crash.write_traceback(error, []) is None
    assert "show the traceback with --debug" in crash.crash_line(error, None)
