"""Finds operations that do not end, and the ranks for which other ranks wait in them.

A rank that did not begin an operation may itself wait in another operation, or for a message. The search
follows these waits until it finds ranks without a wait, an operation that all ranks began, or a cycle.

A message's wait counts only while its process does nothing else: programs post receives long before they
wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from schemas.records import LinkState
from streams.diagnosis.case import Case, Stuck
from streams.diagnosis.job.columns import FUNCTIONS, IS_COLLECTIVE, IS_MESSAGE, Op, Sum
from streams.diagnosis.job.ranks import Rank
from streams.runtime.units import NS_PER_S

MIN_AGE_NS: Final = NS_PER_S // 2
"""Age of a running operation from which on a process that ended counts as missing from it."""
REPORT_NS: Final = 7 * NS_PER_S // 2
"""Age from which on a running operation is in some record: reporters publish it after 2 s."""
SILENT_NS: Final = 4 * NS_PER_S
"""Time without a record after which a process is silent."""
MAX_WAITS: Final = 256
"""Largest number of waits in which the smallest cycle is searched."""
MESSAGE_TIMES: Final = 3.0
"""Multiple of the job's usual iteration from which on a wait for a message stalls the job."""
Key = tuple[int, int]
"""Communicator and sequence number of a collective."""


@dataclass(slots=True)
class _Wait:
    """A running collective with the processes in it, or a process that waits for messages."""

    rows: dict[int, int]
    """Row by process that waits."""
    since: float
    """Time at which its last process began to wait, ns after the interval's begin."""
    is_collective: bool
    targets: list[int] = field(default_factory=list)
    """Processes for which the others wait."""


def find_stuck(case: Case) -> Stuck | None:
    """Return the operation at the root of all waits at the interval's end; None if all are short."""
    waits = [*_collectives(case), *_messages(case)]
    if not waits:
        return None
    by_process = _by_process(waits)
    first = min(waits, key=lambda wait: (_begin(case, wait), not wait.is_collective, min(wait.rows)))
    reached = _reach(first, by_process)
    roots = _halted(case, reached)
    roots = roots or {process for wait in reached for process in wait.targets} - by_process.keys()
    if roots:
        chosen = next(wait for wait in reached if roots.intersection((*wait.targets, *wait.rows)))
        return _stuck(case, chosen, roots, by_process)
    whole = next((wait for wait in reached if not wait.targets), None)
    if whole is not None:
        return _stuck(case, whole, set(), by_process)
    return _circle(case, reached, by_process)


def _by_process(waits: Iterable[_Wait]) -> dict[int, list[_Wait]]:
    by_process: dict[int, list[_Wait]] = {}
    for wait in waits:
        for process in wait.rows:
            by_process.setdefault(process, []).append(wait)
    return by_process


def _circle(case: Case, reached: list[_Wait], by_process: dict[int, list[_Wait]]) -> Stuck:
    cycle = min((_reach(wait, by_process) for wait in reached[:MAX_WAITS]), key=len)
    stuck = _stuck(case, cycle[0], _ahead(case, cycle) or _members(cycle), by_process, is_circle=True)
    stuck.is_collective = all(wait.is_collective for wait in cycle)
    _rate(case, stuck, case.work.length_ns - max(wait.since for wait in cycle))
    return stuck


def _members(waits: Iterable[_Wait]) -> set[int]:
    return {process for wait in waits for process in wait.rows}


def _ahead(case: Case, waits: Sequence[_Wait]) -> set[int]:
    """Return the process of a cycle that is in a collective while others of the cycle await its messages.

    It left out the messages, or they were lost. If there are several, the first in the collective is
    returned: requests stay open until all are complete, so the others look alike, but exchanged messages
    before.
    """
    rows = {process: row for wait in waits if wait.is_collective for process, row in wait.rows.items()}
    targets = {process for wait in waits if not wait.is_collective for process in wait.targets}
    candidates = rows.keys() & targets
    return set(sorted(candidates, key=lambda process: (case.work.begin[rows[process]], process))[:1])


def _halted(case: Case, waits: list[_Wait]) -> set[int]:
    """Return the processes in `waits` that ended or are stopped, even in the middle of an operation."""
    processes = {process for wait in waits for process in (*wait.targets, *wait.rows)}
    ranks = (case.ranks.by_process.get(process) for process in processes)
    return {rank.process for rank in ranks if rank is not None and (rank.ended or rank.is_stopped)}


def _begin(case: Case, wait: _Wait) -> float:
    return float(case.work.begin[list(wait.rows.values())].min())


