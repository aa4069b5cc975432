"""Operations that do not end, and the ranks for which the others wait.

A rank that did not begin an operation may itself wait in another one. The search follows these waits until it
finds a rank outside of operations, an operation that all ranks began, or a cycle.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streams.diagnosis.case import Case, Stuck
from streams.diagnosis.job.columns import COLLECTIVES, FUNCTIONS, Op, Sum
from streams.runtime.units import NS_PER_S

MIN_AGE_NS: Final = NS_PER_S // 2
"""Age of a running operation from which on a process that ended counts as missing from it."""
REPORT_NS: Final = 7 * NS_PER_S // 2
"""Age from which on a running operation is in some record: reporters publish it after 2 s."""
SILENT_NS: Final = 4 * NS_PER_S
"""Time without a record after which a process is silent."""
Key = tuple[int, int]
"""Communicator and sequence number of a collective."""


def find_stuck(case: Case) -> Stuck | None:
    """Return the operation at the root of all waits at the interval's end; None if none runs for long."""
    groups = _running(case)
    if not groups:
        return None
    progress = _progress(case)
    waiting_in = {process: key for key, rows in groups.items() for process in rows}
    key = min(
        groups, key=lambda candidate: (min(case.work.begin[list(groups[candidate].values())]), candidate)
    )
    visited: set[Key] = set()
    circle = False
    while key not in visited:
        visited.add(key)
        followed = sorted(
            waiting_in[process]
            for process in _missing(case, key, groups[key], progress)
            if waiting_in.get(process, key) != key
        )
        if not followed:
            break
        key = followed[0]
        circle = key in visited
    return _stuck(case, key, groups, progress, circle=circle)


def _running(case: Case) -> dict[Key, dict[int, int]]:
    """Return the row of each process in collectives that run for long, by (communicator, number)."""
    work = case.work
    rows = work.rows
    is_collective = np.isin(rows[:, Op.FUNCTION], list(COLLECTIVES))
    old = work.running & is_collective & (work.length_ns - work.begin >= MIN_AGE_NS)
    rows_by_key: dict[Key, dict[int, int]] = {}
    for row in np.flatnonzero(old):
        key = (int(rows[row, Op.COMMUNICATOR]), int(rows[row, Op.SEQ]))
        rows_by_key.setdefault(key, {})[int(rows[row, Op.PROCESS])] = int(row)
    return rows_by_key


def _progress(case: Case) -> dict[Key, int]:
    """Return the greatest number that each process began, by (communicator, process)."""
    rows = case.work.rows
    collectives = rows[np.isin(rows[:, Op.FUNCTION], list(COLLECTIVES))]
    sums = case.columns.summaries
    sums = sums[np.isin(sums[:, Sum.FUNCTION], list(COLLECTIVES))]
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
    """Return the processes of a communicator that did not begin an operation."""
    communicator = case.ranks.communicators.get(key[0])
    members = communicator.processes.values() if communicator is not None else ()
    begin_ns = case.begin_ns + int(case.work.begin[list(rows.values())].min())
    return [
        process
        for process in members
        if process not in rows
        and progress.get((key[0], process), -1) < key[1]
        and _is_observed(case, process, begin_ns)
    ]


def _is_observed(case: Case, process: int, begin_ns: int) -> bool:
    """Return whether a process would have reported an operation that it began at the same time as the others.

    The answer is also true for a process that has long been silent: its absence is the finding.
    """
    rank = case.ranks.by_process.get(process)
    if rank is None or rank.ended:
        return True
    return rank.seen_ns >= begin_ns + REPORT_NS or rank.seen_ns < case.end_ns - SILENT_NS


def _stuck(
    case: Case, key: Key, groups: dict[Key, dict[int, int]], progress: dict[Key, int], *, circle: bool
) -> Stuck:
    work, rows = case.work, groups[key]
    at = list(rows.values())
    communicator = case.ranks.communicators.get(key[0])
    began = [case.ranks.by_process[process] for process in rows]
    missing = [
        case.ranks.by_process[process]
        for process in _missing(case, key, rows, progress)
        if process in case.ranks.by_process
    ]
    total = communicator.ranks if communicator is not None else 0
    absent = (
        []
        if communicator is None or total > 65_536
        else sorted(set(range(total)) - communicator.processes.keys())
    )
    age_ns = work.length_ns - float(work.begin[at].max())
    typical = float(np.nanmax(case.expected_network[work.kind[at]])) if _has_baseline(case, at) else 0.0
    long_ns = case.rules.hang_times * typical
    habit_ns = case.rules.hang_pauses * case.job.stalls.longest_ns
    hangs = age_ns >= max(case.rules.hang_s * NS_PER_S, habit_ns, long_ns)
    short_ns = max(case.rules.stall_s * NS_PER_S, habit_ns, long_ns)
    stalls = hangs or (typical > 0 and age_ns >= short_ns)
    return Stuck(
        key[0],
        key[1],
        str(FUNCTIONS[int(work.rows[at[0], Op.FUNCTION])]),
        case.begin_ns + int(work.begin[at].max()),
        sorted(began, key=lambda rank: rank.number),
        sorted(missing, key=lambda rank: rank.number),
        absent,
        hangs,
        stalls,
        typical,
        circle,
        {case.ranks.by_process[process].number for group in groups.values() for process in group},
    )


def _has_baseline(case: Case, rows: list[int]) -> bool:
    return not bool(np.isnan(case.expected_network[case.work.kind[rows]]).all())
