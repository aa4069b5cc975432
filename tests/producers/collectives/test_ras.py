"""RAS reports: JSON of several releases, text, and anything else."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.ras import parse_ras, worth_reporting


def rank(number, operations=12, **status):
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False, **status}
    counts = {"AllReduce": operations, "Broadcast": 1}
    return {"rank": number, "host": "10.0.0.1", "pid": 9, "status": status, "collective_counts": counts}


def report(ranks, missing=(), name="0xae94423cfbb2ef4a"):
    communicator = {"hash": name, "size": 8, "ranks": list(ranks), "missing_ranks": list(missing)}
    return json.dumps({"nccl_version": "2.29.1", "communicators": [communicator]}, indent=2).encode()


def states(found):
    return {each["rank"]: str(each["state"]) for each in found}


def test_json_has_the_state_of_each_rank():
    missing = [
        {"rank": 5, "host": "b", "pid": 7, "status": {"unresponsive": True, "considered_dead": False}},
        {"rank": 6, "unresponsive": True, "considered_dead": True},
        {"rank": 7, "status": {}},
    ]
    found = parse_ras(report([rank(0), rank(1, abort_flag=True), rank(2, async_error=6)], missing))
    expected = {0: "RUNNING", 1: "ABORTED", 2: "ERROR", 5: "UNRESPONSIVE", 6: "DEAD", 7: "MISSING"}
    assert states(found) == expected
    assert {each["communicator"] for each in found} == {"ae94423cfbb2ef4a"}
    assert (found[0]["operations"], found[0]["host"], found[3]["text"]) == (
        13,
        "10.0.0.1",
        "unresponsive, process 7",
    )


def test_a_missing_comma_is_inserted():
    text = report([rank(0)], [{"rank": 1, "nvml_dev": 0, "status": {"considered_dead": True}}]).decode()
    broken = text.replace('"nvml_dev": 0,', '"nvml_dev": 0')
    assert broken != text
    assert states(parse_ras(broken.encode())) == {0: "RUNNING", 1: "DEAD"}


def test_ranks_that_run_level_are_not_worth_reporting():
    assert worth_reporting(parse_ras(report([rank(0), rank(1)]))) == []
    late = worth_reporting(parse_ras(report([rank(0), rank(1, operations=11)], [{"rank": 2}])))
    assert states(late) == {1: "RUNNING", 2: "MISSING"}


def test_text_has_the_ranks_of_warnings_and_errors():
    text = b"""NCCL version 2.27.3 compiled with CUDA 12.8
Communicators... (0.00s)
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         4         8        32        32   RUNNING  INCOMPLETE
Errors
======
#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
Warnings
========
#0-1 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  31 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649:
  Rank 3 -- GPU 3 managed by process 483072 on node 172.16.64.210
"""
    missing, late = parse_ras(text)
    assert (missing["communicator"], missing["rank"], missing["state"]) == ("cf264af53edbe986", 21, "MISSING")
    assert (missing["host"], late["host"]) == ("172.16.64.213", "172.16.64.210")
    assert (late["rank"], late["state"], late["operations"]) == (3, "RUNNING", 6649)


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
    worth_reporting(parse_ras(data))


@given(st.text(alphabet="#-()0123456789abcdefRank dMISMATCHon nodelaunched up to operation\n", max_size=300))
def test_any_text_may_answer(text):
    parse_ras(text.encode())
