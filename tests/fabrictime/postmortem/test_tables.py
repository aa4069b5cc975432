"""Runs of nccl-tests that are slow, equal or wrong."""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import explained, table


def test_runs_of_nccl_tests_name_the_host_of_the_slow_ones(tmp_path):
    pairs = [("n1", "n2"), ("n3", "n4"), ("n1", "n3"), ("n2", "n4"), ("n5", "n6"), ("n5", "n3")]
    for first, second in pairs:
        rate = 190.0 if "n2" in (first, second) else 380.0
        text = table([first, second], [rate, rate + 4, rate + 5])
        (tmp_path / f"{first}-{second}.txt").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("SLOW_NIC", ["host n2"])


def test_equal_runs_of_nccl_tests_are_healthy_and_one_run_alone_is_unknown(tmp_path):
    (tmp_path / "a.txt").write_text(table(["n1", "n2"], [370.0, 380.0]))
    assert explained(tmp_path)["verdict"] == "UNKNOWN"
    (tmp_path / "b.txt").write_text(table(["n3", "n4"], [371.0, 379.0]))
    assert explained(tmp_path)["verdict"] == "HEALTHY"


def test_wrong_results_of_nccl_tests_are_stated(tmp_path):
    (tmp_path / "a.txt").write_text(table(["n1", "n2"], [370.0, 380.0], wrong=3))
    answer = explained(tmp_path)
    assert "wrong results" in answer["text"]


def test_runs_over_one_nic_each_name_the_nic(tmp_path):
    for nic in range(4):
        rate = 20.0 if nic == 2 else 48.0
        text = f"+ export NCCL_IB_HCA=mlx5_{nic}\n" + table(["n1"], [rate, rate + 1])
        (tmp_path / f"rail{nic}.txt").write_text(text)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("SLOW_NIC", ["nic n1/mlx5_2", "host n1"])


def write_pairs(folder, slow):
    hosts = [f"n{number}" for number in range(1, 9)]
    for first, second in [(a, b) for a in hosts for b in hosts if a < b]:
        rate = 20.0 if (first, second) in slow else 140.0
        (folder / f"{first}-{second}.txt").write_text(table([first, second], [rate, rate, rate]))


def test_slow_runs_without_the_named_host_are_stated_and_lower_the_confidence(tmp_path):
    """As in a public series of 408 runs: a host is in many slow runs, and others are slow too."""
    others = [("n5", "n6"), ("n7", "n8"), ("n6", "n7")]
    write_pairs(tmp_path, [*[("n1", f"n{at}") for at in (2, 3, 4, 5)], *others])
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("SLOW_NIC", ["host n1"])
    assert "in 4 of 7 runs with n1" in answer["text"]
    assert "3 other runs are slow too" in answer["text"]
    assert answer["confidence"] == 0.5
    assert all("n1" in line for line in answer["evidence"][:4])


def test_slow_runs_without_a_common_host_are_no_healthy_series(tmp_path):
    write_pairs(tmp_path, [("n1", "n2"), ("n5", "n6"), ("n3", "n7")])
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("UNKNOWN", [])
    assert "20.0 GB/s in 3 of 28 runs, 140.0 GB/s in the median one" in answer["text"]
