"""RAS reports: JSON of several releases, text, and anything else."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.ras.parse import parse_report
from producers.collectives.ras.report import communicator_reports, rank_states
from schemas.records import RankState
from tests.producers.collectives.ras import responder


def rank(number, operations=12, **status):
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False, **status}
    counts = {"AllReduce": operations, "Broadcast": 1}
    return {
        "rank": number,
        "host": "10.0.0.1",
        "pid": 9 + number,
        "status": status,
        "collective_counts": counts,
    }


def report(ranks, missing=(), name="0xae94423cfbb2ef4a"):
    communicator = {"hash": name, "size": 8, "ranks": list(ranks), "missing_ranks": list(missing)}
    return json.dumps({"nccl_version": "2.29.1", "communicators": [communicator]}, indent=2).encode()


def parse_states(data: bytes) -> list[RankState]:
    """Return the states that are published of a report."""
    return rank_states(parse_report(data))


def states(found):
    return {each["rank"]: str(each["state"]) for each in found}


def test_json_has_the_state_of_each_rank():
    missing = [
        {"rank": 5, "host": "b", "pid": 7, "status": {"unresponsive": True, "considered_dead": False}},
        {"rank": 6, "unresponsive": True, "considered_dead": True},
        {"rank": 7, "status": {}},
    ]
    ranks = [rank(0, 11), rank(1, abort_flag=True), rank(2, async_error=6)]
    found = parse_states(report(ranks, missing))
    found.sort(key=lambda each: each["rank"])
    expected = {0: "RUNNING", 1: "ABORTED", 2: "ERROR", 5: "UNRESPONSIVE", 6: "DEAD", 7: "MISSING"}
    assert states(found) == expected
    assert {each["communicator"] for each in found} == {"ae94423cfbb2ef4a"}
    assert (found[0]["operations"], found[0]["host"], found[3]["text"]) == (
        12,
        "10.0.0.1",
        "unresponsive, process 7",
    )


def test_a_missing_comma_is_inserted():
    text = report([rank(0)], [{"rank": 1, "nvml_dev": 0, "status": {"considered_dead": True}}]).decode()
    broken = text.replace('"nvml_dev": 0,', '"nvml_dev": 0')
    assert broken != text
    assert states(parse_states(broken.encode())) == {1: "DEAD"}


def test_ranks_that_run_level_are_not_published():
    level = parse_report(report([rank(0), rank(1)]))
    assert rank_states(level) == []
    (row,) = communicator_reports(level)
    assert (row["ranks"], row["reported"], row["launched"], row["behind"]) == (8, 8, 13, 0)
    late = parse_states(report([rank(0), rank(1, operations=11)], [{"rank": 2}]))
    assert states(late) == {1: "RUNNING", 2: "MISSING"}
    (behind,) = [each for each in late if each["rank"] == 1]
    assert (behind["function"], behind["behind"], behind["process"]) == ("ALL_REDUCE", 1, 10)
    assert behind["text"] == "launched 11 ALL_REDUCE, others 12, process 10"


def test_a_process_that_is_behind_is_listed_where_it_waits():
    """Rank 1 is behind in one communicator, and waits in another for rank 2."""
    first = responder.communicator("0x1", [responder.rank(n, {"AllReduce": 7 - (n == 1)}) for n in range(3)])
    second = responder.communicator("0x2", [responder.rank(n, {"AllReduce": 4 - (n == 2)}) for n in (1, 2)])
    published = parse_states(responder.json_report([first, second]).encode())
    places = {(each["communicator"][-1], each["rank"], each["behind"]) for each in published}
    assert places == {("1", 1, 1), ("2", 1, 0), ("2", 2, 1), ("1", 2, 0)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.sampled_from(
    ["communicators", "hash", "ranks", "missing_ranks", "rank", "host", "pid", "status", "collective_counts"]
)
LIKE = st.recursive(
    JSON, lambda inner: st.dictionaries(KEYS, inner) | st.lists(inner, max_size=3), max_leaves=40
)


@given(st.binary(max_size=500) | LIKE.map(lambda value: json.dumps({"communicators": value}).encode()))
def test_anything_may_answer(data):
    communicator_reports(parse_report(data))
    parse_states(data)


@st.composite
def jobs(draw):
    """One communicator: most ranks level, some behind in one function, some without an answer."""
    size = draw(st.integers(3, 12))
    level = draw(st.integers(1, 10**6))
    late = draw(st.sets(st.integers(0, size - 1), max_size=(size - 1) // 3))
    gone = draw(st.sets(st.integers(0, size - 1), max_size=1)) - late
    function = draw(st.sampled_from(responder.FUNCTIONS))
    gap = draw(st.integers(1, level))
    ranks = [
        responder.rank(number, {function: level - (gap if number in late else 0)})
        for number in range(size)
        if number not in gone
    ]
    dead = draw(st.booleans())
    missing = [responder.missing(number, unresponsive=not dead, dead=dead) for number in gone]
    name = f"{draw(st.integers(1, 2**64 - 1)):#x}"
    return responder.communicator(name, ranks, missing), late, gone, gap, dead


@given(jobs(), st.sampled_from([responder.json_report, responder.text_report]))
def test_both_formats_name_the_ranks_that_are_behind_or_gone(job, report_of):
    given_communicator, late, gone, gap, dead = job
    parsed = parse_report(report_of([given_communicator]).encode())
    published = rank_states(parsed)
    behind = {each["rank"]: each["behind"] for each in published if each["behind"]}
    assert behind == dict.fromkeys(late, gap)
    missing = {each["rank"]: str(each["state"]) for each in published if each["state"] != "RUNNING"}
    assert missing == dict.fromkeys(gone, "DEAD" if dead else "UNRESPONSIVE")
    assert all(each["process"] == 4000 + each["rank"] for each in published)
    largest = parsed.largest
    assert largest is not None
    assert largest.size == given_communicator["size"]


def test_a_rank_that_is_ahead_of_all_others_makes_them_late():
    ahead = responder.communicator("0x1", [responder.rank(n, {"AllReduce": 6 + (n == 3)}) for n in range(8)])
    for report_of in (responder.json_report, responder.text_report):
        rows = communicator_reports(parse_report(report_of([ahead]).encode()))
        assert rows[0]["behind"] == 7