def _reach(first: _Wait, by_process: dict[int, list[_Wait]]) -> list[_Wait]:
    """Return the waits on which `first` depends, itself first; collectives precede messages."""
    reached, visited = [first], {id(first)}
    for wait in reached:  # grows meanwhile
        for process in sorted(wait.targets):
            for other in by_process.get(process, ()):
                if id(other) not in visited:
                    visited.add(id(other))
                    reached.append(other)
    return reached


def _collectives(case: Case) -> list[_Wait]:
    """Return the collectives that run for long, each with the ranks that did not begin it."""
    work = case.work
    rows = work.rows
    old = work.running & IS_COLLECTIVE[rows[:, Op.FUNCTION]] & (work.length_ns - work.begin >= MIN_AGE_NS)
    rows_by_key: dict[Key, dict[int, int]] = {}
    for row in np.flatnonzero(old):
        key = (int(rows[row, Op.COMMUNICATOR]), int(rows[row, Op.SEQ]))
        rows_by_key.setdefault(key, {})[int(rows[row, Op.PROCESS])] = int(row)
    progress = _progress(case) if rows_by_key else {}
    return [
        _Wait(
            in_it,
            float(work.begin[list(in_it.values())].max()),
            True,
            _missing(case, key, in_it, progress),
        )
        for key, in_it in sorted(rows_by_key.items())
    ]


def _messages(case: Case) -> list[_Wait]:
    """Return the waits of processes that only wait for messages, each with its peers.

    A peer whose newest record is too old is left out, because the peer may itself wait.
    """
    work, rows = case.work, case.work.rows
    is_message = IS_MESSAGE[rows[:, Op.FUNCTION]] & (rows[:, Op.PEER] >= 0)
    candidates = np.flatnonzero(work.running & is_message)
    if not len(candidates):
        return []
    idle_since = _idle_since(case)
    waits: dict[int, _Wait] = {}
    for row in candidates.tolist():
        process = int(rows[row, Op.PROCESS])
        since = max(idle_since.get(process, 0.0), float(work.begin[row]))
        group = case.ranks.communicators.get(int(rows[row, Op.COMMUNICATOR]))
        peer = group.processes.get(int(rows[row, Op.PEER])) if group is not None else None
        waited_ns = work.length_ns - since
        if peer is None or peer == process or waited_ns < MIN_AGE_NS or not _is_quiet(case, peer, idle_since):
            continue
        wait = waits.setdefault(process, _Wait({process: row}, since, False))
        if waited_ns >= REPORT_NS or _is_observed(case, peer, case.end_ns - NS_PER_S):
            wait.targets.append(peer)
    return [waits[process] for process in sorted(waits)]


def _idle_since(case: Case) -> dict[int, float]:
    """Return, by process, its last begin or end of an operation, ns after the interval's begin."""
    work, since = case.work, dict[int, float]()
    last = np.where(work.running, work.begin, work.end)
    for process, at in zip(work.rows[:, Op.PROCESS].tolist(), last.tolist(), strict=True):
        since[process] = max(since.get(process, at), at)
    return since


def _is_quiet(case: Case, process: int, idle_since: dict[int, float]) -> bool:
    """Return whether a process, by its records, began and ended nothing for `MIN_AGE_NS`."""
    rank = case.ranks.by_process.get(process)
    is_gone = rank is None or rank.ended
    return is_gone or case.work.length_ns - idle_since.get(process, 0.0) >= MIN_AGE_NS


def _progress(case: Case) -> dict[Key, int]:
    """Return, by (communicator, process), the greatest operation number that the process began."""
    rows = case.work.rows
    collectives, sums = rows[IS_COLLECTIVE[rows[:, Op.FUNCTION]]], case.columns.summaries
    sums = sums[IS_COLLECTIVE[sums[:, Sum.FUNCTION]]]
    newest: dict[Key, int] = {}
    parts = (
        (collectives[:, Op.COMMUNICATOR], collectives[:, Op.PROCESS], collectives[:, Op.SEQ]),
        (sums[:, Sum.COMMUNICATOR], sums[:, Sum.PROCESS], sums[:, Sum.LAST_SEQ]),
    )
    for columns in parts:
        for communicator, process, seq in zip(*(column.tolist() for column in columns), strict=True):
            key = (communicator, process)
            newest[key] = max(newest.get(key, -1), seq)
    return newest


