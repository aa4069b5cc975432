"""Defines the right answers about a folder: the cause, and all verdicts that a careful reader can infer.

The truth is fixed by the incident and by the files in the folder, never by an answer. The right verdict with
the right culprit is right in every folder, even where few readers could infer it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fabrictime.bench.workload.postmortem.job import Group
from fabrictime.bench.workload.postmortem.run import Run

VERDICTS: Final = (
    "HEALTHY",
    "HANG",
    "DEAD_RANK",
    "PROGRAM_MISMATCH",
    "STRAGGLER",
    "SLOW_NIC",
    "FALLBACK",
    "UNKNOWN",
)
NO_CAUSE: Final = ("HEALTHY", "UNKNOWN")
VISIBLE_SLOWDOWN: Final = 0.5
"""Slowdown of a straggler from which the waits of the others are visible without its own records."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """A right set of culprits: at least `count` names of `needed`, unless empty, and none but `allowed`."""

    needed: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    count: int = 1

    def right(self, names: Collection[str]) -> bool:
        """Return whether a set of names is right; additional groups and rails are permitted."""
        subjects = {name for name in names if name.partition(" ")[0] in ("rank", "host", "nic")}
        enough = not self.needed or len(subjects & self.needed) >= self.count
        if self.count > 1:
            enough |= any(name.startswith("host ") for name in subjects & self.needed)
        return enough and subjects <= self.allowed | self.needed


Truth = Mapping[str, Culprits]
"""The accepted verdicts, each with its culprits."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Describes the files of an incident's folder."""

    form: str
    missing: frozenset[int] = frozenset()
    timing: bool = True
    """Whether the records have durations."""
    watchdog: bool = True
    """Whether the logs have the lines of PyTorch, torchrun and perhaps srun."""
    srun: bool = True
    state: str = ""
    """The job's state in Slurm's accounting."""
    steps_by_host: bool = False
    parts: tuple[Folder, ...] = field(default=())
    """The folders in it, one of each format, if it holds several."""


def right(answer: Mapping[str, Any], truth: Truth) -> bool:
    """Return whether an answer of the product is right."""
    culprits = truth.get(str(answer.get("verdict")))
    return culprits is not None and culprits.right([_short(name) for name in answer.get("culprits", [])])


def _short(name: str) -> str:
    """Return a culprit with its host's name without a domain."""
    kind, _, subject = name.partition(" ")
    host, slash, device = subject.partition("/")
    if kind in ("host", "nic") and not host.replace(".", "").isdigit():
        host = host.partition(".")[0]
    return f"{kind} {host}{slash}{device}"


def truth(run: Run, folder: Folder) -> Truth:
    """Return the right answers about a folder."""
    if folder.parts:
        return _combined([truth(run, part) for part in folder.parts])
    incident = run.incident
    if incident.kind == "none":
        return _nothing(*(() if _plain(folder, run) else ("UNKNOWN",)), only="HEALTHY")
    shown = _stopped if incident.stops else _straggler if incident.cause == "straggler" else _slow_network
    return _with_true(shown(run, folder), incident.verdict, _true(run))


def _with_true(shown: dict[str, Culprits], verdict: str, true: Culprits) -> Truth:
    """Return the verdicts that a folder shows together with the truth, which is right in every folder."""
    rule = shown.get(verdict, true)
    return shown | {verdict: Culprits(rule.needed, rule.allowed | true.allowed | true.needed, rule.count)}


def _nothing(*others: str, only: str = "") -> dict[str, Culprits]:
    """Return verdicts without culprits; without `only`, the verdicts of a folder that shows no fault."""
    return dict.fromkeys([only, *others] if only else NO_CAUSE, Culprits())


def _subjects(run: Run, ranks: Iterable[int]) -> frozenset[str]:
    """Return all names that denote ranks: the ranks, their hosts and their NICs."""
    names = set[str]()
    for rank in ranks:
        names |= {f"rank {rank}", f"host {run.job.host(rank).name}", f"nic {run.job.nic(rank)}"}
    return frozenset(names)


def _ranks(ranks: Iterable[int]) -> frozenset[str]:
    return frozenset(f"rank {rank}" for rank in ranks)


