"""Dumps of ranks that called different collectives."""

from __future__ import annotations

import pytest

from tests.fabrictime.postmortem.job_files import call, explained, waiting, write_dumps


@pytest.mark.parametrize(
    "other",
    [
        {"function": "all_gather"},
        {"input_sizes": [[512, 4]]},
        {"input_dtypes": ["BFloat16"]},
    ],
)
def test_another_function_size_or_type_is_a_mismatch(tmp_path, other):
    done = [call(seq) for seq in range(1, 5)]
    write_dumps(tmp_path, lambda rank: [*done, waiting(**other) if rank == 6 else waiting()])
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("PROGRAM_MISMATCH", ["rank 6"])


def test_uneven_sizes_of_an_all_to_all_are_no_mismatch(tmp_path):
    write_dumps(
        tmp_path,
        lambda rank: [call(seq, "all_to_all", input_sizes=[[rank * 10 + 1]]) for seq in range(1, 9)],
    )
    assert explained(tmp_path)["verdict"] == "HEALTHY"


def test_in_a_group_of_two_the_calls_of_other_groups_decide(tmp_path):
    pairs = {f"{1 + pair}": ("tp", [2 * pair, 2 * pair + 1]) for pair in range(4)}

    def entries(rank):
        pair = (f"{1 + rank // 2}", "tp")
        done = [call(seq, "all_gather", process_group=pair) for seq in range(1, 9)]
        if rank // 2 != 2:
            return done
        sizes = [[7, 4]] if rank == 4 else [[1024, 4]]
        return [*done, call(9, "all_gather", "scheduled", process_group=pair, input_sizes=sizes)]

    write_dumps(tmp_path, entries, groups={"0": ("default_pg", range(8)), **pairs})
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("PROGRAM_MISMATCH", ["rank 4"])
