"""Explains jobs without this system's profiler, by the reports of their RAS services.

The services report ranks that launched fewer operations than others, and ranks that do not answer. The
verdicts are those of traced jobs: DEAD_RANK, PROGRAM_MISMATCH, HANG, STALLED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from schemas.records import CollectiveFunction, DiagnosisEvidence, RankState, Verdict
from schemas.topics import COLLECTIVES
from schemas.units import delay_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.job.ras_history import RasWait
from streams.diagnosis.record import listed, pause_text
from streams.diagnosis.symptoms import Symptom, Symptoms
from streams.diagnosis.verdicts.progress import stop
from streams.diagnosis.verdicts.surroundings import hosts_down, surroundings
from streams.runtime.units import NS_PER_S

MAX_NAMED: Final = 4
MIN_REPORTS: Final = 2
"""Number of reports that show progress."""
LEVEL_STALL_S: Final = 10.0
"""Time without an operation, s, after which a job stalls in which no rank is behind: programs compute as
long."""


def ras_verdict(case: Case) -> Iterator[Candidate]:
    """Explain why a job without this system's profiler makes no progress."""
    wait = case.ras
    if wait is None or case.members:
        return
    age_ns = wait.at_ns - wait.since_ns
    unusual_ns = max(
        case.rules.hang_times * wait.usual_ns, case.rules.hang_pauses * case.job.stalls.longest_ns
    )
    candidate = _certain(case, wait, age_ns) or _waiting(case, wait, age_ns, unusual_ns)
    if candidate is not None:
        yield candidate


def _certain(case: Case, wait: RasWait, age_ns: int) -> Candidate | None:
    """Return the verdict that evidence proves, a death or operations that do not match, else None."""
    lost = _lost_hosts(case, [*wait.unresponsive, *wait.late])
    dead = wait.dead or [state for state in (*wait.unresponsive, *wait.late) if _host_of(case, state) in lost]
    if dead:
        cause = "its host is down" if lost and not wait.dead else dead[0]["text"]
        text = f"{_names(case, dead)}: {cause}; {_progress_text(wait)}"
        remedy = "restart the job from its last checkpoint"
        return _candidate(case, Verdict.DEAD_RANK, dead, text, remedy)
    if wait.is_mismatch and age_ns >= case.rules.stall_s * NS_PER_S:
        text = f"ranks wait for each other in different operations: {_states_text(case, wait.late)}"
        remedy = "call operations in one order at all ranks"
        return _candidate(case, Verdict.PROGRAM_MISMATCH, wait.late, text, remedy)
    return None


def _waiting(case: Case, wait: RasWait, age_ns: int, unusual_ns: float) -> Candidate | None:
    """Return HANG or STALLED about ranks that are behind, do not answer, or all wait."""
    rules = case.rules
    suspects = wait.unresponsive or wait.late
    stall_s = LEVEL_STALL_S if wait.is_level else rules.stall_s
    if age_ns < max(stall_s * NS_PER_S, unusual_ns):
        return None
    hang_s = rules.hang_s if wait.unresponsive else rules.pause_s
    text = f"{_suspects_text(case, wait)}; {_progress_text(wait)}"
    if suspects and age_ns >= max(hang_s * NS_PER_S, unusual_ns):
        remedy = f"get a stack trace of {_process_text(suspects[0])}"
        return _candidate(case, Verdict.HANG, suspects, text, remedy)
    return _candidate(case, Verdict.STALLED, suspects, text, _decided_by(case, suspects))


def _decided_by(case: Case, suspects: list[RankState]) -> str:
    """Return, as a remedy, the evidence that would distinguish a pause from a hang."""
    ends = pause_text(case, "does not answer")
    if suspects:
        return f"a stack trace of {_process_text(suspects[0])} tells a checkpoint from a hang; {ends}"
    return f"our profiler in its ranks would show whether they wait in an operation; {ends}"


def progress_text(case: Case) -> str:
    """Return a text about a job that makes progress by its RAS services' reports; empty without reports."""
    if case.members or len(case.job.ras.reports) < MIN_REPORTS:
        return ""
    counts = "its ranks launch operations, and none is behind for long, by the counts of NCCL"
    return f"{counts}; without our profiler their times are not known"


def _candidate(case: Case, verdict: Verdict, states: list[RankState], text: str, remedy: str) -> Candidate:
    hosts = list(dict.fromkeys(host for state in states if (host := _host_of(case, state))))
    evidence = [_evidence(state) for state in states[:16]] + surroundings(case, hosts)
    symptoms: Symptoms = {Symptom.SUSPECT: bool(states), Symptom.STANDSTILL: True}
    candidate = stop(verdict, [], text, remedy, evidence, symptoms)
    candidate.subject = hosts[0] if hosts else ""
    candidate.subjects = [*hosts, *(f"rank {state['rank']}" for state in states)][:64]
    candidate.ranks = [state["rank"] for state in states[:64]]
    return candidate


def _evidence(state: RankState) -> DiagnosisEvidence:
    subject = f"rank {state['rank']} of {state['communicator']}"
    expected = state["operations"] + state["behind"] if state["behind"] else None
    number = state["operations"] if state["operations"] >= 0 else None
    return observation(COLLECTIVES.name, subject, "operations", number, expected, f"NCCL: {state['text']}")


def _host_of(case: Case, state: RankState) -> str:
    """Return the host of a rank, which NCCL names by an address."""
    return case.network.host_of_address(state["host"]) or state["host"]


def _lost_hosts(case: Case, states: Iterable[RankState]) -> set[str]:
    hosts = {_host_of(case, state) for state in states} - {""}
    return {episode.record["subject"] for episode in hosts_down(case, hosts)}


def _name(case: Case, state: RankState) -> str:
    host = _host_of(case, state)
    return f"rank {state['rank']}" + (f" on {host}" if host else "")


def _names(case: Case, states: list[RankState]) -> str:
    return listed([_name(case, state) for state in states], MAX_NAMED)


def _states_text(case: Case, states: list[RankState]) -> str:
    texts = [f"{_name(case, state)} {state['text']}" for state in states[:2]]
    return "; ".join(texts) or "each rank is behind another one"


def _suspects_text(case: Case, wait: RasWait) -> str:
    if wait.unresponsive:
        return f"{_names(case, wait.unresponsive)} does not answer NCCL's RAS service"
    if not wait.late:
        return "all ranks launched the same operations, and none since"
    first = wait.late[0]
    function = first["function"]
    operation = "the next operation"
    if function != CollectiveFunction.UNKNOWN and first["operations"] >= 0:
        operation = f"the {function} in which the others wait"
    return f"{_names(case, wait.late)} did not enter {operation} ({first['text']})"


def _process_text(state: RankState) -> str:
    place = f" on {state['host']}" if state["host"] else ""
    return f"process {state['process']}{place}" if state["process"] else f"rank {state['rank']}"


def _progress_text(wait: RasWait) -> str:
    names = listed([one["communicator"] for one in wait.communicators], 2)
    return f"communicator {names} launched nothing for {delay_text(wait.at_ns - wait.since_ns)}"
