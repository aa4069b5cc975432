"""The report of a fleet on the terminal, as JSON and in files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fabrictime.audit.collect import Collector, Progress
from fabrictime.audit.report import AuditReport
from fabrictime.commands.audit.fleet import Output, progress_line, show
from schemas.input_error import InputError
from schemas.records import AuditStatus
from tests.fabrictime.audit.results import RUN, result


def report() -> AuditReport:
    collector = Collector(RUN, ["h1", "h2"], 0, {})
    collector.add(result("h1", checks=1, status=AuditStatus.FAILED))
    return collector.report(10**9, 20)


def test_a_report_is_printed_and_written_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, junit = tmp_path / "a.html", tmp_path / "a.xml"
    show(report(), Output(html=html, junit=junit))
    assert "not fit: 1 errors" in capsys.readouterr().out
    assert RUN in html.read_text()
    assert ElementTree.parse(junit).getroot().get("failures") == "1"


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(report(), Output(as_json_line=True))
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["exit_code"], found["missing"]) == (RUN, 1, ["h2"])


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory, expected a file to write"):
        show(report(), Output(html=tmp_path / "none" / "a.html"))


def test_progress_has_hosts_and_results() -> None:
    assert progress_line(Progress(3, 64, 400, 2560)) == "3 of 64 hosts, 400 of 2,560 announced results"
