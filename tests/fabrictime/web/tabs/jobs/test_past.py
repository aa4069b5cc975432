"""Jobs of the history: their heads, intervals of a long span, and one interval in full."""

from __future__ import annotations

from typing import Any

from fabrictime.web.tabs.jobs import past
from tests.fabrictime.job_records import INTERVAL_NS, JobRecords, head_of

S = 1_000_000_000


def test_an_interval_comes_back_as_it_was_published(filled: Any, made: JobRecords, fabric: Any) -> None:
    record = made.diagnosis(7, fabric.now_ns, slow=2)
    filled.records("fabric.diagnoses", [record, record])
    found = past.diagnosis(filled.history, "llama", f"{record['begin_ns']}-7")
    assert found is not None
    for name in ("text", "remedy", "links", "ranks", "jobs", "missing", "iteration_ns", "since_ns", "shard"):
        assert found[name] == record[name], name
    assert found["blames_network"] is True
    assert found["evidence"][0] == {**record["evidence"][0], "at_ns": None}
    assert found["alternatives"][0]["verdict"] == "SLOW_SENDER"
    by_rank = sorted(found["time_splits"], key=lambda each: each["rank"])
    assert by_rank == record["time_splits"], "each rank once"
    assert sorted(each["nic"] for each in found["flows"]) == sorted(each["nic"] for each in record["flows"])
    assert past.diagnosis(filled.history, "llama", "12-7") is None
    assert past.diagnosis(filled.history, "llama", "x") is None


def test_a_long_span_shows_the_worst_interval_of_each_step(
    filled: Any, made: JobRecords, fabric: Any
) -> None:
    span_ns = 86_400 * S
    begin = fabric.now_ns // span_ns * span_ns
    slow = {20, 150}
    records = [
        made.diagnosis(k, begin + (k + 1) * INTERVAL_NS, 2 if k in slow else None, hosts=0)
        for k in range(200)
    ]
    filled.records("fabric.diagnoses", records)
    found = past.intervals(filled.history, "llama", begin - S, span_ns)
    assert 4 <= len(found) <= 6, "1,000 s in steps of 216 s"
    assert [each.verdict for each in found].count("SLOW_FLOW") == 2
    assert found == sorted(found, key=lambda each: each.begin_ns)
    worst = next(each for each in found if each.verdict == "SLOW_FLOW")
    assert worst.key == f"{records[20]['begin_ns']}-20"


def test_each_job_is_listed_with_its_newest_diagnosis(filled: Any, made: JobRecords, fabric: Any) -> None:
    other = JobRecords(fabric, "other")
    filled.records(
        "fabric.diagnoses",
        [
            *(made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS, slow=k or None) for k in range(3)),
            other.diagnosis(1, fabric.now_ns - 3_600 * S),
        ],
    )
    found = past.jobs(filled.history, fabric.now_ns - 86_400 * S)
    assert [(each["job"], each["verdict"], each["number"]) for each in found] == [
        ("llama", "SLOW_FLOW", 2),
        ("other", "HEALTHY", 1),
    ]
    expected = head_of(other.diagnosis(1, fabric.now_ns - 3_600 * S))
    assert set(found[1]) >= set(expected) - {"evidence", "alternatives"}
    assert past.jobs(filled.history, fabric.now_ns + 3_600 * S) == []


def test_an_interval_without_ranks_and_flows_shows_those_of_the_one_before(
    filled: Any, made: JobRecords, fabric: Any
) -> None:
    whole = [made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS, slow=2) for k in (1, 2)]
    brief = {**made.diagnosis(3, fabric.now_ns + 3 * INTERVAL_NS, slow=2), "time_splits": [], "flows": []}
    late = {
        **brief,
        "begin_ns": brief["begin_ns"] + 3_600 * S,
        "end_ns": brief["end_ns"] + 3_600 * S,
        "number": 9,
    }
    filled.records("fabric.diagnoses", [*whole, brief, late])

    found = past.diagnosis(filled.history, "llama", f"{brief['begin_ns']}-3")
    assert found is not None
    assert sorted(found["time_splits"], key=lambda each: each["rank"]) == whole[1]["time_splits"]
    assert len(found["flows"]) == len(whole[1]["flows"])
    found = past.diagnosis(filled.history, "llama", f"{late['begin_ns']}-9")
    assert found is not None
    assert found["time_splits"] == found["flows"] == [], "an hour-old split explains nothing"
