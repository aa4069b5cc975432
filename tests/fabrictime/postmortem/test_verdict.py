"""One verdict from several files, and healthy jobs."""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import call, explained, waiting, write_dumps


def test_a_job_that_completed_all_is_healthy(tmp_path):
    write_dumps(tmp_path, lambda rank: [call(seq) for seq in range(1, 20)])
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HEALTHY", [])


def test_a_killed_rank_explains_the_wait_of_the_others(tmp_path):
    done = [call(seq) for seq in range(1, 5)]
    groups = {"0": ("default_pg", range(8))}
    write_dumps(tmp_path, lambda rank: [*done, waiting()], ranks=range(7), groups=groups)
    lines = "srun: error: node0: task 7: Killed\nsrun: error: node0: tasks 0-6: Terminated\n"
    (tmp_path / "job.err").write_text(lines)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 7", "host node0"])
    assert answer["also_possible"][0]["verdict"] == "HANG"


def test_a_job_that_slurm_calls_complete_is_healthy(tmp_path):
    (tmp_path / "sacct.txt").write_text(
        "JobID|JobName|State|ExitCode|\n15|sleep.sh|COMPLETED|0:0|\n15.batch|batch|COMPLETED|0:0|\n"
    )
    assert explained(tmp_path)["verdict"] == "HEALTHY"


def test_a_host_that_ran_out_of_memory_is_joined_with_the_rank_that_others_wait_for(tmp_path):
    done = [call(seq) for seq in range(1, 5)]
    groups = {"0": ("default_pg", range(8))}
    write_dumps(tmp_path, lambda rank: [*done, waiting()], ranks=range(7), groups=groups)
    text = "JobID|State|ExitCode|NodeList\n7|FAILED|0:0|n[0-1]\n7.0|OUT_OF_MEMORY|0:125|n1\n"
    (tmp_path / "sacct").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 7", "host n1"])
