"""Transports of communicators, from lines of NCCL's logs in the forms of NVIDIA/nccl, src/transport."""

from __future__ import annotations

from fabrictime.postmortem.report import explain_folder
from tests.fabrictime.postmortem.job_files import explained_logs


def start(host, pid, rank, ranks, communicator, *channels):
    """Return the lines of a process that starts a communicator."""
    head = f"{host}:{pid}:{pid} [{rank % 8}] NCCL INFO"
    common = (
        f"ncclCommInitRankConfig comm 0x5{rank} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000"
    )
    return [
        f"{head} {common} commId 0x{communicator} - Init START",
        *(f"{head} {channel}" for channel in channels),
        f"{head} {common} commId 0x{communicator} - Init COMPLETE",
    ]


def devices(host, pid):
    return [
        f"{host}:{pid}:{pid} [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; "
        "OOB eth0:10.0.0.1<0>"
    ]


def transports(tmp_path, lines):
    answer = explained_logs(tmp_path, job="\n".join(lines))
    return answer, {(use["communicator"], use["transport"]): use for use in answer["transports"]}


def test_each_transport_of_a_communicator_is_stated(tmp_path):
    lines = []
    for rank, host in enumerate(("a", "b")):
        lines += devices(host, 7)
        lines += start(
            host,
            7,
            rank,
            2,
            "ab",
            f"Channel 00/0 : {rank}[0] -> {1 - rank}[1] [send] via NET/IB/{rank}(0)/GDRDMA",
            f"Channel 01/0 : {rank}[0] -> {1 - rank}[1] via P2P/CUMEM/read",
            f"Channel 02/0 : {rank}[0] -> {1 - rank}[1] via SHM/direct/direct",
            f"CollNet 00/0 : {rank} [send] via COLLNET/SHARP/{rank}/GDRDMA",
            "NVLS comm 0x55b0e50b0050 headRank 0 nHeads 8 nvlsRanks 8 buffSize 1048576 "
            "nvlsPerRankSize 33554432 nvlsTotalSize 268435456",
        )
    answer, uses = transports(tmp_path, lines)
    assert answer["verdict"] == "HEALTHY"
    assert {key[1] for key in uses} == {"IB", "P2P", "SHM", "COLLNET", "NVLS"}
    assert uses["0xab", "IB"]["nics"] == ["a/mlx5_0", "b/mlx5_1"]
    assert uses["0xab", "COLLNET"]["nics"] == ["a/mlx5_0", "b/mlx5_1"]
    assert (uses["0xab", "IB"]["gpudirect"], uses["0xab", "P2P"]["ranks"], uses["0xab", "NVLS"]["hosts"]) == (
        2,
        2,
        2,
    )


def test_a_communicator_on_sockets_beside_one_on_rdma_is_a_fallback(tmp_path):
    lines = []
    for rank, host in enumerate(("a", "b")):
        lines += devices(host, 7)
        for name, network in (("11", "IB/0/GDRDMA"), ("22", "Socket/0")):
            for channel in range(1 if name == "22" else 8):
                via = f"Channel {channel:02}/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/{network}"
                lines += start(host, 7, rank, 2, name, via)
    answer, uses = transports(tmp_path, lines)
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["host a", "host b"])
    assert "communicator 0x22 uses sockets" in answer["text"]
    assert uses["0x22", "Socket"]["connections"] == 2


def local_host(host, first, kind):
    lines = []
    for rank in range(first, first + 2):
        peer = 2 * first + 1 - rank
        lines += start(host, 100 + rank, rank, 8, "ab", f"Channel 00 : {rank}[0] -> {peer}[1] via {kind}")
    return lines


def test_host_memory_between_the_gpus_of_one_host_is_a_fallback(tmp_path):
    lines = [
        line
        for number, host in enumerate("abcd")
        for line in local_host(host, 2 * number, "SHM/direct/direct" if host == "c" else "P2P/CUMEM")
    ]
    answer, _ = transports(tmp_path, lines)
    assert (answer["verdict"], answer["culprits"]) == ("FALLBACK", ["host c"])
    assert "host memory" in answer["text"]


def test_hosts_that_all_use_host_memory_have_no_peer_access(tmp_path):
    lines = [
        line
        for number, host in enumerate("abcd")
        for line in local_host(host, 2 * number, "SHM/direct/direct")
    ]
    answer, uses = transports(tmp_path, lines)
    assert answer["verdict"] == "HEALTHY"
    assert uses["0xab", "SHM"]["ranks"] == 8


def test_the_text_of_the_report_states_the_transports(tmp_path):
    transports(
        tmp_path,
        devices("a", 7) + start("a", 7, 0, 2, "ab", "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1"),
    )
    from fabrictime.postmortem.report import draw

    texts = [str(part) for part in draw(*explain_folder(tmp_path))]
    assert "transport of communicator 0xab: IB 1 ranks over 1 NICs" in texts
