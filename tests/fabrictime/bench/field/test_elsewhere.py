"""No command acts on a pipeline that nobody named."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fabrictime.bench.field.elsewhere import acting_elsewhere, command_lines, commands


def test_the_table_has_the_commands_that_change_something(tmp_path: Path) -> None:
    names = {name for name, _ in commands()}
    assert {
        "pause",
        "resume",
        "config set",
        "config rule",
        "audit act",
        "topics create",
        "sim fault",
    } <= names
    assert len(names) >= 38
    assert command_lines(tmp_path)["pause --dir"] == ["pause", "--dir", str(tmp_path)]


def test_commands_without_their_pipeline_end_with_an_error_and_reach_no_other(tmp_path: Path) -> None:
    lines = command_lines(tmp_path / "missing")
    tried = {name: lines[name] for name in ("pause", "pause --dir", "clock --dir", "topics create")}
    assert asyncio.run(acting_elsewhere(tried, tmp_path)) == []


def test_a_command_that_connects_or_succeeds_is_counted(tmp_path: Path) -> None:
    lines = {"show": ["config", "show"], "pause": ["pause", "--log", "localhost:{port}"]}
    faults = asyncio.run(acting_elsewhere(lines, tmp_path))
    assert faults[0].startswith("show: exit code 0, expected an error")
    assert faults[1] == "pause: connects to the log of another pipeline"
