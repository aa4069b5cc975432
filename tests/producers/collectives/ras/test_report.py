"""Reports as records: bounds, leaders, ranks behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.ras.report import (
    MAX_COMMUNICATORS,
    MAX_STATES,
    Communicator,
    RankReport,
    RasReport,
    communicator_reports,
    function_of,
    rank_states,
)
from schemas import codec
from schemas.records import CollectiveFunction, RankCondition
from tests.records import make

FUNCTIONS = st.sampled_from(list(CollectiveFunction))
RANKS = st.builds(
    RankReport,
    st.integers(0, 40),
    st.sampled_from(["", "10.0.0.1", "::1"]),
    st.integers(0, 5),
    st.sampled_from([None, "0", "1"]),
    st.sampled_from(list(RankCondition)),
    st.dictionaries(FUNCTIONS, st.integers(0, 2**61), max_size=3),
    st.just("missing"),
)


def report_of(*communicators: list[RankReport]) -> RasReport:
    """Return a report of communicators with these ranks."""
    report = RasReport()
    for at, ranks in enumerate(communicators):
        one = Communicator(f"{at:016x}", len(ranks))
        for rank in ranks:
            one.add(rank)
        report.communicators.append(one)
    return report


@given(st.lists(st.lists(RANKS, max_size=8), max_size=4))
def test_any_report_makes_valid_records_in_which_the_leader_is_not_behind(groups):
    report = report_of(*groups)
    rows, states = communicator_reports(report), rank_states(report)
    record = make("CollectiveBatch", job="a", reports=rows, ranks=states)
    value = codec.encode("CollectiveBatch", record)
    assert codec.decode(value, "CollectiveBatch")["ranks"] == states
    for communicator in report.communicators:
        for function, leader in communicator.leaders.items():
            assert any(rank.counts.get(function) == leader for rank in communicator.ranks)


def test_states_and_communicators_are_bounded_and_the_worst_come_first():
    ranks = [
        RankReport(n, "h", n, "0", RankCondition.RUNNING, {CollectiveFunction.REDUCE: n}) for n in range(999)
    ]
    dead = RankReport(1000, "h", 1000, "0", RankCondition.DEAD, {})
    report = report_of([*ranks, dead], *([ranks[:2]] * (2 * MAX_COMMUNICATORS)))
    states = rank_states(report)
    assert (len(states), states[0]["state"]) == (MAX_STATES, "DEAD")
    rows = communicator_reports(report)
    assert (len(rows), rows[0]["ranks"]) == (MAX_COMMUNICATORS, 1000)


def test_names_of_functions():
    assert function_of("AllReduce") is CollectiveFunction.ALL_REDUCE
    assert function_of("SendRecv") is CollectiveFunction.SEND_RECEIVE
    assert function_of("collective") is CollectiveFunction.UNKNOWN
