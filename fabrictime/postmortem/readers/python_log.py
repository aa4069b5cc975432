"""Reads logs of PyTorch programs and of their launchers, line by line. Does no I/O.

It knows the watchdog of torch.distributed, reports of torchrun, exceptions with or without a rank's prefix,
errors of srun, slurmstepd and mpirun, and kernel messages. Sources of the lines: pytorch/pytorch,
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and torch/distributed/elastic/multiprocessing/errors;
SchedMD/slurm; open-mpi/ompi.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from fabrictime.postmortem.observations import MAX_RANK, Failure, Observations, Timeout
from fabrictime.postmortem.readers.values import clean_function

MAX_FACTS: Final = 200_000
"""Largest number of failures and timeouts that are kept."""
_TIMEOUT: Final = re.compile(
    r"[Rr]ank (\d{1,8})\] .*?(?:Watchdog caught collective operation timeout|Timeout at collective): "
    r"Work\w*\((?:SeqNum=(\d{1,18}),? ?)?(?:OpType=(\w{1,40}))?(?:.*?Numel(?:In|ln)=(\d{1,18}))?"
)
_PROGRESS: Final = re.compile(
    r"[Rr]ank (\d{1,8})\].*?[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}),.*?last completed (?:NCCL"
    r" )?work: (-?\d{1,18})"
)
_GROUP: Final = re.compile(
    r"\[PG (?:ID )?(\S{1,60}?)(?: PG GUID (\S{1,80}?))?(?:\s?\(([^)]{0,60})\))? Rank (\d{1,8})\]"
)
_JOB_RANK: Final = re.compile(r"^\s*\[rank(\d{1,8})\]:")
"""Prefix of a line: the rank in the job. `[Rank 1]` and `PG ... Rank 1` are ranks in a process group."""
_TASK: Final = re.compile(r"^\d{1,6}: ?(?=\[rank)")
"""Prefix of srun -l, the task, before that of torchrun's ranks."""
_WORLD_GROUPS: Final = ("0", "default_pg", "default")
_REPORT: Final = re.compile(r"(?:^|\s)(time|host|rank|exitcode|traceback)\s*: (.*)")
_SRUN: Final = re.compile(
    r"srun: error: ([\w.-]{1,200}): tasks? ([\d,\-]{1,200}): "
    r"(Killed|Segmentation fault|Out Of Memory|Aborted|Bus error|Terminated|Exited with exit code \d{1,3})"
)
_NODE: Final = re.compile(
    r"(?:Node failure on ([\w.-]{1,200})|JOB \S+ ON ([\w.-]{1,200}) CANCELLED AT \S+ DUE TO NODE FAILURE)"
)
_MPIRUN: Final = re.compile(
    r"process rank (\d{1,8}) with PID (\d{1,10}) on node ([\w.-]{1,200}) exited on signal (\d{1,3})"
)
_EXCEPTION: Final = re.compile(
    r"^(?:\[rank(\d{1,8})\]:\s?|(\d{1,6}): )?((?:[A-Za-z_][\w]*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Interrupt|Exit))(?::\s*(.*))?$"
)
_KERNEL: Final = re.compile(
    r"(?:(?:^|\s)([\w.-]{1,200}) kernel: |^\[\s*[\d.]+\] ?).{0,200}?"
    r"(Killed process (\d{1,10}) \([^)]*\)|NVRM: Xid.{0,80}?: (?:79|48|63|64|74|94|95|119|120)\b.*)"
)
_FATAL: Final = re.compile(
    r"(?:^|\[rank(\d{1,8})\]:\s?)(Fatal Python error: .*|.*Caught signal 11.*|.*\*\*\* Process"
    r" received signal \*\*\*.*)"
)
_OOM_STEP: Final = re.compile(r"slurmstepd(?:-([\w.-]{1,200}))?: error: .*oom.?kill", re.IGNORECASE)
_AGENT: Final = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: (\d{1,6}) \(pid: (\d{1,10})\)")
_LAUNCHER: Final = re.compile(
    r"^(?:\d{1,6}: ?)?[EWI]\d{4} [\d:.]+ (\d{1,10}) .*(?:process (\d{1,10}) closing signal"
    r"|local_rank: (\d{1,6}) \(pid: (\d{1,10})\))"
)
"""torchrun ends its processes: its own process, and one of them."""
_SHELL: Final = re.compile(r"line \d{1,6}:\s+(\d{1,10}) (Killed|Segmentation fault)\b")
_WORLD: Final = re.compile(r"\b(?:world[_ ]?size|WORLD_SIZE)['\"]?\s*[=:]\s*(\d{1,7})\b")
_SIGNALS: Final = {
    4: "illegal instruction",
    6: "aborted",
    7: "bus error",
    8: "floating point exception",
    9: "killed",
    11: "segmentation fault",
    15: "terminated",
}
_LATER: Final = 0.4
"""Factor for the weight of failures that a report of torchrun lists beside the first: torchrun ends the other
processes after it, by SIGTERM and 30 s later by SIGKILL.
"""
_CONSEQUENCES: Final = re.compile(
    r"DistBackendError|NCCL|nccl|[Cc]onnection (?:reset|closed)|Watchdog|[Bb]roken"
    r" pipe|timed? ?out|SIGTERM|ChildFailedError"
    r"|DistNetworkError|DistStoreError|SystemExit|KeyboardInterrupt|SignalException|gloo|Gloo|CalledProcessError"
)


