"""Real, unmodified jobs over Soft-RoCE: UCX, and MPI over UCX, survive silent blackholes by the library.

The guest starts once and tries all; each test looks at what came of one."""

from __future__ import annotations

import pytest

from native import mpi

SCRIPT, GUEST_S = "jobs.py", 600.0

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def profiler():
    """Skip where the MPI profiler is not built."""
    try:
        mpi.library()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_ucx_survives_two_silent_blackholes(guest):
    seen = guest.found("ucx_is_measured_and_survives")
    assert len(seen["moved_ms"]) == 2
    assert seen["alive"] == [True, True], "client and server"
    assert all("send queue drained" in line for line in seen["errors"]), "UCX notes the move, and goes on"


def test_delays_of_ucx_are_those_of_its_queue_pair(guest):
    seen = guest.found("ucx_is_measured_and_survives")
    assert seen["completed"] > 50
    assert seen["bytes"] > seen["completed"] * 4000, "nearly all are messages of 4096 bytes"
    assert 0 < seen["min_us"] < seen["max_us"]
    assert seen["max_us"] > 100_000, "the requests that a blackhole held up"
    assert seen["posted"] > 1


def test_a_blackhole_ends_ucx_where_nothing_moves_it(guest):
    seen = guest.found("ucx_ends_where_nothing_moves_it")
    assert "transport retry counter exceeded" in seen["error"]


def test_mpi_over_ucx_survives_two_silent_blackholes(guest):
    seen = guest.found("mpi_over_ucx_is_recorded_and_survives")
    assert len(seen["moved_ms"]) == 2
    assert seen["exit"] == 0
    assert [each[0] for each in seen["ranks"]] == ["0", "1"]
    assert [each[2] for each in seen["ranks"]] == ["0", "0"], "sums that are wrong"
    assert seen["devices"] == ["rxe_a0", "rxe_b0"]


def test_operations_of_mpi_and_delays_of_its_queue_pairs_come_from_one_process(guest):
    seen = guest.found("mpi_over_ucx_is_recorded_and_survives")
    assert seen["all_reduce_bytes"] == [16_384]
    assert seen["all_reduces"] == [int(each[1]) for each in seen["ranks"]]
    assert seen["longest_ms"][-1] > 100, "the operations that a blackhole held up"
    assert seen["max_us"] > 100_000
