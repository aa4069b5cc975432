"""Time of moving data of whole operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.diagnosis.job.arrivals import groups_of
from streams.diagnosis.job.columns import Op
from streams.diagnosis.job.moving import Moving, moving_of

US = 1e3
UNKNOWN = -1


def moving(
    *operations: tuple[int, int, float, float],
    whole: bool = True,
    error_ns: float = 0.0,
    **columns: list[int],
) -> Moving:
    """Return the time of (rank, seq, arrival us, end us) of one communicator."""
    rows = np.full((len(operations), len(Op)), UNKNOWN, np.int64)
    rank, seq, arrival, end = (np.array(column) for column in zip(*operations, strict=True))
    rows[:, Op.RANK], rows[:, Op.SEQ], rows[:, Op.COMMUNICATOR] = rank, seq, 7
    rows[:, Op.LAUNCH] = 0
    for name, values in columns.items():
        rows[:, Op[name]] = values
    groups = groups_of(seq, arrival * US)
    known = np.full(len(groups.starts), whole)
    tolerance = np.full(len(rows), error_ns)
    return moving_of(rows, rank, arrival * US, end * US, tolerance, np.arange(len(rows)), groups, known)


def us(found: Moving) -> list[float]:
    return (found.time / US).tolist()


def test_an_operation_moves_data_from_the_last_arrival_to_the_last_end() -> None:
    assert us(moving((0, 1, 0, 90), (1, 1, 40, 100), (0, 2, 100, 130), (1, 2, 110, 130))) == [60, 60, 20, 20]


def test_flushing_and_waiting_for_a_gpu_are_not_the_network() -> None:
    found = moving((0, 1, 0, 100), (1, 1, 40, 100), GPU_LATE=[10_000, UNKNOWN], FLUSH=[5_000, 2_000])
    assert us(found) == [45, 45]
    assert us(moving((0, 1, 0, 100), (1, 1, 40, 100), GPU_LATE=[10**9, 0])) == [0, 0]


def test_without_all_ranks_the_time_is_unknown() -> None:
    assert np.isnan(moving((0, 1, 0, 100), (1, 1, 40, 100), whole=False).time).all()
    none: Any = moving((0, 1, 0, 100))
    assert us(none) == [100]


def test_an_operation_behind_another_one_begins_with_that_ones_end() -> None:
    """Rank 1 came late to the first operation; all ranks had called the second one before."""
    late = (0, 1, 0, 900), (1, 1, 850, 900), (0, 2, 10, 950), (1, 2, 860, 950)
    assert us(moving(*late, LAUNCH=[UNKNOWN] * 4))[2:] == [50, 50]
    alone = late[2:]
    assert np.isnan(moving(*alone, LAUNCH=[UNKNOWN] * 2).time).all(), "the one before is not known"
    assert us(moving(*alone)) == [90, 90], "the launches show that the kernels began"


def test_times_within_the_error_of_the_clocks_are_unknown() -> None:
    assert us(moving((0, 1, 0, 100), (1, 1, 40, 100), error_ns=3 * US)) == [60, 60]
    assert np.isnan(moving((0, 1, 0, 100), (1, 1, 40, 100), error_ns=4 * US).time).all()


@given(
    arrivals=st.lists(st.integers(0, 10**6), min_size=2, max_size=9),
    late=st.integers(0, 10**7),
    length=st.integers(1, 10**6),
)
def test_a_late_rank_never_lengthens_it(arrivals: list[int], late: int, length: int) -> None:
    times = [float(at) for at in arrivals]
    times[0] += late
    end = max(times) + length
    found = moving(*((rank, 1, at, end) for rank, at in enumerate(times)))
    assert us(found) == [pytest.approx(length)] * len(times)
