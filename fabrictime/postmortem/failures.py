"""Finds the process that died first, from launchers, exceptions, the kernel and Slurm's accounting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from fabrictime.postmortem.base import Explanation, host_names, names_text, rank_name
from fabrictime.postmortem.observations import Failure, Observations, Step

_MIN_WEIGHT: Final = 0.3
_STRONG: Final = 0.7
"""Weight of an end that has a reason of its own: a signal, an exception."""
_WAITED: Final = 0.2
"""Factor for the weight of an exit code of a rank that waited for others."""
_CERTAIN: Final = 0.8
"""Severity of a state of Slurm that no other failure causes."""
_WHICH_TASK: Final = (
    "the task and the node: sacct -P --format=JobID,State,ExitCode,MaxRSSNode,MaxRSSTask,NodeList"
)
_BAD_STATES: Final = {
    "OUT_OF_MEMORY": 0.85,
    "NODE_FAIL": 0.9,
    "BOOT_FAIL": 0.8,
    "FAILED": 0.5,
    "DEADLINE": 0.0,
    "TIMEOUT": 0.0,
    "CANCELLED": 0.0,
    "PREEMPTED": 0.0,
}


def deaths(out: Observations) -> Iterator[Explanation]:
    """Yield explanations for the process that ended first, with the cause of its end."""
    waiting = _waiting(out)
    failures = [_weighed(_resolved(failure, out), waiting) for failure in out.failures]
    causes = [failure for failure in failures if failure.weight >= _MIN_WEIGHT]
    if causes:
        yield _death(causes, failures)
    yield from _accounted(out)
    yield from _closed(out)


def _waiting(out: Observations) -> set[int]:
    """Return the ranks that waited for others at the end, so that their own ends are consequences."""
    in_dumps = {rank for rank, calls in out.calls.items() if any(not call.is_complete for call in calls)}
    return in_dumps | {timeout.rank for timeout in out.timeouts}


def _weighed(failure: Failure, waiting: set[int]) -> Failure:
    """Return a failure with less weight if its rank was waiting and its end has no cause of its own."""
    is_weak = failure.weight < _STRONG and failure.rank in waiting
    return failure._replace(weight=failure.weight * _WAITED) if is_weak else failure


def _resolved(failure: Failure, out: Observations) -> Failure:
    """Return a failure with its rank and host filled in, if the process id or the rank determines them."""
    rank, host = failure.rank, failure.host
    if rank is None and failure.pid:
        rank = out.processes.get((host, failure.pid))
        if rank is None:
            matches = {number for (_, pid), number in out.processes.items() if pid == failure.pid}
            rank = matches.pop() if len(matches) == 1 else None
    if not host and rank is not None:
        host = out.host_of(rank)
    return failure._replace(rank=rank, host=host)


def _death(causes: Sequence[Failure], failures: Sequence[Failure]) -> Explanation:
    """Explain the first death: among the failures with the largest weight, the earliest is the cause."""
    heaviest = max(failure.weight for failure in causes)
    rivals = list(dict.fromkeys(failure for failure in causes if failure.weight >= 0.75 * heaviest))
    first = min(rivals, key=lambda failure: (failure.time_s or 1e12, -failure.weight, failure.rank is None))
    together = _host_wide(first, rivals)
    culprits = _names(first, together)
    confidence = min(0.95, 0.55 + 0.4 * first.weight) if culprits else 0.4
    if len({failure.rank for failure in rivals}) > 2 and not together and not first.time_s:
        confidence *= 0.6
    evidence = tuple(f"{failure.place}: {_name(failure)}: {failure.text}" for failure in rivals[:6])
    missing = () if culprits else ("the rank of the process: start with torchrun --redirects or srun -l",)
    return Explanation("DEAD_RANK", culprits, confidence, _text(first, failures), evidence, missing)


def _host_wide(first: Failure, rivals: Sequence[Failure]) -> list[int]:
    """Return the ranks that ended at the same time as the first, if they are several and on one host."""
    together = [failure for failure in rivals if (failure.text, failure.time_s) == (first.text, first.time_s)]
    ranks = sorted({failure.rank for failure in together if failure.rank is not None})
    return ranks if len(ranks) > 1 and len({failure.host for failure in together}) == 1 else []


def _names(first: Failure, together: Sequence[int]) -> tuple[str, ...]:
    """Return the culprits: a host whose ranks ended together, else the rank and its host."""
    host = host_names([first.host] if first.host else [])
    if together and host:
        return (*host, *map(rank_name, together))
    return (*([rank_name(first.rank)] if first.rank is not None else []), *host)


def _name(failure: Failure) -> str:
    return rank_name(failure.rank) if failure.rank is not None else "a process"


def _text(first: Failure, failures: Sequence[Failure]) -> str:
    text = f"{_name(first)}{f' on {first.host}' if first.host else ''} ended: {first.text}"
    others = {failure.rank for failure in failures} - {first.rank, None}
    if others:
        text += f"; {len(others)} other rank{'s' if len(others) > 1 else ''} failed after it or with it"
    return text


def _accounted(out: Observations) -> Iterator[Explanation]:
    """Yield an explanation for a job's end that Slurm's accounting states."""
    bad = [(step, _severity(step)) for step in out.steps if _severity(step) > 0]
    if not bad:
        return
    of_tasks = [(step, weight) for step, weight in bad if not _is_of_script(step)]
    severity = max(weight for _, weight in of_tasks or bad)
    worst = [step for step, weight in of_tasks or bad if weight == severity]
    step = min(worst, key=lambda step: (len(step.hosts) or 10**6, "." not in step.name))
    culprits = _places(step, out) if len({step.hosts for step in worst if len(step.hosts) == 1}) < 2 else ()
    code = f", signal {step.signal}" if step.signal else f", exit code {step.exit_code}"
    text = f"Slurm's step {step.name} ended as {step.state}{code}"
    text += f" on {names_text(step.hosts)}" if step.hosts else ""
    evidence = tuple(f"sacct: {step.name} {step.state} {step.exit_code}:{step.signal}" for step, _ in bad[:6])
    confidence = severity if culprits else severity * (0.75 if severity >= _CERTAIN else 0.45)
    yield Explanation("DEAD_RANK", culprits, confidence, text, evidence, () if culprits else (_WHICH_TASK,))


def _is_of_script(step: Step) -> bool:
    """Return whether a Slurm step only runs the batch script, on the first host, whatever failed."""
    return step.name.endswith((".batch", ".extern"))


def _places(step: Step, out: Observations) -> tuple[str, ...]:
    """Return a failed Slurm step's only node; if memory ran out, the task and node that used most of it."""
    if "OUT_OF_MEMORY" in step.state and (step.max_rss_host or step.max_rss_rank is not None):
        task = [rank_name(step.max_rss_rank)] if step.max_rss_rank is not None else []
        return (*task, *([f"host {step.max_rss_host}"] if step.max_rss_host else []))
    if len(step.hosts) != 1 or _is_of_script(step):
        return ()
    rank = out.only_rank_on(step.hosts[0])
    return (*([rank_name(rank)] if rank is not None else []), f"host {step.hosts[0]}")


