"""Writes the outputs that an operator supplies: nccl-tests between hosts, and Slurm's accounting."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Final

from fabrictime.bench.workload.postmortem.job import Host
from fabrictime.bench.workload.postmortem.run import TIMEOUT_S, Run, group_rate

Hosts = tuple[Host, ...]
ENDS: Final = {
    "dead_oom": ("OUT_OF_MEMORY", "0:125"),
    "dead_segfault": ("FAILED", "0:11"),
    "dead_gpu_memory": ("FAILED", "1:0"),
    "dead_node": ("NODE_FAIL", "0:0"),
}
"""State and exit code of the step of a rank that died."""
PARAMETERS: Final = (
    "# nThread 1 nGpus 1 minBytes 8388608 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 "
    "agg iters: 1 validation: 1 graph: 0"
)
VERSION: Final = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf"""
GPU: Final = "NVIDIA H100 80GB HBM3"
KEYS: Final = ("size", "count", "type", "redop", "root")
UNITS: Final = ("(B)", "(elements)", "", "", "")
TITLES: Final = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
"""Titles and units of the measures, which each line has twice."""
BATCH_ENDS: Final = {
    "dead_oom": ("FAILED", "137:0"),
    "dead_segfault": ("FAILED", "139:0"),
    "dead_gpu_memory": ("FAILED", "1:0"),
}
"""State and exit code of the batch script after srun failed."""


def nccl_tests(folder: Path, run: Run, rng: Random) -> None:
    """Write an all_reduce_perf output for each pair of hosts, or for a sample of pairs if there are many."""
    pairs = list(combinations(run.job.hosts, 2))
    if len(run.job.hosts) > 4:
        ring = list(zip(run.job.hosts, (*run.job.hosts[1:], run.job.hosts[0]), strict=True))
        pairs = ring + rng.sample([pair for pair in pairs if pair not in ring], 4)
    old = rng.random() < 0.4
    for pair in pairs:
        name = "_".join(host.name for host in pair)
        (folder / f"all_reduce_perf_{name}.txt").write_text("\n".join(_test(run, rng, pair, old)) + "\n")


def _test(run: Run, rng: Random, pair: tuple[Host, ...], old: bool) -> Iterator[str]:
    ranks = tuple(rank for host in pair for rank in host.ranks)
    rate = min(370e9, group_rate(run.incident, ranks))
    yield PARAMETERS if old else f"{VERSION}\n{PARAMETERS} unalign: 0"
    yield "#\n# Using devices"
    for number, rank in enumerate(ranks):
        local, bus = run.job.local(rank), f"{0x1B + 0x10 * run.job.local(rank):02x}"
        bus = f"0x{bus}" if old else f"0000:{bus}:00"
        pid, host = rng.randrange(2_000, 900_000), run.job.host(rank).name
        yield f"#  Rank {number:2} Group  0 Pid {pid:6} on {host:>10} device {local:2} [{bus}] {GPU}"
    yield f"#\n# {'':54}        out-of-place                       in-place          "
    for keys, titles in zip((KEYS, UNITS), TITLES, strict=True):
        measures = "  ".join(f"{title:>{7 - (number > 0)}}" for number, title in enumerate(titles))
        columns = (f"{key:>{width}}" for key, width in zip(keys, (10, 12, 8, 6, 6), strict=True))
        yield f"# {'  '.join(columns)}  {measures}  {measures} "
    rates = []
    for exponent in range(23, 31):
        moved = 2**exponent
        row = f"{moved:12}  {moved // 4:12}  {'float':>8}  {'sum':>6}  {-1:6}"
        for _ in range(2):
            scale = 2 * (len(ranks) - 1) / len(ranks)
            time_s = moved * scale / rate * max(0.97, rng.gauss(1, 0.015)) + 60e-6
            rates.append(moved * scale / time_s / 1e9)
            digits = 2 if time_s < 0.01 else 1 if time_s < 0.1 else 0  # seven characters
            row += f"  {time_s * 1e6:7.{digits}f}  {moved / time_s / 1e9:6.2f}  {rates[-1]:6.2f}  {0:6}"
        yield row
    yield "# Out of bounds values : 0 OK"
    yield f"# Avg bus bandwidth    : {sum(rates) / len(rates):g} "
    yield "#" if old else "#\n# Collective test concluded: all_reduce_perf"


def slurm(folder: Path, run: Run, rng: Random) -> tuple[str, bool]:
    """Write `sacct -P` of the job; return the job's state, and whether each host has a separate step."""
    job = run.job
    steps_by_host = rng.random() < 0.4
    lasted_s = run.end_s - job.began_s
    state, code = ENDS.get(run.incident.kind, ("COMPLETED", "0:0"))
    if run.stop_s is not None and not run.dead:
        aborted_s = lasted_s + TIMEOUT_S + 70
        cancelled_s = lasted_s + rng.uniform(900, 9_000)
        endings = (
            ("TIMEOUT", "0:0", 86_400),
            ("CANCELLED by 20417", "0:0", cancelled_s),
            ("FAILED", "0:6", aborted_s),
        )
        state, code, lasted_s = rng.choice(endings)
    ends = (datetime.fromtimestamp(at_s, UTC) for at_s in (job.began_s, job.began_s + lasted_s))
    times = "|".join(f"{end:%Y-%m-%dT%H:%M:%S}" for end in ends)
    days, rest = divmod(int(lasted_s), 86_400)
    times += f"|{f'{days}-' if days else ''}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    texts = ["JobID|JobName|Partition|NNodes|State|ExitCode|Start|End|Elapsed|NodeList"]
    for step, name, end, exit_code, hosts in _rows(run, state, code, steps_by_host):
        partition = "" if "." in step else "gpu"
        place = f"{len(hosts)}|{end}|{exit_code}|{times}|{_hostlist(hosts)}"
        texts.append(f"{step}|{name}|{partition}|{place}")
    (folder / f"sacct_{job.number}.txt").write_text("\n".join(texts) + "\n")
    return state, steps_by_host


def _rows(run: Run, state: str, code: str, steps_by_host: bool) -> Iterator[tuple[str, str, str, str, Hosts]]:
    """Yield a row of the job and of each step: number, name, state, exit code, hosts."""
    job, kind, number = run.job, run.incident.kind, str(run.job.number)
    end = "CANCELLED" if state.startswith(("TIMEOUT", "CANCELLED", "NODE")) else state
    yield number, "train", state, code, job.hosts
    yield f"{number}.batch", "batch", *BATCH_ENDS.get(kind, (end, code)), job.hosts[:1]
    yield f"{number}.extern", "extern", "COMPLETED", "0:0", job.hosts
    if not steps_by_host:
        yield f"{number}.0", "torchrun", end, code, job.hosts
        return
    for host in job.hosts:
        own = (end, code)
        if run.dead:
            lost = bool(set(host.ranks) & set(run.dead))
            own = (state, code) if lost else ("CANCELLED", "0:15")
        yield f"{number}.{host.number}", "torchrun", *own, (host,)


def _hostlist(hosts: Hosts) -> str:
    """Return the host names as a Slurm hostlist expression."""
    prefix = hosts[0].name.rstrip("0123456789")
    numbers = ",".join(host.name.removeprefix(prefix) for host in hosts)
    return f"{prefix}[{numbers}]" if len(hosts) > 1 else hosts[0].name
