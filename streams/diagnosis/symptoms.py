"""Defines symptoms, the measured evidence for and against possible causes, and the table of all causes.

Each explanation states the symptoms that it measured, as numbers from 0 (absent) to 1. The table lists the
symptoms that support each cause, and those that contradict it. A new cause is one row here, and its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.records import Verdict


class Symptom(StrEnum):
    """Names of the symptoms: evidence for or against possible causes."""

    # ranks
    SUSPECT = "ranks are named for which the others wait"
    CIRCLE = "ranks wait for each other"
    SILENT = "the suspected rank sends no records"
    STANDSTILL = "an operation does not end"
    FUNCTIONS_DIFFER = "ranks call different functions under one number"
    OWN_TIME = "the rank spent the time outside of operations"
    NETWORK_TIME = "the late rank moved data for longer than the others"
    ONE_HOST = "the ranks of one host stand out"
    # hosts
    AUDIT_FAILED = "an audit of the host found the fault"
    NO_GPU_WAIT = "ranks never wait for their GPU"
    GPU_WAITS = "ranks wait for their GPU"
    GPU_LATE = "transfers of the slow pairs wait for a GPU"
    PROBES_NORMAL = "probes on the slow pairs see neither queue nor loss"
    LIMITED_FLOWS = "flows report which end limits them"
    RECEIVES_NOTHING = "the link towards the NIC is dead"
    STORM = "pauses explain the queues"
    SLOW_FOR_LONGER = "the NIC was a slow receiver for longer than it paused"
    # links and flows
    CROSSED = "flows of the job certainly cross the link"
    DECLARED = "the service of links found the fault"
    LINK_LEFT = "the job's flows have left the link"
    FLOWS_MOVED = "decisions moved the job's flows off the link"
    AMBIGUOUS = "other links explain the losses as well"
    OTHERS_TRAFFIC = "flows of others share the link"
    OWN_TRAFFIC = "only the job's own flows share the link"
    LATE_QUEUE = "the queue was seen after the job had slowed"
    ALONE = "other paths have half of the marks at most"
    MARKED = "packets of the class are marked on the path"
    OWN_QUEUE = "the job's own flows queue on the link"
    FULLER = "the link has more of the job's pairs than any link while the job was fast"
    COMMON_END = "the slow pairs have one end in common"
    SLOW_PROBES = "probes of the pair are slower than those of others"
    ROUND_TRIPS = "round trips of the pair's flows are longer than those of others"
    # settings
    DECISION = "a decision put the limit there"
    CLASS_DIFFERS = "the traffic class of the data differs from that of others"
    NO_FIRST_CHUNK = "delays of first chunks are not measured"
    # all causes
    EXPLAINED = "another cause explains this one"
    RIVAL = "another cause is likely"
    SLOW_THERE = "these pairs are slow, and others are not"
    SLOW_ELSEWHERE = "other pairs are slow, and these are not"
    CHEAPER = "another cause costs more time"
    BARELY_SLOW = "the job is hardly slower than its baseline"
    MISSING = "evidence is missing"
    # no cause
    BASELINE = "the job's baseline is known"
    PROGRAM = "the program does more than before"
    NEARLY_SLOW = "the job lost nearly as much time as a verdict needs"


Symptoms = dict[Symptom, float]
S = Symptom
COMMON: Final = (S.RIVAL, S.CHEAPER, S.BARELY_SLOW)
"""Symptoms against each cause of lost time."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A cause: the symptoms for and against it, and the causes of which it can be an effect."""

    speaks_for: tuple[Symptom, ...] = ()
    against: tuple[Symptom, ...] = ()
    explained_by: tuple[Verdict, ...] = ()

    def sign(self, symptom: Symptom) -> int:
        """Return 1 for a symptom that supports the cause, -1 for one that contradicts it, 0 for any other."""
        return (symptom in self.speaks_for) - (symptom in self.against)


