"""The end of the tour: a table within 80 columns, notes, JSON."""

from __future__ import annotations

import json

from fabrictime.demo import summary
from fabrictime.demo.iterations import Change
from fabrictime.demo.result import TourResult
from fabrictime.demo.script import Fault
from fabrictime.demo.story import Line, Outcome


def outcome(fault: Fault = Fault.GREY, **fields: object) -> Outcome:
    found = Outcome(fault.value, "leaf1:swp3>spine1:swp1", "leaf1 > spine1", healed=True)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def test_a_row_has_fault_place_latency_name_action_and_iterations_of_the_job_that_suffered_more() -> None:
    jobs = {"job-a": Change(12, 13, 300, 12.4), "job-b": Change(12, 12, 14, None)}
    found = outcome(detected_ms=1430.0, action_ms=1690.0, named="yes", moved=3, jobs=jobs)
    head, row = summary.rows([found], acting=True)
    assert head == summary.HEAD
    assert row == ("grey link", "leaf1 > spine1", "1.43 s", "+0.26 s", "yes", "3 moved", "12 > 300 > 12")
    assert summary.rows([outcome(moved=3, paced=2)], acting=True)[1][5] == "5 flows"
    assert summary.rows([outcome(named="yes", also_named=["x"])], acting=True)[1][4] == "not only"


def test_the_table_shows_that_a_thing_did_not_happen() -> None:
    assert summary.rows([outcome()], acting=True)[1][2:] == ("missed", "", "no", "none", "")
    assert summary.rows([outcome()], acting=False)[1][5] == "0 wanted"
    assert summary.rows([outcome(planned_flows=4)], acting=False)[1][5] == "4 wanted"


def test_the_notes_explain_the_columns_and_the_drops_of_a_flapping_link() -> None:
    flapping = outcome(Fault.FLAPPING, drops=9, first_drop_ms=84.0, drops_within_hour=9)
    notes = " ".join(summary.notes([flapping], acting=True))
    assert "the first drop was detected after 84.0 ms; with drop 9 within the hour" in notes
    assert "OBSERVE" not in notes
    assert "OBSERVE" in summary.notes([outcome()], acting=False)[-1]
    missed = outcome(Fault.FLAPPING, drops=4, first_drop_ms=84.0)
    assert "4 drops were detected in all" in " ".join(summary.notes([missed], acting=True))


def test_a_fault_that_is_not_over_is_a_failure() -> None:
    assert summary.failures([outcome(), outcome(Fault.INCAST, healed=False)]) == [
        "incast: leaf1 > spine1 is not healthy again"
    ]


def test_the_json_has_every_outcome_and_the_verdict() -> None:
    jobs = {"job-a": Change(12.0, 13.0, 300.0, None)}
    found = (outcome(detected_ms=1430.0, jobs=jobs), outcome(Fault.INCAST))
    read = json.loads(summary.as_json(TourResult(5, False, 93.44, None, found)))
    assert (read["mode"], read["took_s"], read["healed"], read["detected"]) == ("OBSERVE", 93.4, True, 1)
    assert read["steps"][0]["jobs"]["job-a"]["worst_ms"] == 300.0
    assert read["steps"][0]["worst_job"] == "job-a"
    assert read["steps"][1]["detected_ms"] is None
    assert (read["seed"], read["right"], read["detection_to_first_move_s_p95"]) == (5, 0, None)


def test_lines_wrap_beside_their_label_within_eighty_columns() -> None:
    text = (
        "leaf1 > spine1 loses all packets, though its ports stay up; 4 flows of job-a and 2 of job-b cross it"
    )
    lines = summary.text_of(Line(0.0, "broken", text))
    assert lines[0].startswith("    +0.00 s  broken    leaf1 > spine1 loses")
    assert len(lines) == 2
    assert lines[1].startswith(" " * 23)
    assert max(map(len, lines)) <= summary.WIDTH
    assert summary.text_of(Line(None, "job-a", "12 ms"))[0] == " " * 13 + "job-a     12 ms"
    assert max(map(len, summary.paragraph("one word " * 40))) <= summary.WIDTH
