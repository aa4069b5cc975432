"""Queries of the tab Jobs: decoded intervals, present flows, queue pairs read from the log on demand."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.history_client import HistoryDown, HistoryEmpty
from fabrictime.web.tabs.jobs.queries import JobQueries, NicProfile, profile_of
from schemas.kafka.settings import KafkaSettings
from tests.fabrictime.fill import fill
from tests.fabrictime.job_records import INTERVAL_NS, JobRecords

S = 1_000_000_000


class NoHistory:
    """A history without tables."""

    database = "fabrictime"

    def columns(self, sql: str, parameters: Any = None) -> Any:
        raise HistoryEmpty("no tables yet")


@pytest.fixture
def queries(state: FabricState) -> JobQueries:
    return JobQueries(state, NoHistory(), KafkaSettings(bootstrap="127.0.0.1:1"))


def test_an_interval_is_decoded_once(
    queries: JobQueries, state: FabricState, made: JobRecords, fabric: Any
) -> None:
    for k in range(2):
        fill(state, ("fabric.diagnoses", "llama", made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS, slow=k)))
    first = state.jobs.jobs["llama"].intervals[0].key
    newest = queries.diagnosis("llama", None)
    assert newest is not None
    assert newest["ranks"] == [1]
    assert queries.diagnosis("llama", None) is newest
    past = queries.diagnosis("llama", first)
    assert past is not None
    assert (past["ranks"], len(past["time_splits"])) == ([0], 8)
    assert queries.diagnosis("other", None) is None
    with pytest.raises(HistoryEmpty):
        queries.diagnosis("llama", "1-1")
    assert queries.jobs_on("h3/eth1") == ("llama",)
    assert queries.jobs_on("h9/eth1") == ()


def test_a_record_without_ranks_and_flows_shows_those_of_the_one_before(
    queries: JobQueries, state: FabricState, made: JobRecords, fabric: Any
) -> None:
    whole = made.diagnosis(0, fabric.now_ns)
    fill(state, ("fabric.diagnoses", "llama", whole))
    for k in range(1, 4):
        brief = {**made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS), "time_splits": [], "flows": []}
        fill(state, ("fabric.diagnoses", "llama", brief))

    newest = queries.diagnosis("llama", None)

    assert newest is not None
    assert newest["number"] == 3
    assert newest["time_splits"] == whole["time_splits"]
    assert newest["flows"] == whole["flows"]
    assert queries.jobs_on("h3/eth1") == ("llama",)


def test_present_flows_add_up_by_pair(queries: JobQueries, state: FabricState, fabric: Any) -> None:
    flows = [
        fabric.flow(1, "h1/eth1", "h5/eth1", 1, job="llama"),
        fabric.flow(2, "h1/eth1", "h5/eth1", 2, job="llama"),
        fabric.flow(3, "h1/eth1", "h3/eth1", 1, job="other"),
        {**fabric.flow(4, "h1/eth1", "h2/eth1", 1, job="llama"), "peer": ""},
    ]
    fill(state, ("fabric.flows", "h1", fabric.flows("h1", flows)))
    [pair] = queries.flows("llama")
    assert (pair["paths"], pair["rate_bps"], pair["delay_ns"]) == (2, 1.6e8, None)
    assert len(pair["links"]) == 6, "both routes, each link once"


def test_counters_of_a_nic_are_not_added_over_its_processes(made: JobRecords, fabric: Any) -> None:
    batches = [made.batch(rank, 1, fabric.now_ns) for rank in (2, 10, 3)]
    found = profile_of(batches, "h3/eth1", ("llama",))
    assert (found.processes, len(found.pairs)) == (2, 4)
    assert found.counters == {"cnp_received": 1_204, "retransmits": 0}


def test_a_log_that_does_not_answer_is_reported(queries: JobQueries) -> None:
    with pytest.raises(HistoryDown):
        queries.nic_profile("h3/eth1", "llama", None)
    assert queries.nic_profile("h3/eth1", None, None) == NicProfile()


@pytest.mark.timeout(120)
def test_the_newest_batches_of_a_nics_host_are_read_now_and_of_the_past(
    records: Any, log_address: str, state: FabricState
) -> None:
    fabric = records(log_address)
    made, now = JobRecords(fabric), time.time_ns()
    queries = JobQueries(state, NoHistory(), KafkaSettings(bootstrap=log_address))
    assert queries.nic_profile("h3/eth1", "llama", None) == NicProfile(("llama",)), "no topic or no record"
    fabric.publish(
        *(("fabric.collectives", "llama", made.batch(rank, 0, now - 4 * S)) for rank in range(8)),
        ("fabric.collectives", "llama", made.batch(2, 1, now, pairs=(1, 2, 3))),
        ("fabric.collectives", "other", JobRecords(fabric, "other").batch(2, 7, now)),
    )
    found = queries.nic_profile("h3/eth1", "llama", None)
    assert [each["queue_pair"] for each in found.pairs] == [201, 202, 203]
    past = queries.nic_profile("h3/eth1", "llama", (now - 6 * S, now - 3 * S))
    assert [each["queue_pair"] for each in past.pairs] == [201, 202]
    assert queries.nic_profile("h3/eth2", "llama", None).pairs == []
