"""Options: durations, and the end of a command that failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from fabrictime.commands.options import (
    MAX_LISTED,
    USAGE_EXIT,
    duration_s,
    running_log,
    settings_of,
    stop,
    stop_if_any,
)
from fabrictime.runtime import status


def test_a_duration_has_a_unit_or_is_in_seconds() -> None:
    assert [duration_s(text) for text in ("500ms", "30s", "5 m", "1h", "2.5")] == [0.5, 30, 300, 3600, 2.5]


@pytest.mark.parametrize("text", ["", "0s", "-5s", "5d", "367000h", "1e3"])
def test_another_text_is_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a duration"):
        duration_s(text)


def test_each_line_of_an_error_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as found:
        stop("first\nsecond")
    assert found.value.exit_code == USAGE_EXIT
    assert capsys.readouterr().err == "fabrictime: first\nfabrictime: second\n"


def test_a_long_list_of_failures_is_cut_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    stop_if_any([])
    with pytest.raises(typer.Exit) as found:
        stop_if_any([f"failure {number}" for number in range(MAX_LISTED + 5)])
    assert found.value.exit_code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_LISTED + 1
    assert lines[-1] == "fabrictime: and 5 more"


@pytest.fixture
def running_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a data directory with an `up` whose log is 127.0.0.1:7."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "running"
    lock = status.Lock(directory)
    status.write(directory, {"started_s": 0.0, "addresses": {"log": "127.0.0.1:7"}})
    yield directory
    lock.release()


@pytest.mark.parametrize(
    ("table", "by_directory", "log", "expected"),
    [
        pytest.param({}, True, None, "127.0.0.1:7", id="the up of --dir"),
        pytest.param({}, True, "127.0.0.1:5", "127.0.0.1:5", id="--log before --dir"),
        pytest.param({"log_url": "127.0.0.1:6"}, True, None, "127.0.0.1:7", id="--dir before up.log_url"),
        pytest.param(
            {"log_url": "127.0.0.1:6"}, False, None, "127.0.0.1:6", id="up.log_url before a running up"
        ),
        pytest.param({"data_directory": "running"}, False, None, "127.0.0.1:7", id="the running up"),
    ],
)
def test_a_command_reads_the_log_that_is_named_nearest(
    running_up: Path, table: dict[str, str], by_directory: bool, log: str | None, expected: str
) -> None:
    lines = "".join(f'{key} = "{value}"\n' for key, value in table.items())
    Path("fabrictime.toml").write_text(f"[up]\n{lines}", encoding="utf-8")
    settings = settings_of(None, running_up if by_directory else None, log)
    assert running_log(settings).bootstrap == expected


@pytest.mark.parametrize("by_directory", [True, False])
def test_a_command_without_a_running_up_ends_and_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by_directory: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fabrictime.toml").write_text('[up]\ndata_directory = "elsewhere"\n', encoding="utf-8")
    settings = settings_of(None, tmp_path / "named" if by_directory else None)
    with pytest.raises(typer.Exit):
        running_log(settings)
    line = capsys.readouterr().err
    assert ("named" if by_directory else "elsewhere") in line
    assert ("--log HOST:PORT" in line) is not by_directory
    assert line.count("\n") == 1


def test_an_up_that_is_starting_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = status.Lock(tmp_path / "data")
    with pytest.raises(typer.Exit):
        running_log(settings_of(None, tmp_path / "data"))
    assert "just starting" in capsys.readouterr().err
    lock.release()
