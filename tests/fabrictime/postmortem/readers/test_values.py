"""Values from files that nobody checked."""

from __future__ import annotations

import pytest

from fabrictime.postmortem.readers.values import clean_function, members, whole


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3), ("3", 3), (-1, None), (True, None), (3.0, None), ("x", None), (2**80, None)]
)
def test_whole_numbers(value, number):
    assert whole(value) == number


@pytest.mark.parametrize("value", ["[0, 1, 5]", [5, 1, 0], "0,1,5", (0, "1", 5)])
def test_members_of_a_group(value):
    assert members(value, 100) == (0, 1, 5)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_all_gather_base", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ALLREDUCE", "all_reduce"),
        ("AllToAll", "all_to_all"),
    ],
)
def test_names_of_functions(name, function):
    assert clean_function(name) == function