def _true(run: Run) -> Culprits:
    """Return the true culprits."""
    incident = run.incident
    names = _subjects(run, incident.ranks)
    if incident.kind == "straggler_host":
        return Culprits(
            frozenset(name for name in names if not name.startswith("nic")), names, len(incident.ranks) // 2
        )
    if incident.cause == "dead" or incident.verdict in ("SLOW_NIC", "FALLBACK"):
        return Culprits(frozenset() if incident.kind == "sockets_all" else names, names)
    needed = _ranks(incident.ranks)
    stop = incident.stop_group
    if incident.cause == "mismatch" and stop and len(stop.ranks) == 2:
        needed = _ranks(stop.ranks)  # neither of two ranks is the odd one
        names = _subjects(run, stop.ranks)
    return Culprits(needed, names)


def _plain(folder: Folder, run: Run) -> bool:
    """Return whether a folder of a job without a fault has enough evidence to call the job healthy."""
    enough = {"nccl-tests": len(run.job.hosts) > 2, "nccl-inspector": True, "kineto": True}
    return enough.get(folder.form, folder.form.startswith("flight") and folder.timing) and not folder.missing


def _stopped(run: Run, folder: Folder) -> dict[str, Culprits]:
    """Return the verdicts that show in a folder of a job that stopped."""
    if folder.form.startswith("flight"):
        return _dumps(run, folder.missing | set(run.dead))
    if folder.form == "slurm-accounting":
        return _accounting(run, folder)
    if folder.form in ("nccl-debug-log", "python-log"):
        return _log_of_stop(run, folder)
    if folder.form == "nccl-inspector":  # lines of completed calls only: groups that end early are a hint
        group = run.incident.stop_group
        members = _subjects(run, group.ranks) if group else frozenset[str]()
        return _nothing() | {"HANG": Culprits(allowed=members | _subjects(run, run.incident.ranks))}
    return _nothing()


def _dumps(run: Run, missing: Collection[int]) -> dict[str, Culprits]:
    """Return the verdicts that show in the dumps of the ranks that are not missing."""
    incident, group = run.incident, run.incident.stop_group
    assert group is not None  # noqa: S101  # the job stopped
    present = [rank for rank in group.ranks if rank not in missing]
    absent = _subjects(run, missing)
    if incident.cause == "mismatch":
        return _mismatched(run, group, present, absent)
    if any(
        rank in missing for rank in incident.ranks
    ):  # dead or not: the others wait for ranks without a dump
        return {verdict: Culprits(absent, absent) for verdict in ("HANG", "DEAD_RANK")}
    names = _subjects(run, incident.ranks)
    waiting = [rank for rank in present if rank not in incident.ranks]
    return {"HANG": Culprits(_ranks(incident.ranks) | (frozenset() if waiting else absent), names | absent)}


def _mismatched(run: Run, group: Group, present: list[int], absent: frozenset[str]) -> dict[str, Culprits]:
    odd = run.incident.ranks[0]
    if odd in present and len(present) > 1:
        either = _ranks(present) if len(present) == 2 else _ranks([odd])
        return {"PROGRAM_MISMATCH": Culprits(either, _subjects(run, present if len(present) == 2 else [odd]))}
    hidden = absent | (_subjects(run, [odd]) if odd in present else frozenset())
    return _nothing("HANG", only="UNKNOWN") | {
        verdict: Culprits(hidden, hidden) for verdict in ("HANG", "DEAD_RANK")
    }


def _log_of_stop(run: Run, folder: Folder) -> dict[str, Culprits]:
    """Return the verdicts that show in the logs of a job that stopped."""
    incident = run.incident
    if not folder.watchdog and not run.dead:
        return _nothing()
    names = _subjects(run, incident.ranks)
    lost = _subjects(run, folder.missing)
    blind = folder.missing.issuperset(incident.ranks)
    if run.dead and (blind or (incident.kind == "dead_node" and not folder.srun)):
        return _nothing(only="UNKNOWN") | {
            verdict: Culprits(names, names | lost) for verdict in ("HANG", "DEAD_RANK")
        }
    if run.dead:
        return {}
    if incident.cause == "mismatch":
        return _dumps(run, folder.missing)
    if blind:
        return {verdict: Culprits(lost, lost) for verdict in ("HANG", "DEAD_RANK")}
    return _dumps(run, folder.missing)


