"""Options: durations, and the end of a command: one line for wrong input, a traceback for a defect."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import fabrictime.commands
from fabrictime.commands import cli
from fabrictime.commands.crash import CRASH_EXIT
from fabrictime.commands.options import (
    MAX_LISTED,
    USAGE_EXIT,
    duration_s,
    running_log,
    settings_of,
    stop,
    stop_if_any,
    with_settings,
)
from fabrictime.runtime import status
from schemas.checks import BadRecord
from schemas.input_error import InputError


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


def run(arguments: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    """Run a command line in an empty folder, and return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setattr("sys.argv", ["fabrictime", *arguments.split()])
    return cli.main()


AWAY = "--log 127.0.0.1:1"
"""A log that does not answer."""
NO_LOG = "log 127.0.0.1:1: "


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("clock --config missing.toml", "missing.toml: "),
        ("clock --config wrong.toml", "wrong.toml: "),
        (f"clock {AWAY}", NO_LOG),
        (f"clock {AWAY} --config registry.toml", "schema_registry_url"),
        (f"links {AWAY}", NO_LOG),
        (f"alerts {AWAY}", NO_LOG),
        (f"actions {AWAY}", NO_LOG),
        (f"top --once {AWAY}", "127.0.0.1:1"),
        (f"report {AWAY}", "127.0.0.1:1"),
        (f"tail fabric.link {AWAY}", "topic 'fabric.link': not in the table"),
        (f"topology {AWAY}", NO_LOG),
        (f"topology {AWAY} --config topology.toml", "missing.json: "),
        (f"jobs {AWAY}", NO_LOG),
        (f"explain job {AWAY}", NO_LOG),
        (f"explain job --between 5m..10m now..5m {AWAY}", "--between 5m..10m: expected FROM..TO"),
        ("explain --folder nowhere", "nowhere: no folder"),
        ("explain --folder .", "expected one of"),
        (f"replay all --from yesterday {AWAY}", "time 'yesterday': expected"),
        (f"replay all --from 9999-01-01 {AWAY}", "time '9999-01-01': expected 0 to 4e9 seconds"),
        (f"replay all --rule slow_ratio=x {AWAY}", "--rule slow_ratio=x: "),
        (f"replay links {AWAY}", NO_LOG),
        (f"alert list {AWAY}", NO_LOG),
        (f"config get {AWAY}", NO_LOG),
        (f"config sign {AWAY} --config signing.toml", "control.signing_key_file"),
        (f"config sign {AWAY} --config accepted.toml", "control.accepted_keys_file"),
        (f"pause {AWAY}", NO_LOG),
        ("doctor --only everything", "--only everything: expected one of"),
        ("audit baseline save missing.json", "missing.json: No such file"),
        ("audit baseline save empty.json", "empty.json: "),
        ("audit baseline learn list.json", "list.json: list, expected the output"),
        (f"audit diff run other {AWAY}", NO_LOG),
        ("audit collectives --hosts h1", "--hosts h1: expected at least two hosts"),
        ("audit collectives --hosts h1,h2 --operation x", "--operation x: expected"),
        ("audit collectives --hosts h1,h2 --sku x", "--sku x: expected"),
        (f"audit gate --hosts , {AWAY}", "--hosts ',': expected names"),
        (f"audit act --scheduler cron {AWAY}", "scheduler 'cron': expected"),
        (f"audit repairs {AWAY}", NO_LOG),
        (f"audit traffic {AWAY}", NO_LOG),
        (f"audit webhook --certificate a --key b --listen x {AWAY}", "--listen 'x': expected HOST:PORT"),
        (f"audit webhook --certificate a --key b {AWAY}", "certificate a: No such file"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    text: str,
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert run(arguments, monkeypatch, tmp_path) == USAGE_EXIT
    lines = capsys.readouterr().err.splitlines()
    assert text in lines[0]
    assert all(line.startswith("fabrictime: ") for line in lines)
    assert not (tmp_path / "fabrictime" / "crashes").exists()


FILES = {
    "wrong.toml": "[kafka",
    "registry.toml": '[kafka]\nschema_registry_url = "ftp://h1"\n',
    "topology.toml": '[probes]\ntopology_file = "missing.json"\n',
    "signing.toml": '[control]\nsigning_key_file = "missing.key"\n',
    "accepted.toml": '[control]\nrequire_signature = true\naccepted_keys_file = "missing.pem"\n',
    "empty.json": "",
    "list.json": "[]",
}


@pytest.mark.parametrize(
    "defect",
    [
        ValueError("too many values to unpack"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        BadRecord("MALFORMED", "Alert: 3 bytes after the record's end"),
    ],
    ids=lambda defect: type(defect).__name__,
)
def test_a_defect_is_a_line_with_the_file_of_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], defect: ValueError
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise defect

    monkeypatch.setattr("fabrictime.commands.views.clock.main", fail)
    assert run(f"clock {AWAY}", monkeypatch, tmp_path) == CRASH_EXIT
    line = capsys.readouterr().err
    [file] = (tmp_path / "fabrictime" / "crashes").iterdir()
    assert line.startswith(f"fabrictime: internal error, {type(defect).__name__}: ")
    assert line.endswith(f"(traceback in {file})\n")
    assert "in fail\n    raise defect" in file.read_text()


def test_a_command_ends_by_an_input_error_alone(capsys: pytest.CaptureFixture[str]) -> None:
    @with_settings
    def command(settings: Any, error: str) -> None:
        raise {"input": InputError, "defect": ValueError}[error]("first\nsecond")

    with pytest.raises(typer.Exit) as ended:
        command(error="input")
    assert ended.value.exit_code == USAGE_EXIT
    assert capsys.readouterr().err == "fabrictime: first\nfabrictime: second\n"
    with pytest.raises(ValueError, match="first"):
        command(error="defect")


def test_no_command_raises_a_plain_value_error() -> None:
    """It would count as a defect."""
    [folder] = fabrictime.commands.__path__
    raises = [
        f"{path}:{node.lineno}"
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and ast.unparse(node).startswith("raise ValueError")
    ]
    assert not raises
