"""Writes the records of calls: dumps of the Flight Recorder, lines of the Inspector, traces of Kineto."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from fabrictime.bench.workload.postmortem.job import ELEMENT_BYTES, Group
from fabrictime.bench.workload.postmortem.run import STEPS, TIMEOUT_S, Entry, Run, bus_scale

BUFFER: Final = 160
"""Number of entries that a Flight Recorder keeps here."""
TITLES: Final = {
    "all_reduce": ("AllReduce", "allreduce", "AllReduce_Sum_{}_RING_LL"),
    "_reduce_scatter_base": ("ReduceScatter", "_reduce_scatter_base", "ReduceScatter_Sum_{}_RING_LL"),
    "_all_gather_base": ("AllGather", "_allgather_base", "AllGather_RING_LL"),
    "broadcast": ("Broadcast", "broadcast", "Broadcast_RING_LL"),
    "send": ("Send", "send", "SendRecv"),
    "recv": ("Recv", "recv", "SendRecv"),
}
"""Names of a call for NCCL, for Kineto, and of its kernel."""
METADATA: Final = "inspector_output_format_version git_rev rec_mechanism dump_timestamp_us hostname pid"
MEASURES: Final = "msg_size_bytes exec_time_us timing_source algobw_gbs busbw_gbs"
GROUP: Final = "pg_name pg_desc backend_config pg_size ranks"
DISTRIBUTED: Final = "backend rank world_size pg_count pg_config nccl_version"
EVENT: Final = "ph cat name pid tid ts dur args"
PLACE: Final = "device context stream"
COMPUTE_KERNEL: Final = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
FRAMES: Final = (
    ("all_reduce", "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 2810),
    ("train_step", "/workspace/train/loop.py", 214),
    ("main", "/workspace/train/main.py", 77),
)


def _fields(names: str, *values: object) -> dict[str, Any]:
    """Return a JSON object with these names and values."""
    return dict(zip(names.split(), values, strict=True))


def sizes(kind: str, elements: int, group: Group) -> tuple[int, int]:
    """Return the numbers of elements of a rank's input and output."""
    part = elements // len(group.ranks)
    return {"_reduce_scatter_base": (elements, part), "_all_gather_base": (part, elements)}.get(
        kind, (elements, elements)
    )


def _store(path: Path, content: bytes, compress: bool, at_s: float) -> None:
    """Write a file with the time of its dump, compressed if `compress`."""
    path = path.with_name(path.name + ".gz") if compress else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if compress else content)
    os.utime(path, (at_s, at_s))


def flight_recorder(folder: Path, run: Run, rng: Random, missing: set[int], as_json: bool) -> bool:
    """Write a dump for each rank that lives and is not missing; return whether the dumps have durations."""
    timing = rng.random() < 0.75
    world_only = run.job.tensor == run.job.stages == 1
    torchcomms = world_only and not as_json and rng.random() < 0.3
    version = rng.choice(("2.4", "2.7", "2.10", "2.10"))
    prefix = rng.choice(("nccl_trace_rank_", "comm_lib_trace_rank_", "rank_", "trace/nccl_trace_rank_"))
    compress = rng.random() < 0.15
    wait_s = TIMEOUT_S if run.incident.cause in ("hang", "mismatch") else 2
    dump_s = (run.stop_s or run.end_s) + wait_s + rng.uniform(0, 2)
    for rank in sorted(set(run.job.world.ranks) - missing - set(run.dead)):
        dump = _dump(run, rank, version, timing and not torchcomms, as_json)
        if torchcomms:
            dump = _as_torchcomms(dump, run)
        if not as_json:
            content = pickle.dumps(dump, protocol=2)
        else:
            content = json.dumps(dump, separators=(",", ":"), sort_keys=True).encode()
        _store(
            folder / f"{prefix}{rank}{'.json' if as_json else ''}",
            content,
            compress,
            run.local_s(rank, dump_s),
        )
    return timing and not torchcomms


def _dump(run: Run, rank: int, version: str, timing: bool, as_json: bool) -> dict[str, Any]:
    groups = run.job.groups_of(rank)
    entries = run.entries[rank]
    frames = [{"name": name, "filename": file, "line": line} for name, file, line in FRAMES]
    first = max(0, len(entries) - BUFFER)
    records = [
        _record(run, rank, number, entry, groups, timing, as_json) for number, entry in enumerate(entries)
    ][first:]
    for record in records:
        if version == "2.10":
            record |= {"thread_id": "140234881529600", "thread_name": "pt_main_thread"}
        if not as_json:
            record["frames"] = frames
    status = {str(place): _status(entries, group, as_json) for place, group in enumerate(groups)}
    dump: dict[str, Any] = {
        "version": version,
        "pg_config": {
            str(group.number): {
                "name": str(group.number),
                "desc": group.description,
                "ranks": str(list(group.ranks)),
            }
            for group in groups
        },
        "pg_status": status,
        "entries": records,
    }
    return dump if version == "2.4" else dump | {"comm_lib_version": run.job.nccl}


