"""Writes the lines of the training program, PyTorch's watchdog, torchrun and srun."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from fabrictime.bench.workload.postmortem.job import Group, Host
from fabrictime.bench.workload.postmortem.logs import AGENT, COMPLETION, SRUN, Line, clock
from fabrictime.bench.workload.postmortem.records import sizes
from fabrictime.bench.workload.postmortem.run import TIMEOUT_S, Entry, Run

OPERATION_TYPES: Final = {
    "all_reduce": "ALLREDUCE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "_all_gather_base": "_ALLGATHER_BASE",
    "broadcast": "BROADCAST",
    "send": "SEND",
    "recv": "RECV",
}
EXITS: Final = {
    "dead_oom": (-9, "Signal 9 (SIGKILL) received by PID {}"),
    "dead_segfault": (-11, "Signal 11 (SIGSEGV) received by PID {}"),
    "dead_gpu_memory": (1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"),
    "aborted": (-6, "Signal 6 (SIGABRT) received by PID {}"),
}
"""Exit codes and remarks of torchrun's report."""
ITERATION: Final = (
    " [{:%Y-%m-%d %H:%M:%S}] iteration {:8}/  500000 | consumed samples: {:12} | elapsed time per iteration "
    "(ms): {:.1f} | learning rate: 3.000000E-04 | global batch size:   256 | lm loss: {:.6E} |"
)
TIMEOUT: Final = (
    "{} Watchdog caught collective operation timeout: {} ran for {} milliseconds before timing out.",
    "{}  failure detected by watchdog at work sequence id: {} PG status: last enqueued work: {}, last "
    "completed work: {}",
    "{} To avoid data inconsistency, we are taking the entire process down.",
)
SIGNALLED: Final = "{} Observed flight recorder dump signal from another rank via TCPStore."
DUMP: Final = (
    "{} Received a dump signal due to a collective timeout from {} and we will try our best to dump the "
    "debug info. Last enqueued NCCL work: {}, last completed NCCL work: {}.This is most likely caused by "
    "incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives is not "
    "same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, this can be "
    "caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)
REPORT: Final = """\
E{head}874] failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: /opt/venv/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
main.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : {time}
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : {remark}
============================================================"""  # noqa: W291  # torchrun prints the blank
NODE_FAILURE: Final = (
    "slurmstepd: error: *** STEP {} ON {} CANCELLED AT {:%Y-%m-%dT%H:%M:%S} DUE TO NODE FAILURE, SEE "
    "SLURMCTLD LOG FOR DETAILS ***"
)
KILLED: Final = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId={}. Some of the step tasks have been OOM Killed."
)
GPU_MEMORY: Final = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {local} has a \
total capacity of 79.11 GiB of which 1.12 GiB is free."""
REMOTE_ERROR: Final = """\
[Rank {place}] Collective {work} raised the following async exception: NCCL error: remote process exited or \
there was a network error, NCCL version {version}
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
{error}"""


def program_lines(run: Run, rng: Random) -> Iterator[Line]:
    """Yield the lines of a job: its iterations, then its end, its death, or the timeouts of its ranks."""
    job = run.job
    ends = [*run.step_begins[1:], *([run.end_s] if run.stop_s is None else [])]
    for step, end_s in enumerate(ends):
        number, time_ms = job.first_step + step + 1, (end_s - run.step_begins[step]) * 1e3
        text = ITERATION.format(clock(run, 0, end_s), number, number * 256, time_ms, rng.uniform(2, 3))
        yield Line(end_s, job.host(0), 0, text)
    if run.stop_s is None:
        text = f"[after training is done] datetime: {clock(run, 0, run.end_s):%Y-%m-%d %H:%M:%S}"
        yield Line(run.end_s + 1, job.host(0), 0, text)
    elif run.dead:
        yield from _death(run, rng, run.stop_s)
    else:
        yield from _timeouts(run, rng)


def _torch(run: Run, rng: Random, rank: int, at_s: float, number: int, text: str) -> Line:
    """Return a line of PyTorch's log; the brackets in front hold the rank in the job."""
    time = clock(run, rank, at_s)
    stamp = f"E{time.month}{time:%d %H:%M:%S.%f}{rng.randrange(1000):03}"
    return Line(
        at_s, run.job.host(rank), rank, f"[rank{rank}]:[{stamp} ProcessGroupNCCL.cpp:{number}] {text}"
    )


def _prefix(run: Run, rank: int, group: Group) -> str:
    """Return the prefix of a process group's line, with the rank within the group."""
    place = run.job.groups_of(rank).index(group)
    return f"[PG ID {place} PG GUID {group.number}({group.description}) Rank {group.ranks.index(rank)}]"


def _work(entry: Entry) -> str:
    inputs, outputs = sizes(entry.kind, entry.elements, entry.operation.call.group)
    kind, sequence = OPERATION_TYPES[entry.kind], entry.operation.sequence
    text = f"WorkNCCL(SeqNum={sequence}, OpType={kind}, NumelIn={inputs}, NumelOut={outputs}"
    return f"{text}, Timeout(ms)={TIMEOUT_S * 1000})"


def _statuses(run: Run, rank: int, group: Group) -> tuple[int, int]:
    """Return the numbers of the last collective of a group that a rank queued, and that it completed."""
    own = [entry.operation for entry in run.entries[rank] if entry.operation.call.group == group]
    done = [operation.sequence for operation in own if operation.end_s is not None]
    return max((operation.sequence for operation in own), default=-1), max(done, default=-1)