def _missing(case: Case, key: Key, rows: dict[int, int], progress: dict[Key, int]) -> list[int]:
    """Return the processes of a communicator that did not begin the operation `key`."""
    communicator = case.ranks.communicators.get(key[0])
    members = communicator.processes.values() if communicator is not None else ()
    begin_ns = case.begin_ns + int(case.work.begin[list(rows.values())].min())
    return [
        process
        for process in members
        if process not in rows
        and progress.get((key[0], process), -1) < key[1]
        and _is_observed(case, process, begin_ns + REPORT_NS)
    ]


def _is_observed(case: Case, process: int, until_ns: int) -> bool:
    """Return whether a process's records reach `until_ns`, so that its operations until then are known.

    The answer is also True for a process that has ended or been silent for long: its absence is the finding.
    """
    rank = case.ranks.by_process.get(process)
    if rank is None or rank.ended:
        return True
    return rank.seen_ns >= until_ns or rank.seen_ns < case.end_ns - SILENT_NS


def _stuck(
    case: Case, wait: _Wait, roots: set[int], by_process: dict[int, list[_Wait]], *, is_circle: bool = False
) -> Stuck:
    at = list(wait.rows.values())
    row = case.work.rows[at[0]]
    stuck = Stuck(
        communicator=int(row[Op.COMMUNICATOR]),
        seq=int(row[Op.SEQ]),
        function=str(FUNCTIONS[int(row[Op.FUNCTION])]),
        since_ns=case.begin_ns + int(wait.since),
        began=_ranks(case, wait.rows),
        missing=_ranks(case, roots),
        absent=_absent(case, int(row[Op.COMMUNICATOR])) if wait.is_collective else [],
        hangs=False,
        stalls=False,
        usual_ns=_usual_ns(case, wait, at),
        is_circle=is_circle,
        is_collective=wait.is_collective,
        waiting={rank.number for rank in _ranks(case, by_process)},
    )
    _rate(case, stuck, case.work.length_ns - wait.since)
    return stuck


def _ranks(case: Case, processes: Iterable[int]) -> list[Rank]:
    ranks = [case.ranks.by_process[process] for process in processes if process in case.ranks.by_process]
    return sorted(ranks, key=lambda rank: rank.number)


def _absent(case: Case, communicator: int) -> list[int]:
    """Return the ranks of a communicator whose processes are unknown, sorted."""
    group = case.ranks.communicators.get(communicator)
    if group is None or group.ranks > 65_536:
        return []
    return sorted(set(range(group.ranks)) - group.processes.keys())


def _usual_ns(case: Case, wait: _Wait, rows: list[int]) -> float:
    """Return the usual time of waits of the same kind as `wait`, ns; 0 if unknown."""
    if not wait.is_collective:
        iteration_ns = case.expected_iteration_ns
        return 0.0 if iteration_ns is None else MESSAGE_TIMES * iteration_ns / case.rules.hang_times
    expected = case.expected_network[case.work.kind[rows]]
    return 0.0 if np.isnan(expected).all() else float(np.nanmax(expected))


def _rate(case: Case, stuck: Stuck, age_ns: float) -> None:
    """Set whether the operation, which has run for `age_ns`, stalls or hangs.

    In a pause of the program, ranks are outside of operations. So a hang needs evidence, or an age beyond all
    pauses. If all ranks began the operation, the program does not pause.
    """
    rules = case.rules
    unusual_ns = max(rules.hang_times * stuck.usual_ns, rules.hang_pauses * case.job.stalls.longest_ns)
    hang_s = rules.hang_s if _is_proven(case, stuck) else rules.pause_s
    stuck.hangs = age_ns >= max(hang_s * NS_PER_S, unusual_ns)
    stall_s = rules.stall_s if stuck.usual_ns else rules.hang_s / 2
    stuck.stalls = stuck.hangs or age_ns >= max(stall_s * NS_PER_S, unusual_ns)


def _is_proven(case: Case, stuck: Stuck) -> bool:
    """Return whether evidence excludes that the operation only waits for a pause of the program.

    Such evidence: all ranks are in the operation, collectives wait in a circle, or missing ranks are down.
    """
    if stuck.is_circle:
        return stuck.is_collective
    if not stuck.missing:
        return not stuck.absent and bool(stuck.usual_ns or case.expected_iteration_ns)
    return all(rank.is_stopped or _is_cut_off(case, rank) for rank in stuck.missing)


def _is_cut_off(case: Case, rank: Rank) -> bool:
    """Return whether the rank's host or all of its NICs are down."""
    down = {
        episode.record["subject"]
        for episode in case.network.episodes((rank.host, *rank.nics), case.begin_ns, case.end_ns)
        if episode.record["state"] == LinkState.DOWN
    }
    return rank.host in down or (bool(rank.nics) and down.issuperset(rank.nics))