def _severity(step: Step) -> float:
    states = re.findall(r"[A-Z_]{4,}", step.state.upper())
    weight = max((_BAD_STATES.get(state, 0.0) for state in states), default=0.0)
    if step.signal in (9, 11, 7, 4) or step.exit_code in (137, 139, 135):
        weight = max(weight, 0.8)
    if step.exit_code in (134, 143) or step.signal in (6, 15):
        weight = min(weight, 0.35)
    return weight


def _closed(out: Observations) -> Iterator[Explanation]:
    """Yield an explanation for the host that closed its connections to others, from NCCL's logs."""
    by_address = out.hosts_by_address()
    lost = {(host, by_address.get(peer, peer)) for host, peer in out.closed_peers}
    reporters = {host for host, _ in lost}
    counts = Counter(peer for host, peer in lost if host != peer)
    silent = {peer: number for peer, number in counts.items() if peer not in reporters} or counts
    candidates = [peer for peer, number in silent.items() if number == max(silent.values())]
    if len(candidates) != 1:
        return
    peer = candidates[0]
    rank = out.only_rank_on(peer)
    culprits = (*([rank_name(rank)] if rank is not None else []), f"host {peer}")
    text = f"a process on {peer} ended or closed its connections, as the logs of {counts[peer]} hosts state"
    missing = (f"the end of the logs of {peer} would say why its process ended",)
    yield Explanation("DEAD_RANK", culprits, 0.6, text, (), missing)