def _record(
    run: Run, rank: int, number: int, entry: Entry, groups: list[Group], timing: bool, as_json: bool
) -> dict[str, Any]:
    operation, group = entry.operation, entry.operation.call.group
    end_s = operation.end_s
    p2p = entry.kind in ("send", "recv")
    inputs, outputs = sizes(entry.kind, entry.elements, group)
    absent = 0 if as_json else None
    began_ns = _ns(run, rank, (entry.begin_s or 0) + 0.05) if timing and entry.begin_s is not None else absent
    numbers = operation.sequence, operation.p2p_sequence, operation.sequence + operation.p2p_sequence
    record = {
        "record_id": number + run.job.first_step * len(run.job.step),
        "pg_id": groups.index(group),
        "process_group": (str(group.number), group.description),
        **_fields("collective_seq_id p2p_seq_id op_id", *numbers),
        "profiling_name": f"nccl:{_title(entry)}",
        "time_created_ns": _ns(run, rank, entry.queued_s),
        **_fields("input_sizes output_sizes", [[inputs]], [[outputs]]),
        **_fields("input_dtypes output_dtypes", [operation.call.dtype], [operation.call.dtype]),
        "state": "started" if began_ns else "scheduled",
        "time_discovered_started_ns": began_ns,
        "time_discovered_completed_ns": absent if end_s is None else _ns(run, rank, end_s + 0.06),
        **_fields("retired timeout_ms is_p2p", end_s is not None, TIMEOUT_S * 1000, p2p),
    }
    if end_s is not None:
        record["state"] = "completed"
        if timing and entry.begin_s is not None:
            record["duration_ms"] = (end_s - entry.begin_s) * 1e3
    return record


def _title(entry: Entry) -> str:
    """Return PyTorch's name of a call; the name of a transfer has the ranks within the group."""
    if entry.kind not in ("send", "recv"):
        return entry.kind
    group = entry.operation.call.group
    source, target = (group.ranks.index(member) for member in entry.operation.call.ranks)
    return f"send {source}->{target}" if entry.kind == "send" else f"recv {target}<-{source}"


def _ns(run: Run, rank: int, time_s: float) -> int:
    return int(run.local_s(rank, time_s) * 1e9)


def _status(entries: list[Entry], group: Group, as_json: bool) -> dict[str, int | str]:
    own = [entry for entry in entries if entry.operation.call.group is group]
    kinds = (
        own,
        [entry for entry in own if entry.begin_s is not None],
        [entry for entry in own if entry.operation.end_s is not None],
    )
    names = [f"last_{kind}_collective" for kind in ("enqueued", "started", "completed")]
    lasts = (max((entry.operation.sequence for entry in kind), default=-1) for kind in kinds)
    numbers = dict(zip(names, lasts, strict=True))
    return {key: str(number) for key, number in numbers.items()} if as_json else dict(numbers)


