"""Lays out a job's text logs, and writes NCCL's lines with NCCL_DEBUG=INFO."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final, Literal

from fabrictime.bench.workload.postmortem.job import Group, Host, Job
from fabrictime.bench.workload.postmortem.run import Run

Layout = Literal["one", "host", "rank", "debug-file"]
AGENT: Final = -1
"""Rank of a line of torchrun."""
SRUN: Final = -2
"""Rank of a line of srun or slurmstepd."""
PROCESS_START: Final = """\
NCCL_SOCKET_IFNAME set by environment to eth0
Bootstrap{colon} Using eth0:{address}<0>
cudaDriverVersion 12080
NCCL version {version}+cuda12.8
{plugin}"""
PLUGINS: Final = {
    False: "NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory",
    True: "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
}
"""Line of the plugin search, by whether NCCL is 2.26 or later."""
COMPLETION: Final = (
    "NET/IB: Got completion from peer {}<{}> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca {}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log at a true time, written by a rank, by the AGENT or by SRUN on a host."""

    at_s: float
    host: Host
    rank: int
    text: str


def write_logs(
    folder: Path, run: Run, rng: Random, missing: set[int], lines: list[Line], layout: Layout
) -> None:
    """Write lines into files, except those of missing ranks; only whole-job files have srun's lines."""
    files: defaultdict[Path, list[str]] = defaultdict(list)
    labelled = layout == "one" and rng.random() < 0.4
    attempt = f"{run.job.number}_{rng.getrandbits(40):x}/attempt_0"
    for line in sorted(lines, key=lambda line: line.at_s):
        if line.rank in missing or (line.rank == SRUN and layout != "one"):
            continue
        path = folder / _file(run, line, layout, attempt)
        label = f"{line.host.number}: " if labelled and line.rank != SRUN else ""
        files[path].append(label + line.text)
    for path, texts in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts) + "\n")


def _file(run: Run, line: Line, layout: Layout, attempt: str) -> str:
    """Return the name of the file that contains a line."""
    host = line.host.name
    if layout == "one":
        return f"slurm-{run.job.number}.out"
    if layout == "host" or line.rank == AGENT:
        return f"log_{host}.txt"
    if layout == "debug-file":
        return f"nccl.{host}.{run.job.pid(line.rank)}.log"
    return f"{host}/{attempt}/{run.job.local(line.rank)}/stderr.log"


def clock(run: Run, rank: int, at_s: float) -> datetime:
    """Return a true time as the clock of a rank's host shows it."""
    return datetime.fromtimestamp(run.local_s(rank, at_s), UTC)


def is_recent(job: Job) -> bool:
    """Return whether the job's NCCL is 2.26 or later, which changed some lines."""
    return job.nccl >= "2.26"


def nccl_lines(run: Run, rng: Random) -> Iterator[Line]:
    """Yield NCCL's lines of each rank: the start of its communicators, and its errors if a peer died."""
    job = run.job
    hashes = {group: rng.getrandbits(63) for group in job.groups}
    for rank in job.world.ranks:
        host, pid = job.host(rank), job.pid(rank)
        for number, text in enumerate(_starts(run, rng, rank, hashes)):
            is_version = text.startswith("NCCL version")
            if not is_version or rank == 0:  # printed by one rank only, without a prefix
                task = pid if number < 6 else pid + 300 + rank
                prefix = "" if is_version else f"{host.name}:{pid}:{task} [{job.local(rank)}] NCCL INFO "
                yield Line(job.began_s + number * 0.01 + rng.uniform(0, 0.005), host, rank, prefix + text)
    if run.dead:
        yield from _errors(run, rng)


def _starts(run: Run, rng: Random, rank: int, hashes: dict[Group, int]) -> Iterator[str]:
    """Yield the messages of a process and of its communicators at their start."""
    yield from _process_start(run, rank)
    for group in (run.job.world, *run.job.tensors, *run.job.datas):
        if rank in group.ranks and len(group.ranks) > 1:
            yield from _communicator(run, rank, group, f"0x{rng.getrandbits(46):x}", hashes[group])


def _network(run: Run, rank: int) -> tuple[str, list[str], bool]:
    """Return the network of a rank's NCCL, the host's NICs that NCCL found, and whether GPUDirect works."""
    incident, host = run.incident, run.job.host(rank)
    nics = list(host.nics)
    affected = host.ranks[0] in incident.ranks
    if incident.kind == "fewer_nics" and incident.ranks[0] in host.ranks:
        del nics[run.job.local(incident.ranks[0])]
    network = "Socket" if affected and incident.cause == "sockets" else "IB"
    return network, nics, not (affected and incident.kind == "no_gpudirect")