def _waits(run: Run) -> dict[int, Entry]:
    """Return the call in which each rank waits."""
    return {
        rank: entry
        for rank, entries in run.entries.items()
        for entry in entries
        if entry.begin_s is not None and entry.operation.end_s is None
    }


def _timeouts(run: Run, rng: Random) -> Iterator[Line]:
    """Yield the watchdog's lines of a hang: timeouts of waiting ranks, a signal to the other ranks."""
    job, waits = run.job, _waits(run)
    first = min(waits, key=lambda rank: waits[rank].begin_s or 0)
    signal_s = (waits[first].begin_s or 0) + TIMEOUT_S + rng.uniform(0.3, 1)
    for rank in job.world.ranks:
        at_s, own = signal_s + rng.uniform(0.5, 2), _prefix(run, rank, job.world)
        origin = "this local rank" if rank in waits else f" rank {first}"
        if rank in waits:
            at_s = max(at_s, (waits[rank].begin_s or 0) + TIMEOUT_S + 0.2)
            yield from _timeout(run, rng, rank, waits[rank], at_s)
        else:
            yield _torch(run, rng, rank, at_s, 1682, SIGNALLED.format(own))
        text = DUMP.format(own, origin, *_statuses(run, rank, job.world))
        yield _torch(run, rng, rank, at_s + 0.05, 1743, text)
    for host in job.hosts:
        victims = [rank for rank in host.ranks if rank in waits]
        if victims:
            yield from _agent(run, host, rng.choice(victims), "aborted", signal_s + 63 + rng.uniform(0, 1))


def _timeout(run: Run, rng: Random, rank: int, entry: Entry, signal_s: float) -> Iterator[Line]:
    """Yield the watchdog's lines of one rank that waits."""
    group = entry.operation.call.group
    late_s = (entry.begin_s or 0) + TIMEOUT_S + rng.uniform(0.01, 0.1)
    place = f"[Rank {group.ranks.index(rank)}]"
    lasted_ms = TIMEOUT_S * 1000 + rng.randrange(5, 99)
    yield _torch(run, rng, rank, late_s, 632, TIMEOUT[0].format(place, _work(entry), lasted_ms))
    numbers = entry.operation.sequence, *_statuses(run, rank, group)
    yield _torch(run, rng, rank, late_s + 0.001, 2268, TIMEOUT[1].format(_prefix(run, rank, group), *numbers))
    yield _torch(run, rng, rank, signal_s + 60, 690, TIMEOUT[2].format(place))


def _agent(run: Run, host: Host, rank: int, kind: str, at_s: float) -> Iterator[Line]:
    """Yield torchrun's report of the first process that failed on a host."""
    job, (code, remark) = run.job, EXITS[kind]
    time, pid, local = clock(run, rank, at_s), run.job.pid(rank), run.job.local(rank)
    head = f"{time:%m%d %H:%M:%S}.{time.microsecond // 1000:03}000 {host.pids[0] - 1} "
    head += "torch/distributed/elastic/multiprocessing/api.py:"
    for other in host.ranks:
        if other != rank:
            text = f"W{head}900] Sending process {job.pid(other)} closing signal SIGTERM"
            yield Line(at_s, host, AGENT, text)
    names: dict[str, object] = {
        "head": head,
        "code": code,
        "local": local,
        "pid": pid,
        "time": f"{time:%Y-%m-%d_%H:%M:%S}",
        "host": host.name,
    }
    for number, text in enumerate(REPORT.format(rank=rank, remark=remark.format(pid), **names).splitlines()):
        yield Line(at_s + 1 + number * 1e-4, host, AGENT, text)


def _death(run: Run, rng: Random, stop_s: float) -> Iterator[Line]:
    """Yield the lines after the end of a process or a host."""
    job, kind, rank = run.job, run.incident.kind, run.dead[0]
    host, step = job.host(rank), f"{job.number}.0"
    if kind == "dead_node":
        text = NODE_FAILURE.format(step, job.hosts[0].name, clock(run, 0, stop_s + 60))
        yield Line(stop_s + 60, job.hosts[0], SRUN, text)
        yield Line(stop_s + 61, job.hosts[0], SRUN, f"srun: error: Node failure on {host.name}")
    else:
        yield from _agent(run, host, rank, kind, stop_s + rng.uniform(0.1, 1))
    if kind == "dead_oom":
        yield Line(stop_s + 0.5, host, SRUN, KILLED.format(step))
        yield Line(stop_s + 4, host, SRUN, f"srun: error: {host.name}: task {host.number}: Out Of Memory")
    if kind == "dead_gpu_memory":
        yield Line(stop_s, host, rank, GPU_MEMORY.format(rank=rank, local=job.local(rank)))
    for other, entry in _waits(run).items():
        if job.host(other) is not host and set(run.dead) & set(entry.operation.call.ranks):
            nic = job.host(other).nics[job.local(other)]
            error = COMPLETION.format(host.address, rng.randrange(30_000, 60_000), nic)
            place = entry.operation.call.group.ranks.index(other)
            text = REMOTE_ERROR.format(place=place, work=_work(entry), version=job.nccl, error=error)
            yield _torch(run, rng, other, stop_s + rng.uniform(5, 25), 552, text)
