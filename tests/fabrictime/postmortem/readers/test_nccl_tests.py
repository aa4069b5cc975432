"""Tables of nccl-tests in the forms of public issues, reduced and with other names.

Each test names its source.
"""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import explained_logs


def test_results_that_are_wrong_in_a_table(tmp_path):
    """NVIDIA/nccl-tests, an issue with libfabric: 96 wrong values at one size, `Out of bounds values : 4
    FAILED`.
    """
    rows = [
        "#  Rank  0 Group  0 Pid 662195 on    gpu-1-1 device  0 [0009:01:00] NVIDIA GH200 120GB",
        "#  Rank  1 Group  0 Pid 2448661 on    gpu-1-7 device  0 [0009:01:00] NVIDIA GH200 120GB",
        "     1048576        262144     float     sum      -1   477.32    2.20    2.20      96   "
        "492.81    2.13    2.13      32",
        "   134217728      33554432     float     sum      -1  5869.38   22.87   22.87       0  "
        "5886.67   22.80   22.80       0",
        "# Out of bounds values : 4 FAILED",
        "# Avg bus bandwidth    : 4.79995",
    ]
    answer = explained_logs(tmp_path, job="\n".join(rows))
    assert (answer["verdict"], answer["culprits"]) == ("UNKNOWN", [])
    assert "wrong results at 1,048,576 bytes" in answer["text"]
