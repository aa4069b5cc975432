"""Writes the files that a job leaves: dumps, traces, logs. Forms follow the sources named in the readers."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

from fabrictime.postmortem.report import as_json, draw, explain_folder

START_NS = 1_764_400_000_000_000_000
MS = 1_000_000


def call(seq, function="all_reduce", state="completed", at_ms=None, **more):
    """Return an entry of a Flight Recorder dump, version 2.10."""
    created_ns = START_NS + round((seq * 100 if at_ms is None else at_ms) * MS)
    ended_ns = created_ns + 5 * MS if state == "completed" else None
    return {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{function}",
        "time_created_ns": created_ns,
        "input_sizes": [[1024, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, 4]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": ended_ns,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def dump(entries, groups=None, version="2.10"):
    """Return a dump; groups are name to (description, ranks)."""
    groups = groups or {"0": ("default_pg", range(8))}
    config = {
        name: {"name": name, "desc": description, "ranks": str(list(ranks))}
        for name, (description, ranks) in groups.items()
    }
    return {
        "version": version,
        "nccl_version": "2.27.3",
        "pg_config": config,
        "pg_status": {"0": status([entry for entry in entries if entry["process_group"][0] == "0"])},
        "entries": entries,
    }


def status(entries):
    """Return the state of a group after its entries."""
    enqueued = max((entry["collective_seq_id"] for entry in entries), default=-1)
    completed = [entry["collective_seq_id"] for entry in entries if entry["state"] == "completed"]
    last = max(completed, default=-1)
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": last,
        "last_completed_collective": last,
    }


def write_dump(folder: Path, rank: int, content, form="json", name="nccl_trace_rank_{rank}"):
    """Write a dump as json, pickle, json.gz or pickle.gz."""
    data = json.dumps(content).encode() if form.startswith("json") else pickle.dumps(content, 2)
    if form.endswith("gz"):
        data = gzip.compress(data)
    path = folder / name.format(rank=rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_dumps(folder: Path, entries_of, ranks=range(8), **more):
    """Write the dumps of ranks; `entries_of(rank)` returns the entries of a rank."""
    groups = more.pop("groups", {"0": ("default_pg", list(ranks))})
    for rank in ranks:
        write_dump(folder, rank, dump(entries_of(rank), groups), **more)


def nccl_lines(rank, host, ranks=16, nics=8, local=8, network="IB", gdr=True, pid=None):
    """Return the lines of a rank in a log of NCCL_DEBUG=INFO, version 2.23."""
    pid = 1000 + rank if pid is None else pid
    device = rank % local
    head = f"{host}:{pid}:{pid + 1} [{device}] NCCL INFO "
    lines = [f"Bootstrap : Using eth0:10.0.0.{int(host[-1])}<0>"]
    if network == "IB":
        names = "".join(f" [{nic}]mlx5_{nic}:1/RoCE" for nic in range(nics))
        lines.append(f"NET/IB : Using{names} [RO]; OOB eth0:10.0.0.{int(host[-1])}<0>")
    else:
        lines.append("NET/IB : No device found.")
        lines.append(f"NET/Socket : Using [0]eth0:10.0.0.{int(host[-1])}<0>")
    common = (
        f"comm 0x5{rank:03d} rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId 1{device}000"
    )
    lines.append(f"Using network {network}")
    lines.append(f"ncclCommInitRank {common} commId 0x5ae77eb5ea4ec1ee - Init START")
    nic = min(device, nics - 1) if network == "IB" else 0
    suffix = "/GDRDMA" if gdr and network == "IB" else ""
    peer = (rank + local) % ranks
    for channel in range(2):
        lines.append(
            f"Channel {channel:02d}/0 : {rank}[{device}] -> {peer}[{device}] [send] via "
            f"NET/{network}/{nic}{suffix}"
        )
    lines.append(f"ncclCommInitRank {common} commId 0x5ae77eb5ea4ec1ee - Init COMPLETE")
    return [head + line for line in lines]


def trace(rank, parts, world=8, bytes_=4 << 20, group=None):
    """Return a Kineto trace; parts are (begin_us, duration_us) of all-reduces."""
    ranks = list(range(world)) if group is None else group
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "pid": 0,
            "tid": 7,
            "ts": begin_us,
            "dur": duration_us,
            "args": {
                "stream": 20,
                "Collective name": "allreduce",
                "In msg nelems": bytes_ // 4,
                "Out msg nelems": bytes_ // 4,
                "Group size": len(ranks),
                "dtype": "Float",
                "Process Group Name": f"g{ranks[0]}",
                "Process Group Description": "dp",
                "Process Group Ranks": str(ranks),
            },
        }
        for begin_us, duration_us in parts
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world, "pg_count": 1},
        "baseTimeNanoseconds": START_NS,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
            {"ph": "X", "cat": "cpu_op", "name": "nccl:all_reduce", "ts": 1, "dur": 2, "args": {}},
            *events,
        ],
    }


def inspector_lines(rank, host, durations_us, ranks=8, size=64 << 20, comm="0x7f8c496ae9f661", times=None):
    """Return the lines of NCCL Inspector, output version v4.0."""
    lines = []
    for seq, duration_us in enumerate(durations_us, 1):
        perf = {
            "coll": "AllReduce",
            "coll_sn": seq,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": duration_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": size / duration_us / 1000,
            "coll_busbw_gbs": size / duration_us / 1000 * 2 * (ranks - 1) / ranks,
        }
        if times:
            perf["event_trace_ts"] = {"coll_start_ts": times[seq - 1], "coll_stop_ts": 0, "kernel_events": []}
        row = {
            "header": {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 2},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": START_NS // 1000 + seq,
                "hostname": host,
                "pid": 1000 + rank,
            },
            "coll_perf": perf,
        }
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def table(hosts, rates, test="all_reduce", ranks=None, finished=True, wrong=0):
    """Return the output of nccl-tests; rates are the bus bandwidths of sizes from 8 MiB on, GB/s."""
    ranks = ranks or 8 * len(hosts)
    lines = [
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        f"# Collective test starting: {test}_perf",
        "# nThread 1 nGpus 1 minBytes 8388608 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {662195 + rank} on {hosts[rank * len(hosts) // ranks]:>10} "
        f"device {rank % 8:2d}"
        " [0x18] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]
    lines += [
        "#",
        "#                                                              out-of-place                  "
        "     in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
        "time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
        "(us)  (GB/s)  (GB/s)",
    ]
    for index, rate in enumerate(rates):
        size = 8 << (20 + index)
        cells = f"{size / rate / 1000:8.1f}  {rate / 1.9:6.2f}  {rate:6.2f}"
        lines.append(
            f"{size:12d} {size // 4:13d}     float     sum      -1  {cells}      {wrong}  {cells}      0"
        )
    mean = sum(rates) / len(rates)
    if finished:
        lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {mean:.4f}", "#"]
    return "\n".join(lines) + "\n"


def waiting(seq=5, **more):
    return call(seq, state="scheduled", **more)


def explained(folder):
    reading, verdict = explain_folder(folder)
    answer = json.loads(json.dumps(as_json(folder, reading, verdict), allow_nan=False))
    assert draw(reading, verdict)
    assert 0 <= answer["confidence"] <= 1
    assert "\n" not in answer["text"]
    return answer


def explained_logs(folder, **texts):
    """Write logs by name and return the answer about the folder."""
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)
    return explained(folder)
