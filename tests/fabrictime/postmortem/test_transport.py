"""Logs of NCCL: sockets, fewer NICs, no GPUDirect, errors of NICs, ranks that do not join."""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import call, explained, nccl_lines, waiting, write_dumps


def test_logs_of_nccl_name_the_nic_of_a_collective_that_none_left(tmp_path):
    write_dumps(tmp_path, lambda rank: [*[call(seq) for seq in range(1, 5)], waiting()], ranks=range(16))
    lines = [line for rank in range(16) for line in nccl_lines(rank, f"node{rank // 8}")]
    lines.append(
        "\nnode1:1009:1100 [1] transport/net_ib.cc:2251 NCCL WARN NET/IB: Got completion from peer "
        "10.0.0.0<45123> with "
        "status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.1.0.1 "
        "remoteGids::ffff:10.1.0.2 hca mlx5_1"
    )
    lines.append(
        "node1:1009:1100 [1] ibvwrap.cc:10 NCCL WARN NET/IB : mlx5_1:1 Got async error event: port error"
    )
    (tmp_path / "slurm-1.out").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert answer["verdict"] == "HANG"
    assert answer["culprits"][0] == "nic node1/mlx5_1"


def log(tmp_path, **of_last):
    """Write the logs of two hosts and a third one with `of_last`."""
    lines = []
    for rank in range(24):
        more = of_last if rank >= 16 else {}
        lines += nccl_lines(rank, f"node{rank // 8}", ranks=24, **more)
    (tmp_path / "job.out").write_text("\n".join(lines))
    return explained(tmp_path)


def test_a_log_of_hosts_that_are_equal_is_healthy(tmp_path):
    answer = log(tmp_path)
    assert (answer["verdict"], answer["ranks"]["expected"]) == ("HEALTHY", 24)


def test_a_host_on_sockets_is_a_fallback(tmp_path):
    answer = log(tmp_path, network="Socket")
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["host node2"])
    assert "No device found" in answer["text"]


def test_a_host_with_fewer_nics_is_a_fallback(tmp_path):
    answer = log(tmp_path, nics=7)
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["nic node2/mlx5_7", "host node2"])


def test_a_host_without_gpudirect_is_a_fallback(tmp_path):
    answer = log(tmp_path, gdr=False)
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["host node2"])


def test_a_rank_that_does_not_join_is_named(tmp_path):
    lines = [
        line
        for rank in range(16)
        if rank != 9
        for line in nccl_lines(rank, f"node{rank // 8}")
        if "COMPLETE" not in line and "Channel" not in line
    ]
    (tmp_path / "job.out").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 9"])


def test_a_rank_without_a_log_does_not_make_its_nic_unused(tmp_path):
    lines = [
        line for rank in range(24) if rank != 9 for line in nccl_lines(rank, f"node{rank // 8}", ranks=24)
    ]
    (tmp_path / "job.out").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["ranks"]["missing"]) == ("HEALTHY", [9])


def test_a_host_that_uses_fewer_of_its_nics_is_a_fallback(tmp_path):
    lines = [line for rank in range(24) for line in nccl_lines(rank, f"node{rank // 8}", ranks=24)]
    lines = [line.replace("NET/IB/7", "NET/IB/6") if line.startswith("node1:") else line for line in lines]
    (tmp_path / "job.out").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["nic node1/mlx5_7", "host node1"])
