"""Bus bandwidth: the factors of nccl-tests."""

from __future__ import annotations

import pytest

from producers.collectives.bandwidth import bus_bps
from schemas.records import CollectiveFunction, CollectiveSource

MPI, NCCL = CollectiveSource.MPI, CollectiveSource.NCCL


@pytest.mark.parametrize(
    ("function", "source", "size", "expected"),
    [
        # 8 ranks; nccl-tests' size / t * factor, with the size of the larger buffer, 8 MB in 1 ms
        ("ALL_REDUCE", MPI, 8_000_000, 64e9 * 2 * 7 / 8),
        ("ALL_GATHER", NCCL, 1_000_000, 64e9 * 7 / 8),
        ("GATHER", MPI, 1_000_000, 64e9 * 7 / 8),
        ("SCATTER", MPI, 1_000_000, 64e9 * 7 / 8),
        ("REDUCE_SCATTER", MPI, 8_000_000, 64e9 * 7 / 8),
        ("REDUCE_SCATTER", NCCL, 1_000_000, 64e9 * 7 / 8),
        ("ALL_TO_ALL", CollectiveSource.RCCL, 1_000_000, 64e9 * 7 / 8),
        ("BROADCAST", MPI, 8_000_000, 64e9),
        ("REDUCE", NCCL, 8_000_000, 64e9),
        ("SEND", NCCL, 8_000_000, 64e9),
    ],
)
def test_bandwidth_is_that_of_nccl_tests(function, source, size, expected):
    assert bus_bps(CollectiveFunction(function), source, 8, size, 1_000_000) == pytest.approx(expected)


def test_functions_without_data_have_none():
    barrier, reduce = CollectiveFunction.BARRIER, CollectiveFunction.ALL_REDUCE
    assert bus_bps(barrier, MPI, 8, 1, 1) is None
    assert bus_bps(reduce, MPI, 0, 1, 1) is None, "the number of ranks is unknown"
    assert bus_bps(reduce, MPI, 8, 0, 1) is bus_bps(reduce, MPI, 8, 1, 0) is None
    assert bus_bps(CollectiveFunction.SEND, MPI, 0, 1, 8) == 1e9
