"""The page names the services that do not work, from the state that `up` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fabrictime.web.service_faults import ServiceFaults, banner_text

FAULT = "history http://127.0.0.1:18123 does not store: no room"


def write(path: Path, **faults: str | None) -> None:
    path.write_text(json.dumps({"children": [{"name": n, "fault": f} for n, f in faults.items()]}))


def test_the_services_that_do_not_work_are_read_once_a_second(tmp_path: Path) -> None:
    path, now_s = tmp_path / "state.json", [100.0]
    services = ServiceFaults(path, lambda: now_s[0])
    assert services.faults() == []
    write(path, sink=FAULT, links=None)
    assert services.faults() == []
    now_s[0] += 1.0
    assert services.faults() == [f"sink: {FAULT}"]
    write(path, sink=None, links=None)
    now_s[0] += 1.0
    assert services.faults() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"children": [{}]}', '{"children": 3}'])
def test_a_file_that_is_not_whole_names_no_service(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    assert ServiceFaults(path).faults() == []
    assert ServiceFaults(None).faults() == []


@pytest.mark.parametrize(
    ("message", "faults", "text"),
    [
        ("", [], ""),
        ("Reading the log …", [], "Reading the log …"),
        ("", ["sink: no room"], "1 service does not work: sink: no room."),
        ("Late.", ["a: x", "b: y"], "Late. 2 services do not work: a: x; b: y."),
        ("", [f"{n}: x" for n in "abcde"], "5 services do not work: a: x; b: x; c: x; and 2 more."),
    ],
)
def test_the_banner_names_three_services_and_counts_the_others(
    message: str, faults: list[str], text: str
) -> None:
    assert banner_text(message, faults) == text
