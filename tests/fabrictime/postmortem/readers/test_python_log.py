"""Lines of PyTorch and its launchers in the forms of public issues, reduced and with other names.

Each test names its source.
"""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import explained_logs


def test_two_ranks_in_another_library_while_six_time_out(tmp_path):
    """A public post-mortem (PyTorch 2.9, 8 ranks): ranks 0 and 4 wait in Gloo, six in NCCL's BROADCAST 78."""
    lines = [
        f"[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
        f"Connection closed by peer "
        "[10.0.0.7]:57000"
        for rank in (0, 4)
    ]
    for rank in (1, 2, 3, 5, 6, 7):
        head = f"[rank{rank}]:[E810 03:04:11.06 ProcessGroupNCCL.cpp"
        lines += [
            f"{head}:683] [Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum=78, OpType=BROADCAST, "
            "NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds before timing out.",
            f"{head}:2241] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog "
            f"at work sequence id: 78 "
            "PG status: last enqueued work: 79, last completed work: 77",
        ]
    lines += ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-08-10_03:05:11"]
    lines += ["  host      : worker02", "  rank      : 7 (local_rank: 7)", "  exitcode  : -6 (pid: 26084)"]
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 0", "rank 4"])


def test_the_older_watchdog_of_pytorch_2_1(tmp_path):
    """pytorch/pytorch issues of 2023: no SeqNum in the oldest form, `Timeout at NCCL work` in the newer
    one.
    """
    lines = [
        f"[rank{rank}]:[E1003 18:37:01.83 ProcessGroupNCCL.cpp:{place} {text}"
        for rank in range(1, 4)
        for place, text in (
            (
                "607]",
                f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6463, "
                f"OpType=ALLREDUCE, "
                "NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800017 milliseconds before timing out.",
            ),
            (
                "1709]",
                f"[PG 0 (default_pg) Rank {rank}] Timeout at NCCL work: 6463, last enqueued NCCL work: "
                f"6463, last completed "
                "NCCL work: 6462.",
            ),
        )
    ]
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 0"])


def test_a_segmentation_fault_of_all_ranks_names_the_first(tmp_path):
    """A public xDiT run on ROCm: torchrun reports signal 11 of both ranks in one second."""
    block = "  time      : 2026-01-15_05:44:28\n  host      : xdit\n  rank      : {0} (local_rank: {0})\n"
    block += "  exitcode  : -11 (pid: 617{0})\n  error_file: <N/A>\n"
    text = (
        "Failures:\n[1]:\n"
        + block.format(1)
        + "Root Cause (first observed failure):\n[0]:\n"
        + block.format(0)
    )
    answer = explained_logs(tmp_path, job=text)
    assert answer["verdict"] == "DEAD_RANK"
    assert answer["culprits"][0] == "rank 0"
