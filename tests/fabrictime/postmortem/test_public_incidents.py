"""Public incidents, with other names and numbers. `docs/verdicts/incidents.md` has the reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.postmortem.report import explain_folder
from tests.fabrictime.postmortem.job_files import call, waiting, write_dumps

PAGE = Path(__file__).resolve().parents[3] / "docs" / "verdicts" / "incidents.md"
GATHER = 52_117


def exception_beside_a_waiting_peer(folder):
    """pytorch/pytorch#196968: a rank raises an exception and ends its groups; only its peer writes a dump."""
    write_dumps(
        folder,
        lambda rank: [*[call(seq) for seq in range(1, 4)], waiting(4)],
        ranks=[1],
        groups={"0": ("default_pg", range(2))},
    )
    lines = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/srv/train/step.py", line 88, in forward',
        "[rank0]: ValueError: batch 7 holds no sample",
    ]
    (folder / "rank0.log").write_text("\n".join(lines) + "\n")


def report_with_later_kills(folder):
    """vllm-project/speculators#1115: one process fails; torchrun kills another 30 s later."""
    lines = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "fit.py FAILED",
        "Failures:",
    ]
    rows = [(3, "10:00:07", 1), (0, "10:00:38", -9), (2, "10:00:38", -15)]
    for number, (rank, time, code) in enumerate(rows, 1):
        lines += [f"[{number}]:", *entry(rank, time, code)]
    lines += ["Root Cause (first observed failure):", "[0]:", *entry(1, "10:00:07", 1)]
    (folder / "train.log").write_text("\n".join(lines) + "\n")


def entry(rank, time, code):
    return [
        f"  time      : 2026-05-04_{time}",
        "  host      : blade7",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {4100 + rank})",
    ]


def tensor_parallel_pair(folder):
    """sgl-project/sglang#33289: of two ranks, one waits in a gather that the other never calls."""
    done = [call(seq, "all_reduce") for seq in range(GATHER - 9, GATHER)]
    ranks = {"0": ("tp", range(2))}
    entries = [*done, waiting(GATHER, profiling_name="nccl:_all_gather_base")]
    write_dumps(folder, lambda rank: entries if rank == 1 else done, ranks=range(2), groups=ranks)


@pytest.mark.parametrize(
    ("write", "verdict", "culprits"),
    [
        (exception_beside_a_waiting_peer, "DEAD_RANK", ("rank 0",)),
        (report_with_later_kills, "DEAD_RANK", ("rank 1", "host blade7")),
        (tensor_parallel_pair, "HANG", ("rank 0",)),
    ],
)
def test_the_report_names_the_culprit_and_is_that_of_the_docs(tmp_path, write, verdict, culprits):
    write(tmp_path)
    _, answer = explain_folder(tmp_path)
    assert (answer.best.verdict, answer.best.culprits) == (verdict, culprits)
    sentence = f"{answer.best.verdict}, confidence {answer.best.confidence:.0%}: {answer.best.text}"
    assert sentence in PAGE.read_text()
