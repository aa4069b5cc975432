"""Reports of RAS services over time: progress, ranks that are behind, circles."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams.diagnosis.job.ras_history import MAX_REPORTS, RasHistory, RasWait
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import S


def state(rank: int, behind: int = 0, name: str = "a", **fields: Any) -> dict[str, Any]:
    row = {"state": "RUNNING", "operations": 100 - behind, "process": 10 + rank, "host": "h", **fields}
    return make_part("CollectiveBatch", "RankState", communicator=name, rank=rank, behind=behind, **row)


def record(second: int, launched: dict[str, int], *states: dict[str, Any], **fields: Any) -> Any:
    rows = []
    for name, count in launched.items():
        own = [one for one in states if one["communicator"] == name]
        gone = len([one for one in own if one["state"] != "RUNNING"])
        late = len([one for one in own if one["behind"]])
        rows.append(
            make_part(
                "CollectiveBatch",
                "CommunicatorReport",
                communicator=name,
                ranks=4,
                reported=4 - gone,
                launched=count,
                behind=late,
            )
        )
    return make(
        "CollectiveBatch",
        **{
            "job": "train",
            "host": "h0",
            "process": "ras-28028-1",
            "source": "RAS",
            "batch": second,
            "end_ns": second * S,
            "reports": rows,
            "ranks": list(states),
            **fields,
        },
    )


def wait_of(*records: Any) -> RasWait | None:
    """Return the wait at the end of some records."""
    history = RasHistory()
    for one in records:
        history.take(one, one["end_ns"])
    return history.wait(records[-1]["end_ns"])


def test_a_job_that_launches_operations_does_not_wait() -> None:
    assert wait_of(*(record(second, {"a": 10 * second}, state(1, 1)) for second in range(5))) is None


def test_a_rank_that_stays_behind_while_nothing_is_launched() -> None:
    before = [record(second, {"a": 10 * second}) for second in range(5)]
    wait = wait_of(*before, *(record(second, {"a": 41}, state(2, 1)) for second in range(5, 9)))
    assert wait is not None
    assert ([one["rank"] for one in wait.late], wait.since_ns, wait.at_ns) == ([2], 5 * S, 8 * S)
    assert not wait.is_level
    assert 0 < wait.usual_ns < S


def test_a_rank_that_catches_up_slowly_is_no_wait() -> None:
    assert wait_of(*(record(second, {"a": 100}, state(2, 9 - second)) for second in range(5))) is None


def test_the_root_is_the_rank_that_waits_nowhere() -> None:
    """Rank 1 is behind in a, and waits in b for rank 2."""
    rows = (state(1, 1), state(1, 0, "b"), state(2, 1, "b"))
    wait = wait_of(*(record(second, {"a": 7, "b": 3}, *rows) for second in range(3)))
    assert wait is not None
    assert [one["rank"] for one in wait.late] == [2]
    assert not wait.is_mismatch


def test_ranks_that_wait_for_each_other() -> None:
    rows = (state(1, 1), state(1, 0, "b"), state(2, 1, "b"), state(2, 0))
    wait = wait_of(*(record(second, {"a": 7, "b": 3}, *rows) for second in range(3)))
    assert wait is not None
    assert wait.is_mismatch


def test_ranks_that_are_all_behind_call_operations_in_different_orders() -> None:
    rows = [state(rank, 1, function="REDUCE" if rank < 2 else "BROADCAST") for rank in range(4)]
    wait = wait_of(*(record(second, {"a": 7}, *rows) for second in range(3)))
    assert wait is not None
    assert wait.is_mismatch


def test_a_service_that_answers_again_is_not_unresponsive() -> None:
    silent = state(3, state="UNRESPONSIVE", operations=-1)
    once = wait_of(record(1, {"a": 7}), record(2, {"a": 7}, silent))
    assert once is None or not once.unresponsive
    often = wait_of(*(record(second, {"a": 7}, silent) for second in range(3)))
    assert often is not None
    assert [one["rank"] for one in often.unresponsive] == [3]


def test_a_dead_rank_of_a_communicator_that_was_given_up_is_no_wait() -> None:
    dead = state(3, state="DEAD", operations=-1)
    assert wait_of(*(record(second, {"b": 10 * second, "a": -1}, dead) for second in range(4))) is None


def test_services_end_and_reports_are_bounded() -> None:
    history = RasHistory()
    for second in range(MAX_REPORTS + 50):
        history.take(record(second, {"a": second}), second * S)
    assert len(history.reports) == MAX_REPORTS
    assert not history.has_ended
    history.forget(10_000 * S)
    assert len(history.reports) == 1
    history.take(record(9999, {}, ended=True), 9999 * S)
    assert history.has_ended


def test_a_long_wait_outlives_the_memory_of_a_minute() -> None:
    history = RasHistory()
    for second in range(0, 200, 2):
        history.take(record(second, {"a": 7}, state(1, 1)), second * S)
        history.forget((second - 60) * S)
    wait = history.wait(198 * S)
    assert wait is not None
    assert wait.at_ns - wait.since_ns == 198 * S


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 3), st.integers(0, 2)), max_size=12), st.randoms()
)
def test_any_order_of_arrival_gives_the_same_answer(
    rows: list[tuple[int, int, int]], chance: random.Random
) -> None:
    records = [
        record(second, {"a": launched}, *([state(1, behind)] if behind else []))
        for second, (_, launched, behind) in enumerate(rows)
    ]
    expected = RasHistory()
    for one in records:
        expected.take(one, one["end_ns"])
    mixed = RasHistory()
    chance.shuffle(records)
    for one in [*records, *records[:3]]:
        mixed.take(one, one["end_ns"])
    assert mixed.reports == expected.reports
    assert mixed.wait(10**12) == expected.wait(10**12)