def _as_torchcomms(dump: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return a dump in the format of torchcomms' hook: no status, ranks without brackets, no frames."""
    for config in dump["pg_config"].values():
        config["ranks"] = ",".join(str(rank) for rank in run.job.world.ranks)
    for record in dump["entries"]:
        del record["frames"]
        record["p2p_seq_id"] = 0
    return dump | {"pg_status": {}}


def inspector(folder: Path, run: Run, rng: Random, missing: set[int]) -> None:
    """Write the Inspector's lines of each process; a dead process lost the lines of its last interval."""
    revision = f"{rng.getrandbits(36):09x}"
    transfers = rng.random() < 0.5
    hashes = {group: f"0x{rng.getrandbits(60):x}" for group in run.job.groups}
    target = folder / f"nccl-inspector-{run.job.number}"
    for rank in sorted(set(run.job.world.ranks) - missing):
        host, pid = run.job.host(rank).name, run.job.pid(rank)
        until_s = (run.stop_s or 0) - rng.uniform(0, 0.5) if rank in run.dead else float("inf")
        lines = []
        for entry in run.entries[rank]:
            end_s = entry.operation.end_s
            if end_s is None or end_s > until_s or (entry.kind in ("send", "recv") and not transfers):
                continue
            group = entry.operation.call.group
            place = group.ranks.index(rank), len(group.ranks), group.hosts
            stamp_us = int(run.local_s(rank, end_s + 0.2) * 1e6)
            about = _fields(METADATA, "v4.0", revision, "nccl_profiler_interface", stamp_us, host, pid)
            name, measures = _inspected(entry, end_s)
            line = {"header": _fields("id rank n_ranks nnodes", hashes[group], *place), "metadata": about}
            lines.append(json.dumps(line | {name: measures}) + "\n")
        _store(target / f"{host}-pid{pid}.log", "".join(lines).encode(), False, run.end_s)


def _inspected(entry: Entry, end_s: float) -> tuple[str, dict[str, Any]]:
    """Return the name and the measures of a completed call."""
    call = entry.operation.call
    time_s = max(1e-6, end_s - (entry.begin_s or end_s))
    moved = call.elements * ELEMENT_BYTES[call.dtype]
    p2p = call.kind == "send"
    prefix = "p2p" if p2p else "coll"
    sequence = entry.operation.p2p_sequence if p2p else entry.operation.sequence
    measures = {prefix: TITLES[entry.kind][0], f"{prefix}_sn": sequence}
    if p2p:
        measures["p2p_peer"] = call.group.ranks.index(call.ranks[entry.kind == "send"])
    names = " ".join(f"{prefix}_{name}" for name in MEASURES.split())
    rates = (round(moved * scale / time_s / 1e9, 6) for scale in (1, bus_scale(call)))
    return f"{prefix}_perf", measures | _fields(names, moved, int(time_s * 1e6), "kernel_gpu", *rates)


def kineto(folder: Path, run: Run, rng: Random, missing: set[int]) -> None:
    """Write a trace of the profiler for each rank: the last complete steps before the incident's end."""
    naming, compress = rng.randrange(3), rng.random() < 0.4
    base_s = rng.choice((0.0, 1_730_000_000.0))
    for rank in sorted(set(run.job.world.ranks) - missing):
        stamp_ms = int(run.local_s(rank, run.end_s) * 1e3)
        name = (
            f"{run.job.host(rank).name}_{run.job.pid(rank)}.{stamp_ms}.pt.trace.json",
            f"rank{rank}_trace.json",
            f"iteration_{run.job.first_step + STEPS}/rank{rank}_trace.json",
        )[naming]
        groups = [
            _fields(GROUP, str(group.number), group.description, "cuda:nccl", len(group.ranks), group.ranks)
            for group in run.job.groups_of(rank)
        ]
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [
                _fields("id name numSms", run.job.local(rank), "NVIDIA H100 80GB HBM3", 132)
            ],
            "distributedInfo": _fields(
                DISTRIBUTED, "nccl", rank, run.job.size, len(groups), groups, run.job.nccl
            ),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": int(base_s * 1e9),
            "traceEvents": list(_events(run, rank, range(2, STEPS - 1), base_s)),
            "traceName": name,
        }
        _store(folder / name, json.dumps(trace).encode(), compress, run.local_s(rank, run.end_s))


def _events(run: Run, rank: int, steps: range, base_s: float) -> Iterator[dict[str, Any]]:
    device, pid = run.job.local(rank), run.job.pid(rank)

    def event(
        category: str, name: str, place: tuple[int, int], begin_s: float, time_s: float, args: Any
    ) -> Any:
        begin_us = round((run.local_s(rank, begin_s) - base_s) * 1e6, 3)
        return _fields(EVENT, "X", category, name, *place, begin_us, round(time_s * 1e6, 3), args)

    for step in steps:
        begin_s, end_s = run.step_begins[step], run.step_begins[step + 1]
        title = f"ProfilerStep#{run.job.first_step + step}"
        yield event("user_annotation", title, (pid, pid), begin_s, end_s - begin_s, {"External id": step})
    for step, begin_s, time_s in run.computes[rank]:
        if step in steps:
            yield event("kernel", COMPUTE_KERNEL, (device, 7), begin_s, time_s, _fields(PLACE, device, 1, 7))
    for number, entry in enumerate(run.entries[rank]):
        operation, group = entry.operation, entry.operation.call.group
        if operation.step in steps and operation.end_s is not None and entry.begin_s is not None:
            args = _arguments(number, entry)
            sequence = operation.p2p_sequence if entry.kind in ("send", "recv") else operation.sequence
            call = args | {"Rank": group.ranks.index(rank), "Seq": sequence}
            yield event("cpu_op", "record_param_comms", (pid, pid), entry.queued_s, 21.5e-6, call)
            kernel = TITLES[entry.kind][2].format("f32" if operation.call.dtype == "Float" else "bf16")
            title = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
            stream = 20 + group.number % 8
            args |= _fields(PLACE, device, 1, stream) | {"correlation": number}
            time_s = operation.end_s - entry.begin_s
            yield event("kernel", title, (device, stream), entry.begin_s, time_s, args)


def _arguments(number: int, entry: Entry) -> dict[str, Any]:
    """Return the arguments of a call's events."""
    call, group = entry.operation.call, entry.operation.call.group
    inputs, outputs = sizes(entry.kind, entry.elements, group)
    ranks = ", ".join(str(member) for member in group.ranks[:30]) + (", ..." if len(group.ranks) > 30 else "")
    args: dict[str, Any] = {
        "External id": 1000 + number,
        "Collective name": TITLES[entry.kind][1],
        "In msg nelems": inputs,
        "Out msg nelems": outputs,
        "Group size": len(group.ranks),
        "dtype": call.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": str(group.number),
        "Process Group Description": group.description,
        "Process Group Ranks": f"[{ranks}]",
    }
    if call.kind == "send":
        args["Dst Rank" if entry.kind == "send" else "Src Rank"] = call.ranks[entry.kind == "send"]
    return args
