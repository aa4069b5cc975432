"""The first process that ended, from launchers, exceptions and Slurm."""

from __future__ import annotations

import json

import pytest

from tests.fabrictime.postmortem.job_files import explained, nccl_lines

TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-15_05:44:30
  host      : node1
  rank      : 9 (local_rank: 1)
  exitcode  : -6 (pid: 6175)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 6175
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-15_05:44:28
  host      : node1
  rank      : 11 (local_rank: 3)
  exitcode  : -9 (pid: 6174)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 6174
============================================================
"""


def test_the_first_death_that_torchrun_reports_is_the_cause(tmp_path):
    (tmp_path / "train.log").write_text(TORCHRUN)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 11", "host node1"])
    assert "signal 9 (killed)" in answer["text"]


def test_slurm_accounting_names_the_task_that_ran_out_of_memory(tmp_path):
    (tmp_path / "sacct.txt").write_text(
        "JobID|JobName|State|ExitCode|MaxRSS|MaxRSSNode|MaxRSSTask|NodeList\n"
        "4242|train|FAILED|0:0||||node[0-3]\n"
        "4242.batch|batch|FAILED|1:0|20M|node0|0|node0\n"
        "4242.0|python|OUT_OF_MEMORY|0:125|512000000K|node2|17|node[0-3]\n"
    )
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 17", "host node2"])
    assert answer["formats"] == {"slurm-accounting": 1}


def test_an_exception_of_one_rank_is_the_cause_of_the_aborts_of_others(tmp_path):
    lines = [
        f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2023"
        for rank in range(8)
        if rank != 5
    ]
    lines.insert(3, "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    (tmp_path / "log").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 5"])


def test_sacct_in_json_names_the_task_too(tmp_path):
    step = {
        "step": {"id": "4242.0", "name": "python"},
        "state": ["OUT_OF_MEMORY"],
        "exit_code": {"status": ["SIGNALED"], "return_code": {"number": 0}, "signal": {"id": {"number": 9}}},
        "nodes": {"count": 2, "range": "node[0-1]", "list": ["node0", "node1"]},
        "tres": {"requested": {"max": [{"type": "mem", "count": 5, "node": "node1", "task": 12}]}},
    }
    job = {"job_id": 4242, "state": {"current": ["FAILED"]}, "nodes": "node[0-1]", "steps": [step]}
    content = {"meta": {"slurm": {"version": {"major": "24"}}}, "jobs": [job]}
    (tmp_path / "sacct.json").write_text(json.dumps(content))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 12", "host node1"])


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("Nov 29 10:00:01 node3 kernel: Out of memory: Killed process 1013 (python3) total-vm:1kB", "node3"),
        ("[12345.678] Memory cgroup out of memory: Killed process 1013 (python3) total-vm:1kB", "node1"),
        (
            "Nov 29 10:00:01 node3 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1013, GPU has fallen off",
            "node3",
        ),
    ],
)
def test_a_message_of_the_kernel_names_the_rank_by_its_process(tmp_path, line, host):
    hosts = ["node1", "node3"] if host == "node3" else ["node0", "node1"]
    lines = [part for rank in range(16) for part in nccl_lines(rank, hosts[rank // 8])]
    (tmp_path / "job.out").write_text("\n".join(lines))
    (tmp_path / "dmesg").write_text(line)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 13", f"host {host}"])


def test_tasks_that_slurm_ends_after_the_first_failure_are_no_causes(tmp_path):
    text = (
        "srun: error: node1: task 13: Exited with exit code 1\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "slurmstepd: error: *** STEP 4242.0 ON node0 CANCELLED AT 2025-11-29T10:00:00 ***\n"
        "srun: error: node0: tasks 0-7: Killed\nsrun: error: node1: tasks 8-12,14-15: Killed\n"
    )
    (tmp_path / "job.err").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["rank 13", "host node1"])


def test_a_rank_that_exits_after_its_watchdog_is_not_the_dead_one(tmp_path):
    lines = ["world_size=8"]
    for rank in (0, 1, 2, 3, 4, 5, 7):
        lines.append(
            f"[rank{rank}]:[E906 03:02:35.09 P.cpp:683] [Rank {rank}] Watchdog caught collective "
            f"operation timeout: "
            "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
            "600002 milliseconds"
        )
    lines += [
        "Root Cause (first observed failure):",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : 1 (pid: 7)",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 6"])
