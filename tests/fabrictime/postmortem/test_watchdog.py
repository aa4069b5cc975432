"""Lines of PyTorch's watchdog without dumps."""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import explained


def watchdog(rank, seq, function="ALLREDUCE", elements=1048576, enqueued=None):
    return (
        f"[rank{rank}]:[E906 03:02:35.091834500 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog "
        f"caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={function}, NumelIn={elements}, NumelOut={elements}, "
        "Timeout(ms)=600000) ran for 600002 milliseconds before timing out.\n"
        f"[rank{rank}]:[E906 03:02:35.09 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank {rank}]  failure detected by "
        f"watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued or seq}, last "
        f"completed work: {seq - 1}\n"
    )


def test_the_watchdog_shows_the_rank_that_is_behind(tmp_path):
    text = "".join(watchdog(rank, 78 if rank == 4 else 79) for rank in range(8))
    (tmp_path / "log").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 4"])


def test_the_watchdog_shows_the_rank_that_called_another_size(tmp_path):
    text = "".join(watchdog(rank, 79, elements=7 if rank == 2 else 9) for rank in range(8))
    (tmp_path / "log").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("PROGRAM_MISMATCH", ["rank 2"])


def test_the_rank_without_a_timeout_is_the_one_that_did_not_come(tmp_path):
    text = "world_size=8\n" + "".join(watchdog(rank, 79) for rank in range(8) if rank != 5)
    (tmp_path / "log").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 5"])


def test_ranks_that_may_have_passed_a_broadcast_are_not_named(tmp_path):
    """The launcher kills them at the first timeout, as in a public log of eight ranks."""
    text = "world_size=8\n" + "".join(watchdog(rank, 7, "BROADCAST") for rank in (1, 4, 5, 6, 7))
    (tmp_path / "log").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", [])
    assert "ranks 0, 2, 3 may have passed it" in answer["text"]


def test_the_root_that_all_others_miss_is_named(tmp_path):
    text = "world_size=8\n" + "".join(watchdog(rank, 7, "BROADCAST") for rank in range(1, 8))
    (tmp_path / "log").write_text(text)
    assert explained(tmp_path)["culprits"] == ["rank 0"]
