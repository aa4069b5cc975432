"""Lines of NCCL's logs in the forms of public issues, reduced and with other names.

Each test names its source.
"""

from __future__ import annotations

from tests.fabrictime.postmortem.job_files import explained_logs


def test_completion_errors_of_nccl_2_21(tmp_path):
    """NVIDIA/nccl issue #1405: an unreachable peer, seen from one host; the word `status=12`."""
    head = "worker-0:3468:3905 [4]"
    error = (
        "with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00:1148::ff22 "
        "remoteGidsfd00:1148::ff1f"
    )
    lines = [
        f"{head} NCCL INFO Bootstrap : Using eth0:10.216.210.1<0>",
        f"{head} NCCL INFO comm 0x55 rank 4 nranks 16 cudaDev 4 nvmlDev 4 busId 9b000 commId 0x5a - "
        f"Init COMPLETE",
        f"{head} ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> {error}",
        f"{head} NCCL INFO transport/net.cc:1302 -> 6",
    ]
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["host worker-0"])
    assert "status 12" in answer["text"]
    assert answer["ranks"]["expected"] == 16


def test_completion_errors_name_the_host_that_several_lost(tmp_path):
    """NVIDIA/nccl issue #1814: several hosts lose one peer; the line ends with the HCA (2.23 and later)."""
    lines = [f"gpu{host}:7:8 [0] NCCL INFO Bootstrap : Using bond0:10.0.0.{host}<0>" for host in range(4)]
    lines += [
        f"gpu{host}:7:9 [1] net_ib.cc:2251 NCCL WARN NET/IB: Got completion from peer 10.0.0.3<45123> "
        f"with status=12 "
        "opcode=32 len=0 vendor err 129 (Send) localGid ::ffff:10.1.0.1 remoteGids::ffff:10.1.0.4 hca "
        "mlx5_bond_2"
        for host in range(3)
    ]
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert (answer["verdict"], answer["culprits"]) == ("DEAD_RANK", ["host gpu3"])
    assert "its process ended, or it is cut off" in answer["text"]


def test_errors_at_both_ends_of_a_connection_are_the_network(tmp_path):
    lines = [f"gpu{host}:7:8 [0] NCCL INFO Bootstrap : Using bond0:10.0.0.{host}<0>" for host in range(4)]
    lines += [
        f"gpu{host}:7:9 [1] net_ib.cc:2251 NCCL WARN NET/IB: Got completion from peer 10.0.0.{peer}<45123> "
        "with status=12 opcode=32 len=0 vendor err 129 (Send) hca mlx5_bond_2"
        for host, peer in ((0, 3), (1, 3), (3, 0))
    ]
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["nic gpu3/mlx5_bond_2", "host gpu3"])


def test_sockets_without_host_bridges_of_nccl_2_11(tmp_path):
    """A manual of NVIDIA Base Command Manager prints this run of nccl-tests with NCCL_IB_DISABLE=1,
    2.11.4.
    """
    lines = []
    for rank, host in enumerate(("node001", "node002")):
        head = f"{host}:17594{rank}:17756{rank} [0] NCCL INFO"
        lines += [
            f"{head} Bootstrap : Using ens3:10.141.0.{5 + rank}<0>",
            f"{head} NCCL_IB_DISABLE set by environment to 1.",
            f"{head} NET/Socket : Using [0]ens3:10.141.0.{5 + rank}<0>",
            f"{head} Using network Socket",
            f"{head} Channel 00 : {1 - rank}[60] -> {rank}[60] [receive] via NET/Socket/0",
            f"{head} comm 0x1551 rank {rank} nranks 2 cudaDev 0 busId 60 - Init COMPLETE",
        ]
    lines.append(" 1048576 262144 float sum 1491.5 0.70 0.70 0e+00 1421.3 0.74 0.74 0e+00")
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["host node001", "host node002"])
    assert answer["formats"] == {"nccl-debug-log": 1, "nccl-tests": 1}


def test_an_elastic_fabric_adapter_is_no_fallback(tmp_path):
    """aws/aws-ofi-nccl: the network is called AWS Libfabric or Libfabric, with GDRDMA."""
    lines = []
    for rank in range(2):
        head = f"ip-10-0-0-{rank}:41:99 [0] NCCL INFO"
        lines += [
            f"{head} NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)",
            f"{head} Using network AWS Libfabric",
            f"{head} Channel 00/0 : {1 - rank}[0] -> {rank}[0] [receive] via NET/AWS Libfabric/0/GDRDMA",
            f"{head} ncclCommInitRankConfig comm 0x36 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId "
            f"1e0 commId 0x1 - "
            "Init COMPLETE",
        ]
    assert explained_logs(tmp_path, job="\n".join(lines))["verdict"] == "HEALTHY"


def test_lines_of_nccl_2_27_with_a_time_and_a_launcher_prefix(tmp_path):
    """NVIDIA/nccl v2.27 src/debug.cc: NCCL_DEBUG_TIMESTAMP_LEVELS; srun --label and mpirun --tag-output."""
    heads = ("[2025-11-29 10:00:00] ", "3: ", "[1,4]<stdout>:", "(Worker pid=12, ip=10.0.0.1) ")
    lines = [
        f"{head}h{rank}:1{rank}:20 [0] NCCL INFO [Rank {rank}] ncclCommInitRank comm 0x5 rank {rank} "
        f"nranks 4 cudaDev 0 "
        f"nvmlDev 0 busId 1 commId 0xab - Init {phase}"
        for rank, head in enumerate(heads)
        for phase in ("START", "COMPLETE")
    ]
    answer = explained_logs(tmp_path, job="\n".join(lines))
    assert answer["ranks"] == {"expected": 4, "seen": 4, "missing": []}
