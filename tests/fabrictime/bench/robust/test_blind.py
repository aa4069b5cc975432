"""Health without fresh evidence: how long it was reported, and by whom."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.robust.blind import COMMANDS, SERVICES, Answer, _figure, blind_s, kind_of


def test_only_health_without_fresh_evidence_counts() -> None:
    fresh = [Answer("links", 1.0, True), Answer("links", 6.0, True)]
    assert blind_s(fresh, 7) == 0
    assert blind_s([*fresh, Answer("links", 9.0, False), Answer("links", 12.0, False)], 7) == 0
    assert blind_s([*fresh, Answer("links", 9.0, True), Answer("links", 12.0, False)], 7) == pytest.approx(2)


def test_each_name_has_its_own_time() -> None:
    answers = [
        Answer("links", 8.0, True),
        Answer("clock", 9.0, False),
        Answer("links", 10.0, True),
        Answer("clock", 11.0, True),
    ]
    assert blind_s(answers, 7) == pytest.approx(3 + 2)


def test_the_note_names_the_blind_parts() -> None:
    found = {"prober": [Answer("links", 67.0, True)], "links": [Answer("alerts", 9.0, False)]}
    figure = _figure(found, {"status"}, "no browser")
    assert isinstance(figure, Figure)
    assert figure.value == pytest.approx(1)
    assert figure.note == (
        "links 60 s without prober; 2 answers while prober, links were stopped in turn; "
        "status reported no health before; page not read: no browser"
    )


def test_every_service_is_needed_and_named_on_the_command_line() -> None:
    assert {service for command in COMMANDS for service in command.needs} == set(SERVICES)
    line = ["python", "-P", "-m", "fabrictime.runtime.service", "prober", "/run/settings.json", "lo1/lo"]
    assert kind_of(line) == "prober"
    assert kind_of(["python", "-m", "fabrictime.runtime.service"]) is None
    assert kind_of(["bash"]) is None
