"""Options: durations, and the end of a command that failed."""

from __future__ import annotations

import pytest
import typer

from fabrictime.commands.options import MAX_LISTED, USAGE_EXIT, duration_s, stop, stop_if_any


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