V = Verdict
_LINK: Final = (
    (S.CROSSED, S.DECLARED, S.FLOWS_MOVED, S.SLOW_THERE),
    (S.LINK_LEFT, S.AMBIGUOUS, S.SLOW_ELSEWHERE, *COMMON),
)
_SLOW_END: Final = (
    (S.PROBES_NORMAL, S.LIMITED_FLOWS, S.ROUND_TRIPS, S.GPU_WAITS),
    (S.OTHERS_TRAFFIC, S.EXPLAINED, *COMMON),
)
_STOPS: Final = (V.DEAD_RANK, V.PROGRAM_MISMATCH, V.PAUSE_STORM, V.DEAD_LINK, V.GREY_LINK, V.FLAPPING_LINK)
_WAITS: Final = ((S.SUSPECT,), (S.CIRCLE, S.SILENT, S.EXPLAINED))
_LINKS: Final = (V.DEAD_LINK, V.FLAPPING_LINK, V.GREY_LINK)
_HOSTS: Final = (V.SLOW_SENDER, V.SLOW_RECEIVER, V.PCIE_LIMIT, V.PAUSE_STORM)
_SETTINGS: Final = (V.RAIL_MISMATCH, V.DELAY_MISMATCH, V.OWN_PACING)

HYPOTHESES: Final[Mapping[Verdict, Hypothesis]] = {
    V.DEAD_RANK: Hypothesis((S.SUSPECT,)),
    V.HANG: Hypothesis(*_WAITS, _STOPS),
    V.STALLED: Hypothesis((S.STANDSTILL, *_WAITS[0]), _WAITS[1], (V.HANG, *_STOPS)),
    V.PROGRAM_MISMATCH: Hypothesis((S.STANDSTILL, S.FUNCTIONS_DIFFER, S.CIRCLE)),
    V.STRAGGLER: Hypothesis((S.OWN_TIME,), (S.NETWORK_TIME, *COMMON)),
    V.LAUNCH_SKEW: Hypothesis((S.ONE_HOST,), COMMON),
    V.PCIE_LIMIT: Hypothesis(
        (S.AUDIT_FAILED, S.PROBES_NORMAL, S.GPU_WAITS),
        (S.NO_GPU_WAIT, S.EXPLAINED, *COMMON),
        _SETTINGS,
    ),
    V.SLOW_SENDER: Hypothesis(*_SLOW_END, _SETTINGS),
    V.SLOW_RECEIVER: Hypothesis(
        *_SLOW_END,
        (*_LINKS, V.CONTENTION, V.SLOW_SENDER, V.PCIE_LIMIT, V.PAUSE_STORM, *_SETTINGS),
    ),
    V.PAUSE_STORM: Hypothesis((S.RECEIVES_NOTHING, S.STORM), (S.SLOW_FOR_LONGER, *COMMON)),
    V.DEAD_LINK: Hypothesis(_LINK[0], (S.EXPLAINED, *_LINK[1]), (V.PAUSE_STORM,)),
    V.GREY_LINK: Hypothesis(*_LINK),
    V.FLAPPING_LINK: Hypothesis(*_LINK),
    V.CONTENTION: Hypothesis(
        (S.CROSSED, S.OTHERS_TRAFFIC, S.MARKED, S.ALONE, S.SLOW_THERE),
        (S.OWN_TRAFFIC, S.LATE_QUEUE, S.SLOW_ELSEWHERE, S.EXPLAINED, *COMMON),
        (*_LINKS, *_HOSTS, V.DELAY_MISMATCH, V.OWN_PACING),
    ),
    V.FEW_QUEUE_PAIRS: Hypothesis(
        (S.OWN_QUEUE, S.FULLER), (S.EXPLAINED, *COMMON), (V.RAIL_MISMATCH, V.DEAD_LINK, V.FLAPPING_LINK)
    ),
    V.SLOW_FLOW: Hypothesis(
        (S.SLOW_PROBES, S.ROUND_TRIPS),
        (S.COMMON_END, S.EXPLAINED, *COMMON),
        (*_LINKS, *_HOSTS, V.CONTENTION, V.FEW_QUEUE_PAIRS, *_SETTINGS),
    ),
    V.OWN_PACING: Hypothesis((S.DECISION,), COMMON),
    V.DELAY_MISMATCH: Hypothesis(
        (S.AUDIT_FAILED, S.CLASS_DIFFERS), (S.GPU_WAITS, S.GPU_LATE, S.NO_FIRST_CHUNK, *COMMON)
    ),
    V.RAIL_MISMATCH: Hypothesis((), COMMON),
    V.HEALTHY: Hypothesis((S.BASELINE,), (S.RIVAL, S.PROGRAM, S.MISSING, S.NEARLY_SLOW)),
}
"""Each cause, and HEALTHY, with its symptoms."""