def _accounting(run: Run, folder: Folder) -> dict[str, Culprits]:
    """Return the verdicts that show in Slurm's accounting, with the host if each host has its own step."""
    names = _subjects(run, run.incident.ranks)
    if not run.dead:
        ended = {"DEAD_RANK": Culprits()} if folder.state == "FAILED" else {}
        return _nothing("HANG", only="UNKNOWN") | ended
    needed = names if folder.steps_by_host else frozenset[str]()
    unsure = (
        _nothing(only="UNKNOWN")
        if run.incident.kind == "dead_gpu_memory" and not folder.steps_by_host
        else {}
    )
    return unsure | {"DEAD_RANK": Culprits(needed, names)}


def _has_times(folder: Folder) -> bool:
    """Return whether a folder has the durations of calls by rank."""
    return folder.form in ("kineto", "nccl-inspector") or (folder.form.startswith("flight") and folder.timing)


def _straggler(run: Run, folder: Folder) -> dict[str, Culprits]:
    if not _has_times(folder):
        return _nothing()
    if not folder.missing.issuperset(run.incident.ranks):
        return {}
    absent = _subjects(run, folder.missing)
    unseen = {"UNKNOWN": Culprits(), "STRAGGLER": Culprits(absent, absent)}
    slight = run.incident.slow < VISIBLE_SLOWDOWN or run.incident.period > 1
    return unseen | (_nothing(only="HEALTHY") if slight else {})


def _slow_network(run: Run, folder: Folder) -> dict[str, Culprits]:
    """Return the verdicts that show from slow transfers, and from the network that NCCL used."""
    fallback = run.incident.verdict == "FALLBACK"
    if folder.form == "nccl-debug-log":
        blind = folder.missing.issuperset(run.incident.ranks) or not fallback
        return _nothing() if blind else {}
    if folder.form == "nccl-tests":
        rules, otherwise = _slow_tests(run)
    elif _has_times(folder):
        rules, otherwise = _slow_groups(run)
    else:
        return _nothing()
    return dict.fromkeys(("SLOW_NIC", "FALLBACK") if fallback else ("SLOW_NIC",), rules) | otherwise


def _slow_tests(run: Run) -> tuple[Culprits, dict[str, Culprits]]:
    """Return the culprits that show in tests of pairs of hosts, and the other verdicts that are right."""
    incident, names = run.incident, _subjects(run, run.incident.ranks)
    hosts = {run.job.host(rank).number for rank in incident.ranks}
    if len(hosts) == 1 and len(run.job.hosts) > 2:
        return Culprits(names, names), {}
    unsure = _nothing(only="UNKNOWN") if incident.kind == "sockets_all" else _nothing()
    return Culprits(allowed=_subjects(run, run.job.world.ranks)), unsure


def _slow_groups(run: Run) -> tuple[Culprits, dict[str, Culprits]]:
    """Return the culprits that show in the times of data groups, and the other verdicts that are right."""
    slow = [group for group in run.job.datas if set(group.ranks) & set(run.incident.ranks)]
    if len(slow) == len(run.job.datas):  # no group of the same kind to compare with
        return Culprits(allowed=_subjects(run, run.job.world.ranks)), _nothing()
    members = _subjects(run, [rank for group in slow for rank in group.ranks])
    return Culprits(members, members), {}


def _combined(truths: list[Truth]) -> Truth:
    """Return the truth of a folder of several formats: the formats that show a cause decide."""
    definite = [each for each in truths if not set(each) & set(NO_CAUSE)] or truths
    verdicts = set(definite[0]).intersection(*definite[1:]) or set().union(*definite)
    return {verdict: _either([each[verdict] for each in definite if verdict in each]) for verdict in verdicts}


def _either(rules: list[Culprits]) -> Culprits:
    """Return a rule that holds wherever one of `rules` holds."""
    empty = frozenset[str]()
    needed = (
        empty if any(not rule.needed for rule in rules) else empty.union(*(rule.needed for rule in rules))
    )
    allowed = empty.union(*(rule.allowed for rule in rules))
    return Culprits(needed, allowed, min(rule.count for rule in rules))