def exit_text(code: int) -> tuple[str, float]:
    """Return (description of an exit code, its weight as a cause from 0 to 1).

    A process that aborts or is terminated usually reacts to another's failure.
    """
    signal = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if signal:
        weight = 0.15 if signal in (6, 15) else 0.0 if signal == 2 else 1.0
        return f"signal {signal} ({_SIGNALS.get(signal, 'signal')})", weight
    return f"exit code {code}", 0.5 if code else 0.0


class PythonLog:
    """The reader of one file, with the torchrun report that it is reading."""

    def __init__(self, out: Observations, name: str, rank: int | None) -> None:
        self._out = out
        self._name = name
        self._rank = rank
        self._report: dict[str, str] = {}
        self._is_root = False
        self._is_cancelled = False
        self._groups: dict[int, str] = {}
        self._unnamed: dict[int, int] = {}
        """Rank to the place of its last timeout, whose group is not stated yet."""
        self._processes: dict[str, set[str]] = {}
        """Launcher to its processes, by their ids."""
        self._readers: tuple[tuple[str, Callable[[str], bool]], ...] = (
            ("ank ", self._take_watchdog),
            (": ", self._take_report),
            ("srun: error", self._take_srun),
            ("NODE FAIL", self._take_node),
            ("Node failure", self._take_node),
            ("exited on signal", self._take_mpirun),
            ("Killed process", self._take_kernel),
            ("NVRM: Xid", self._take_kernel),
            ("slurmstepd", self._take_oom),
            ("closing signal", self._take_launcher),
            ("failed (exitcode", self._take_launcher),
            ("failed (exitcode", self._take_agent),
            ("illed", self._take_shell),
            ("egmentation fault", self._take_shell),
        )

    def take(self, line: str) -> bool:
        """Add the facts of a line; return whether the line states a fact."""
        line = _TASK.sub("", line)
        if "first observed failure" in line:
            self._is_root = True
            return True
        if "CANCELLED AT" in line or "Job step aborted" in line:
            self._is_cancelled = True  # Slurm ends the other tasks: their ends say nothing
        is_read = False
        for part, reader in self._readers:
            if part in line and reader(line):
                is_read = True
        if self._take_exception(line) or self._take_fatal(line):
            is_read = True
        if "world" in line or "WORLD" in line:
            match = _WORLD.search(line)
            self._out.expect(int(match[1]) if match is not None else 0)
        return is_read

    def _take_watchdog(self, line: str) -> bool:
        timeout, progress = _TIMEOUT.search(line), _PROGRESS.search(line)
        match = timeout or progress
        group = _GROUP.search(line)
        rank = self._watchdog_rank(line, group, match)
        if group is not None and rank is not None:
            self._name_timeout(rank, group, line)
            self._groups[rank] = _group_text(group)
        if match is None or rank is None or rank > MAX_RANK or len(self._out.timeouts) >= MAX_FACTS:
            return False
        self._out.place(rank, "")
        stop = Timeout(rank, self._groups.get(rank, ""), -1, "", -1, -1, -1)
        if timeout is not None:
            seq, elements = int(timeout[2] or -1), int(timeout[4] or -1)
            stop = stop._replace(seq=seq, function=clean_function(timeout[3] or ""), elements=elements)
        if progress is not None:
            stop = stop._replace(last_enqueued=int(progress[2]), last_completed=int(progress[3]))
        if group is None and timeout is not None:
            self._unnamed[rank] = len(self._out.timeouts)
        if group is not None:
            stop = stop._replace(group=_group_text(group), place=int(group[4]))
        self._out.timeouts.append(stop)
        return True

    def _name_timeout(self, rank: int, group: re.Match[str], line: str) -> None:
        """Add the group to a rank's last timeout, because PyTorch logs the group in a later line."""
        index = self._unnamed.get(rank)
        if index is not None and "dump signal" not in line:
            timeout = self._out.timeouts[self._unnamed.pop(rank)]
            self._out.timeouts[index] = timeout._replace(group=_group_text(group), place=int(group[4]))

    def _watchdog_rank(
        self, line: str, group: re.Match[str] | None, match: re.Match[str] | None
    ) -> int | None:
        """Return the job-wide rank in a watchdog's line; None if only the rank in a subgroup is known."""
        if prefix := _JOB_RANK.match(line):
            return int(prefix[1])
        if group is not None and not {group[1], group[2], group[3]}.intersection(_WORLD_GROUPS):
            return self._rank
        if group is not None:
            return int(group[4])
        return int(match[1]) if match is not None else None

    def _take_report(self, line: str) -> bool:
        """Read a line of a failure in torchrun's report; the line `exitcode` completes the failure."""
        match = _REPORT.search(line)
        if match is None:
            return False
        self._report[match[1]] = match[2].strip()
        if match[1] != "exitcode":
            return False
        rank = re.match(r"(\d{1,8}) \(local_rank: (\d{1,6})", self._report.get("rank", ""))
        code = re.match(r"(-?\d{1,3})\s*\(pid: (\d{1,10})\)", match[2])
        if rank is None or code is None:
            return False
        self._expect_peers(int(rank[1]) - int(rank[2]), code[2])
        label, weight = exit_text(int(code[1]))
        time_s = _seconds(self._report.get("time", ""))
        if self._is_root:
            label, weight = f"{label}, the first failure that torchrun saw", weight * 1.1
        else:
            weight *= _LATER
        host = self._report.get("host", "")[:200]
        self._fail(int(rank[1]), host, label, weight, code[2], time_s)
        self._report, self._is_root = {}, False
        return True

    def _take_srun(self, line: str) -> bool:
        match = _SRUN.search(line)
        if match is None:
            return False
        code = re.search(r"code (\d+)", match[3])
        label, weight = exit_text(int(code[1])) if code is not None else (match[3].lower(), 1.0)
        if match[3] in ("Aborted", "Terminated") or self._is_cancelled:
            weight = min(weight, 0.15)
        for rank in _task_numbers(match[2]):
            self._fail(rank, match[1], label, weight)
        return True

    def _take_node(self, line: str) -> bool:
        match = _NODE.search(line)
        if match is None:
            return False
        self._fail(None, match[1] or match[2], "the node failed", 1.2)
        return True

    def _take_mpirun(self, line: str) -> bool:
        match = _MPIRUN.search(line)
        if match is None:
            return False
        label, weight = exit_text(-int(match[4]))
        self._fail(int(match[1]), match[3], label, weight, match[2])
        return True

    def _take_kernel(self, line: str) -> bool:
        match = _KERNEL.search(line[:2000])
        if match is None:
            return False
        host, label = match[1] or "", match[2][:80]
        other = re.search(r"pid='?(\d{1,10})", match[2])
        pid = match[3] or (other[1] if other is not None else "")
        if match[3]:
            label = f"out of memory: the kernel killed process {pid}"
        self._fail(None, host, label, 1.2, pid)
        return True

    def _take_oom(self, line: str) -> bool:
        match = _OOM_STEP.search(line)
        if match is None:
            return False
        self._fail(self._rank, match[1] or "", "out of memory: killed by the kernel", 1.0)
        return True

    def _take_launcher(self, line: str) -> bool:
        match = _LAUNCHER.search(line[:2000])
        if match is not None and len(self._processes) < MAX_FACTS:
            self._processes.setdefault(match[1], set()).add(match[2] or match[4])
        return False

    def _expect_peers(self, first: int, pid: str) -> None:
        """Record at least `first` + n ranks; n is the number of processes of the launcher of `pid`."""
        for pids in self._processes.values():
            if pid in pids:
                self._out.expect(first + len(pids))

    def _take_agent(self, line: str) -> bool:
        match = _AGENT.search(line)
        if match is None:
            return False
        label, weight = exit_text(int(match[1]))
        self._fail(None, "", f"{label}, local rank {match[2]}", weight * 0.5, match[3])
        return True

    def _take_shell(self, line: str) -> bool:
        match = _SHELL.search(line)
        if match is None:
            return False
        self._fail(self._rank, "", match[2].lower(), 0.9, match[1])
        return True

    def _take_exception(self, line: str) -> bool:
        if "Error" not in line and "Exception" not in line:
            return False
        match = _EXCEPTION.match(line.rstrip()[:2000])
        if match is None:
            return False
        label = f"{match[3]}: {match[4] or ''}"[:160].rstrip(": ")
        rank = int(match[1] or match[2]) if match[1] or match[2] else self._rank
        weight = 0.05 if _CONSEQUENCES.search(label) and "CUDA" not in label else 0.8
        if rank is not None:
            self._out.place(rank, "")
        else:
            weight = min(weight, 0.25)  # printed by any process, also by one that handled it
        self._fail(rank, "", label, weight)
        return True

    def _take_fatal(self, line: str) -> bool:
        match = _FATAL.search(line[:2000]) if "signal" in line or "Fatal" in line else None
        if match is None:
            return False
        self._fail(int(match[1]) if match[1] else self._rank, "", match[2].strip()[:120], 0.9)
        return True

    def _fail(
        self, rank: int | None, host: str, label: str, weight: float, pid: str = "", time_s: float = 0.0
    ) -> None:
        if len(self._out.failures) >= MAX_FACTS or (rank is not None and rank > MAX_RANK):
            return
        if rank is not None and host:
            self._out.hosts[rank] = host
        self._out.failures.append(Failure(rank, host, pid, label, time_s, weight, self._name))


def _group_text(group: re.Match[str]) -> str:
    """Return the name of a group: its GUID, as its id may differ between ranks."""
    name = group[2] or group[1]
    return f"{name} ({group[3]})" if group[3] else name


def _task_numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from range(int(first), min(int(last or first), int(first) + 4096) + 1)


def _seconds(text: str) -> float:
    try:
        return datetime.strptime(text[:19], "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
