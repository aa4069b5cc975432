"""The reader of the first screen: what counts as right."""

from __future__ import annotations

import pytest

from fabrictime.bench.web._recorded import Record
from fabrictime.bench.web.night_shift import INCIDENTS, QUIET, Answer, Case, draw, is_right, jobs_of, read
from schemas import codec
from tests.fabrictime.fabric_records import FabricRecords

SCREEN = ["fabrictime", "Now", "2 problems: link is down", "What is wrong", "what is wrong", "since (UTC)"]
ROW = ["CRITICAL", "Link is down: leaf1:swp5 ⇄ spine1:swp1", "leaf1 to spine1 is down", "12:03:04", "38 s"]
REST = ["train, llama", "2 flows moved", "Replace the cable", "WARNING", "Link loses packets: a"]


def test_the_first_incident_is_read() -> None:
    answer = read([*SCREEN, *ROW, *REST])
    assert answer == Answer("Link is down", "leaf1:swp5 ⇄ spine1:swp1", frozenset({"train", "llama"}))
    assert read([*SCREEN, *ROW, "none", "—"]).jobs == frozenset()


def test_a_quiet_screen_gives_an_empty_answer() -> None:
    assert read(["Nothing is wrong: 24 cables UP", "What is wrong"]) == Answer()
    with pytest.raises(ValueError, match="neither an incident"):
        read(["Health is not known now."])


def test_kind_place_and_jobs_must_be_right() -> None:
    case = Case("down leaf1>spine1", ("leaf1", "spine1"))
    answer = Answer(case.title, "leaf1:swp5 ⇄ spine1:swp1", frozenset({"train"}))
    assert is_right(case, answer, {"train"})
    assert is_right(case, answer, set())
    assert not is_right(case, answer, {"train", "llama"})
    assert not is_right(case, answer._replace(title="Link loses packets"), set())
    assert not is_right(case, answer._replace(where="leaf11:swp5 ⇄ spine1:swp1"), set())
    assert not is_right(Case(""), answer, set())
    assert not is_right(case, Answer(), set())


def test_a_seed_gives_the_same_incidents() -> None:
    cases = draw(11)
    assert cases == draw(11)
    assert (len(cases), sum(not case.line for case in cases)) == (INCIDENTS, QUIET)
    assert len({case.title for case in cases}) == 6


def test_a_flow_in_the_other_direction_is_not_concerned() -> None:
    fabric = FabricRecords()
    flow = fabric.flow(1, "h1/eth1", "h5/eth1", job="train")
    near, far = (end.partition(":")[0] for end in flow["links"][1].split(">"))
    record = Record(5, "fabric.flows", "h1", codec.encode("FlowReports", fabric.flows("h1", [flow])))
    assert jobs_of(Case(f"grey 10% {near}>{far}", (near, far)), [record], 5) == {"train"}
    assert jobs_of(Case(f"grey 10% {far}>{near}", (far, near)), [record], 5) == set()
    assert jobs_of(Case(f"down {far}>{near}", (far, near)), [record], 5) == {"train"}
    assert jobs_of(Case(""), [record], 5) == set()
