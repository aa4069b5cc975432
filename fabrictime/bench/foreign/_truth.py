"""The right answers for each foreign fault, by the documents of the verdicts.

The table was written from docs/workload.md alone, before any run and without reading the diagnosis. A fault
below `MIN_EFFECT` costs the job nothing, and only HEALTHY is right; up to `SURE_EFFECT` both are right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Named = Literal["none", "rank", "host", "job", "spine"]
"""Kind of the culprit that an answer must name."""

HEALTHY: Final = "HEALTHY"
STUCK_VERDICTS: Final = ("HANG", "STALLED")
HANG_VERDICTS: Final = frozenset({"HANG", "DEAD_RANK", "PROGRAM_MISMATCH"})
"""Verdicts that declare that a job will not go on; STALLED only suspects it."""
MIN_EFFECT, SURE_EFFECT = 1.05, 1.2
SECOND: Final = ("SLOW_SENDER", "PCIE_LIMIT")
"""Right answers about the second of two faults, a slow NIC."""
_LATE_HOST: Final = ("STRAGGLER", "SLOW_SENDER", "SLOW_RECEIVER")

MESSAGES: Final = ("halo", "transpose", "ring", "params", "workers", "reduce", "small", "files")
"""The programs of programs.c, which show their iterations."""
TOGETHER: Final = ("halo", "transpose", "ring", "params", "reduce", "small", "files")
"""Those in which all ranks wait for a late one."""
SYNCHRONOUS: Final = ("halo", "transpose", "params", "reduce", "small", "files")
"""Those in which a rank that skips an exchange stops the others."""
OWN_BYTES: Final = ("halo", "transpose", "ring")
"""Those in which one rank can send more than the others."""
ALL_BYTES: Final = ("halo", "transpose", "reduce", "params")
"""Those in which all ranks can triple their bytes in one iteration."""
ACROSS: Final = ("halo", "transpose", "ring", "reduce")
"""Those in which each rank sends to the other leaf."""
OTHERS: Final = ("hpcc", "netpipe", "mpi4py", "osu")
"""Programs of others, which run where they are installed."""


@dataclass(frozen=True)
class Cause:
    """A kind of fault: the tool that makes it, its right verdicts, and the programs that it affects."""

    name: str
    tool: str
    verdicts: tuple[str, ...]
    named: Named = "none"
    programs: tuple[str, ...] = TOGETHER
    is_network: bool = False
    """Whether the network is guilty, or whether that is a matter of opinion."""
    must_slow: bool = False
    """Whether HEALTHY is right if the job is not slower."""
    sizes: tuple[str, ...] = ("S", "M", "L")


CAUSES: Final = {
    cause.name: cause
    for cause in (
        Cause("none", "nothing", (HEALTHY,), programs=MESSAGES + OTHERS),
        Cause("fills its NIC", "program, from its begin", (HEALTHY,), programs=OWN_BYTES, sizes=("S",)),
        Cause("one fills its NIC", "program", (HEALTHY, *_LATE_HOST[:2]), "rank", OWN_BYTES),
        Cause("sends a tenth more", "program", (HEALTHY,), programs=OWN_BYTES),
        Cause("all send three times", "program", (HEALTHY,), programs=ALL_BYTES),
        Cause("all compute longer", "program", (HEALTHY,), programs=MESSAGES),
        Cause("disk storm", "dd", (HEALTHY,), programs=MESSAGES),
        Cause("computes longer", "program", ("STRAGGLER",), "rank", must_slow=True),
        Cause("sleeps", "program", ("STRAGGLER",), "rank", must_slow=True),
        Cause("sleeps seldom", "program", ("STRAGGLER",), "rank", must_slow=True),
        Cause("writes and syncs", "program", ("STRAGGLER",), "rank", must_slow=True),
        Cause("stops and goes on", "signals", _LATE_HOST, "rank", must_slow=True),
        Cause("processor limit", "cgroup or signals", _LATE_HOST, "rank", must_slow=True),
        Cause("disk limit", "cgroup", ("STRAGGLER",), "rank", ("files",), must_slow=True),
        Cause("slow NIC", "tc", SECOND, "host", is_network=True, must_slow=True),
        Cause("delay", "tc", (*SECOND, "SLOW_FLOW"), "host", is_network=True, must_slow=True),
        Cause("loss at a NIC", "nft", ("GREY_LINK",), "host", is_network=True, must_slow=True),
        Cause("loss at a spine", "nft", ("GREY_LINK",), "spine", is_network=True, must_slow=True),
        Cause("another job", "mpirun", ("CONTENTION",), "job", ACROSS, True, True, ("S",)),
        Cause("dead NIC", "nft", ("DEAD_LINK", "DEAD_RANK", *STUCK_VERDICTS), "host", is_network=True),
        Cause("two faults", "program and tc", ("STRAGGLER",), "rank", is_network=True, must_slow=True),
        Cause("stop", "signal", STUCK_VERDICTS, "rank", SYNCHRONOUS),
        Cause("freeze", "cgroup", STUCK_VERDICTS, "rank", SYNCHRONOUS),
        Cause("kill", "signal", ("DEAD_RANK",), "rank", TOGETHER),
        Cause("stuck", "program", STUCK_VERDICTS, "rank", TOGETHER),
        Cause("spins", "program", STUCK_VERDICTS, "rank", TOGETHER),
        Cause("reads for ever", "program", STUCK_VERDICTS, "rank", TOGETHER),
        Cause("skips", "program", ("PROGRAM_MISMATCH", *STUCK_VERDICTS), "rank", SYNCHRONOUS),
        Cause("circle", "program", ("PROGRAM_MISMATCH", *STUCK_VERDICTS), "rank", TOGETHER),
        Cause("exit", "program", ("DEAD_RANK",), "rank", TOGETHER),
        Cause("other count", "program", ("PROGRAM_MISMATCH",), "rank", ("params",)),
        Cause("pauses", "program", (HEALTHY,), programs=SYNCHRONOUS),
    )
}  # fmt: skip
"""All causes by name; 'rank' names a rank or its host, 'host' a host, its NIC or one of its links."""

HANGS: Final = ("stop", "freeze", "kill", "stuck", "spins", "reads for ever", "skips", "circle")
INNOCENT: Final = ("none", "none", "none", "fills its NIC")
"""Runs without a fault, in the proportion in which they are drawn."""
FAULTS: Final = (
    "one fills its NIC", "sends a tenth more", "all send three times", "all compute longer", "disk storm",
    "computes longer", "sleeps", "sleeps seldom", "writes and syncs", "stops and goes on", "processor limit",
    "disk limit", "slow NIC", "delay", "loss at a NIC", "loss at a spine", "another job", "dead NIC",
    "two faults", "stop", "kill", "skips", "exit", "other count",
)  # fmt: skip
LASTING: Final = frozenset((*HANGS, "exit", "dead NIC", "other count"))
"""Faults after which the job does not go on as before, so that their end is not awaited."""


@dataclass(frozen=True)
class Answer:
    """A record of `fabric.diagnoses` about the job, reduced to the fields that are scored."""

    at_ns: int
    """Log append time: since then a user sees it."""
    verdict: str
    confidence: float
    blames_network: bool
    subject: str
    ranks: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, str], ...] = ()
    """Verdict and subject of each further explanation."""
    text: str = ""


@dataclass(frozen=True)
class Culprit:
    """The guilty subject of a run: a rank and its host, another job, or a switch."""

    rank: int | None = None
    host: str = ""
    job: str = ""
    other_rank: int | None = None
    """A second rank that may be named as well, as of two that wait for each other."""
    other_host: str = ""


def tokens(subject: str) -> set[str]:
    """Return the names in a subject: `h5` and `eth1` of `h5/eth1`, or both ends of a link."""
    return set(re.findall(r"[A-Za-z0-9_.-]+", subject.replace(">", " ")))


def names(subject: str, ranks: Sequence[int], jobs: Sequence[str], kind: Named, culprit: Culprit) -> bool:
    """Return whether an answer names the culprit. If `kind` is rank, it must name no other rank."""
    if kind == "none":
        return True
    if kind == "job":
        return culprit.job in jobs or culprit.job in subject
    hosts = {name for name in (culprit.host, culprit.other_host) if name}
    guilty = {rank for rank in (culprit.rank, culprit.other_rank) if rank is not None}
    by_subject = bool(hosts & tokens(subject)) or any(f"rank {rank}" == subject for rank in guilty)
    return by_subject and (kind != "rank" or set(ranks) <= guilty)


def is_right(answer: Answer, cause: Cause, culprit: Culprit, effect: float | None) -> bool:
    """Return whether an answer during a fault is right.

    `effect` is the job's iteration time during the fault over the time before.
    """
    if answer.blames_network and not cause.is_network:
        return False
    if cause.must_slow and effect is not None and effect < SURE_EFFECT and answer.verdict == HEALTHY:
        return True
    if cause.must_slow and effect is not None and effect < MIN_EFFECT:
        return False
    if answer.verdict == HEALTHY:
        return HEALTHY in cause.verdicts
    return answer.verdict in cause.verdicts and names(
        answer.subject, answer.ranks, answer.jobs, cause.named, culprit
    )


def is_second(answer: Answer, culprit: Culprit) -> bool:
    """Return whether an answer names the second fault, as verdict or as a further explanation."""
    explanations = ((answer.verdict, answer.subject), *answer.alternatives)
    return any(
        verdict in SECOND and names(subject, (), (), "host", culprit) for verdict, subject in explanations
    )
