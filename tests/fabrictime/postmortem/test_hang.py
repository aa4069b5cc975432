"""Dumps of hung jobs: the rank that others wait for."""

from __future__ import annotations

import pytest

from tests.fabrictime.postmortem.job_files import call, explained, waiting, write_dumps


@pytest.mark.parametrize("form", ["json", "pickle", "json.gz", "pickle.gz"])
def test_the_rank_that_did_not_enter_a_collective_hangs_the_job(tmp_path, form):
    done = [call(seq) for seq in range(1, 5)]
    write_dumps(tmp_path, lambda rank: done if rank == 3 else [*done, waiting()], form=form)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 3"])
    assert "rank 3 did not enter all_reduce 5 of group 0 (default_pg)" in answer["text"]
    assert answer["ranks"] == {"expected": 8, "seen": 8, "missing": []}
    assert answer["formats"] == {f"flight-recorder-{form.removesuffix('.gz')}": 8}


def test_a_rank_without_a_dump_is_the_suspect_and_is_named_as_missing(tmp_path):
    done = [call(seq) for seq in range(1, 5)]
    write_dumps(
        tmp_path,
        lambda rank: [*done, waiting()],
        ranks=[0, 1, 2, 3, 4, 6, 7],
        groups={"0": ("default_pg", range(8))},
    )
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 5"])
    assert answer["ranks"]["missing"] == [5]
    assert any("rank 5 left no dump: set TORCH_NCCL_DUMP_ON_TIMEOUT=1" in line for line in answer["missing"])


def test_an_innocent_rank_without_a_dump_is_not_the_culprit(tmp_path):
    done = [call(seq) for seq in range(1, 5)]
    write_dumps(
        tmp_path,
        lambda rank: done if rank == 2 else [*done, waiting()],
        ranks=[0, 1, 2, 3, 4, 6, 7],
        groups={"0": ("default_pg", range(8))},
    )
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 2"])
    assert answer["ranks"]["missing"] == [5]


def test_the_root_is_behind_a_chain_of_groups(tmp_path):
    """Rank 5 does not enter its pair's collective; its pair waits in it, and all others wait for both."""
    pairs = {f"{1 + pair}": ("tp", [2 * pair, 2 * pair + 1]) for pair in range(4)}
    groups = {"0": ("default_pg", range(8)), **pairs}
    done = [call(seq) for seq in range(1, 5)]

    def entries(rank):
        pair = (f"{1 + rank // 2}", "tp")
        if rank == 5:
            return done
        if rank == 4:
            return [*done, call(1, "all_gather", "scheduled", at_ms=450, process_group=pair)]
        return [*done, call(1, "all_gather", at_ms=450, process_group=pair), waiting()]

    write_dumps(tmp_path, entries, groups=groups)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 5"])


def test_a_rank_that_does_not_receive_hangs_a_pipeline(tmp_path):
    def message(rank, name, state="scheduled"):
        return call(0, at_ms=500, state=state, is_p2p=True, p2p_seq_id=9, profiling_name=f"nccl:{name}")

    done = [call(seq) for seq in range(1, 5)]
    stages = {0: [message(0, "send 0->1")], 1: [], 2: [message(2, "recv 2<-1")], 3: [message(3, "recv 3<-2")]}
    write_dumps(tmp_path, lambda rank: [*done, *stages[rank]], ranks=range(4))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 1"])


def test_a_collective_that_all_entered_and_none_left_has_no_culprit(tmp_path):
    write_dumps(tmp_path, lambda rank: [*[call(seq) for seq in range(1, 5)], waiting()])
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", [])
    assert "all ranks entered all_reduce 5" in answer["text"]