def _process_start(run: Run, rank: int) -> Iterator[str]:
    job, address = run.job, run.job.host(rank).address
    network, nics, _ = _network(run, rank)
    recent = is_recent(job)
    plugin = PLUGINS[recent]
    colon = ":" if recent else " :"
    yield from PROCESS_START.format(
        colon=colon, address=address, version=job.nccl, plugin=plugin
    ).splitlines()
    if network == "Socket":
        yield "NET/IB : No device found."
        yield f"NET/Socket : Using [0]eth0:{address}<0>"
    else:
        listed = " ".join(f"[{number}]{nic}:1/IB" for number, nic in enumerate(nics))
        yield f"NET/IB : Using {listed} [RO]; OOB eth0:{address}<0>"
    if recent:
        yield f"Initialized NET plugin {network}"
        yield f"Assigned NET plugin {network} to comm"
    yield f"Using network {network}"


def _communicator(run: Run, rank: int, group: Group, address: str, number: int) -> Iterator[str]:
    """Yield the lines of one communicator of a rank."""
    job = run.job
    local, position, size = job.local(rank), group.ranks.index(rank), len(group.ranks)
    name = "" if job.nccl == "2.18.5" else "ncclCommInitRankConfig "
    common = f"{name}comm {address} rank {position} nranks {size} cudaDev {local} nvmlDev {local} busId "
    common += f"{0x1B + 0x10 * local:x}000 commId 0x{number:x}"
    yield f"{common} - Init START"
    yield f"Setting affinity for GPU {local} to ffff,ffffffff"
    if name:
        near = sorted(set(group.ranks) & set(job.host(rank).ranks))
        text = f"comm {address} rank {position} nRanks {size} nNodes {group.hosts} localRanks {len(near)} "
        yield f"{text}localRank {near.index(rank)} MNNVL 0"
    count = len(job.hosts[0].ranks) if size == job.size else 4
    rings = [_ring(job, group, channel) for channel in range(count)]
    for channel, ring in enumerate(rings if position == 0 else []):
        order = " ".join(f"{group.ranks.index(member):3}" for member in ring)
        yield f"Channel {channel:02}/{count:02} : {order}"
    child = position + 1 if position + 1 < size else -1
    tree = f"{child}/-1/-1->{position}->{position - 1}"
    yield "Trees" + "".join(f" [{channel}] {tree}" for channel in range(count))
    yield "P2P Chunksize set to 131072"
    for channel, ring in enumerate(rings):
        yield from _channel(run, rank, group, channel, ring)
    direct = f", use ring PXN 0 GDR {int(_network(run, rank)[2])}" if is_recent(job) else ""
    yield f"Connected all rings{direct}"
    yield "Connected all trees"
    text = f"{count} coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels"
    yield f"{text}, 2 p2p channels per peer"
    yield f"{common} - Init COMPLETE"


def _ring(job: Job, group: Group, channel: int) -> list[int]:
    """Return the ranks of a ring, host after host; within a host, each channel begins at another rank."""
    ring = []
    for host in job.hosts:
        members = [rank for rank in host.ranks if rank in group.ranks]
        start = channel % max(1, len(members))
        ring += members[start:] + members[:start]
    return ring


def _channel(run: Run, rank: int, group: Group, channel: int, ring: list[int]) -> Iterator[str]:
    """Yield the connections of a rank in one ring."""
    job, place = run.job, ring.index(rank)
    network, nics, direct = _network(run, rank)
    own = job.host(rank).nics[job.local(rank)]
    device = nics.index(own) if own in nics else job.local(rank) % len(nics)
    for peer, verb in ((ring[place - 1], "receive"), (ring[(place + 1) % len(ring)], "send")):
        ends = (rank, peer) if verb == "send" else (peer, rank)
        arrow = " -> ".join(f"{group.ranks.index(end)}[{job.local(end)}]" for end in ends)
        if job.host(peer) is not job.host(rank):
            suffix = "0" if network == "Socket" else f"{device}{'/GDRDMA' if direct else ''}"
            yield f"Channel {channel:02}/0 : {arrow} [{verb}] via NET/{network}/{suffix}"
        elif verb == "send":
            yield f"Channel {channel:02}/0 : {arrow} via P2P/{'IPC' if job.nccl < '2.21' else 'CUMEM'}"


def _errors(run: Run, rng: Random) -> Iterator[Line]:
    """Yield the errors of the dead ranks' neighbours: of the proxy on the same host, else of the NIC."""
    job, lost = run.job, run.dead[0]
    host = job.host(lost)
    at_s = (run.stop_s or 0) + 0.2
    for rank in job.world.ranks:
        own, local = job.host(rank), job.local(rank)
        prefix = f"{own.name}:{job.pid(rank)}:{job.pid(rank) + 950} [{local}]"
        if own is host and rank not in run.dead:
            text = f"{prefix} NCCL INFO [Service thread] Connection closed by localRank {job.local(lost)}"
            yield Line(at_s + rng.uniform(0, 0.3), host, rank, text)
        elif own is not host and local in {job.local(member) for member in run.dead}:
            late_s = at_s + rng.uniform(3, 18)
            stamp = f"{clock(run, rank, late_s):[%Y-%m-%d %H:%M:%S]} " if is_recent(job) else ""
            text = COMPLETION.format(host.address, rng.randrange(30_000, 60_000), own.nics[local])
            text = f"\n{stamp}{prefix} transport/net_ib.cc:1298 NCCL WARN {text}"
            yield Line(late_s, own, rank, text)
