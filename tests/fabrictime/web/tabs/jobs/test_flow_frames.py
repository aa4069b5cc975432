"""Flows by delay, the matrix of NICs, links and queue pairs of a job."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.labels import arrow
from fabrictime.web.tabs.jobs import flow_frames
from tests.fabrictime.fill import fill, fill_health
from tests.fabrictime.job_records import JobRecords
from tests.records import make_part


def test_the_slowest_flow_stands_first_with_its_distance_from_the_others(record: Any) -> None:
    rows = flow_frames.flow_rows(record["flows"], None)
    assert rows[0]["flow"] == "h3/eth1 → h4/eth1"
    assert rows[0]["data_slow"].endswith("times the median")
    assert rows[1]["data_slow"] == rows[1]["probes_slow"] == ""
    assert [row["id"] for row in flow_frames.flow_rows(record["flows"], "h4/eth1")] == [
        "h3/eth1>h4/eth1",
        "h4/eth1>h5/eth1",
    ]


def test_a_long_path_is_not_slow_for_its_length() -> None:
    """The delay of a path across spines is compared with those of others across spines."""
    flows = [
        make_part(
            "Diagnosis", "JobFlow", nic=f"h{k}/eth1", peer="h9/eth1", links=["link"] * count, delay_ns=delay
        )
        for k, (count, delay) in enumerate([(2, 640)] * 6 + [(4, 2_040)] * 3 + [(4, 9_000)])
    ]
    rows = flow_frames.flow_rows(flows, None)
    assert {row["probes"]: row["probes_slow"] for row in rows} == {
        "640 ns": "",
        "2.04 µs": "",
        "9.00 µs": "4 times the median",
    }


def test_reported_flows_give_the_present_rates(record: Any) -> None:
    live = make_part("Diagnosis", "JobFlow", nic="h3/eth1", peer="h4/eth1", paths=9, rate_bps=7.0)
    new = {**live, "nic": "h8/eth1", "peer": "h2/eth1"}
    found = {(each["nic"], each["peer"]): each for each in flow_frames.merged(record["flows"], [live, new])}
    slow = found["h3/eth1", "h4/eth1"]
    assert (slow["rate_bps"], slow["paths"]) == (7.0, 9)
    assert slow["delay_ns"] is not None
    assert slow["links"]
    assert found["h8/eth1", "h2/eth1"]["delay_ns"] is None
    assert ("delay of probes", "—, median, one way") in flow_frames.flow_figures(new)


def levels(matrix: flow_frames.Matrix) -> list[list[int]]:
    side, found = len(matrix.names), base64.b64decode(matrix.frame["levels"])
    return [list(found[k * side : (k + 1) * side]) for k in range(side)]


@pytest.mark.parametrize("metric", ["rate", "probes", "data"])
def test_the_matrix_has_a_level_for_each_pair(record: Any, metric: flow_frames.Metric) -> None:
    found = flow_frames.matrix(record["flows"], metric, "h3/eth1>h4/eth1")
    assert found.names == [f"h{k}/eth1" for k in range(1, 9)]
    assert found.frame["chosen"] == [2, 3]
    cells = levels(found)
    assert sum(level > 0 for row in cells for level in row) == 8
    extreme = 1 if metric == "rate" else 255
    assert cells[2][3] == extreme


def test_a_matrix_of_many_nics_shows_hosts_and_no_flows_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.setattr(flow_frames, "MAX_SIDE", 4)
    found = flow_frames.matrix(record["flows"], "rate", "h3/eth1>h4/eth1")
    assert found.hosts
    assert (len(found.names), found.left_out) == (4, 4)
    empty = flow_frames.matrix([], "data", None)
    assert (empty.names, empty.frame["levels"], empty.frame["chosen"]) == ([], "", [])


def test_links_that_the_verdict_names_stand_first_then_those_in_trouble(
    state: FabricState, fabric: Any, record: Any
) -> None:
    fill(state, *fabric.fleet())
    grey, contended = fabric.up("leaf3", 1), fabric.up("leaf4", 1)
    fill_health(state, fabric, grey, "GREY")
    fill(state, ("fabric.contention", contended, fabric.contention(contended)))
    named = record["links"][0]
    rows = flow_frames.link_rows(state, record["flows"], [named], fabric.now_ns)
    assert (rows[0]["id"], rows[0]["named"]) == (named, True)
    assert {rows[1]["id"], rows[2]["id"]} <= {grey, fabric.back(grey), contended}
    assert {row["contention"] for row in rows} == {"", f"{arrow(contended)}: flows collide"}
    chips = flow_frames.route_chips(state, [grey, contended, "gone:1>gone:2"], "llama", fabric.now_ns)
    assert [chip[1].partition("(")[2] for chip in chips] == ["GREY)", "contended)", ""]
    assert chips[0][2].endswith("job=llama")


def test_slow_queue_pairs_stand_first(fabric: Any) -> None:
    batch = JobRecords(fabric).batch(2, 1, fabric.now_ns, pairs=(0, 1, 2))
    pairs = [{**each, "job": "llama", "process": "1-1"} for each in batch["queue_pairs"]]
    rows = flow_frames.queue_pair_rows(pairs)
    assert [row["queue_pair"] for row in rows] == ["202", "200", "201"]
    assert rows[0]["mean_slow"] == "10 times the median"
    assert (rows[0]["peer"], rows[0]["chunks"]) == ("rank 3", "5,000, 2 open")
    assert flow_frames.queue_pair_rows([]) == []


@pytest.mark.parametrize(
    ("counters", "text"),
    [
        ({"cnp_received": 3, "retransmits": 0}, "3 CNPs received"),
        ({"cnp_received": 0}, "its counters of congestion and loss did not grow"),
        ({}, "no counters reported"),
    ],
)
def test_counters_that_grew_are_named(counters: dict[str, int], text: str) -> None:
    assert flow_frames.counters_text(counters) == text
