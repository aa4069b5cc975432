"""Finds the rank that stopped a job from log lines of PyTorch's watchdog, without dumps. Does no I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, culprits_of, ranks_text
from fabrictime.postmortem.observations import Observations, Timeout

_UNKNOWN: Final = -1
_ROOTED: Final = ("broadcast", "scatter")
"""Operations that a rank leaves once it has passed the data on: only the root, if it did not come, is
missed by all others."""
_MISSING: Final = (
    "dumps of the Flight Recorder: set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 on all ranks",
)


class _Stop(NamedTuple):
    """The last operations of a rank in a group, from a watchdog's line."""

    seq: int
    function: str
    elements: int
    enqueued: int
    place: int = _UNKNOWN


def timeouts(out: Observations) -> Iterator[Explanation]:
    """Yield explanations with the ranks that timed out and the ranks that did not arrive."""
    groups: dict[str, dict[int, _Stop]] = defaultdict(dict)
    for timeout in out.timeouts:
        groups[timeout.group][timeout.rank] = _merged(groups[timeout.group].get(timeout.rank), timeout)
    if len(groups) > 1 and "" in groups:
        _join_unnamed(groups)
    explanations = [_mismatch(group, stops, out) for group, stops in groups.items()]
    mismatches = list(filter(None, explanations))
    if mismatches:
        yield mismatches[0]
    elif groups:
        waiting = {rank for stops in groups.values() for rank in _stopped(stops)}
        group, stops = max(groups.items(), key=lambda item: (len(_stopped(item[1])), len(item[1])))
        alone = {
            rank
            for stops in groups.values()
            for rank, stop in _stopped(stops).items()
            if len(_stopped(stops)) == 1 and stop.place > 1
        }
        yield _hang(group, stops, waiting, alone, out)


def _stopped(stops: Mapping[int, _Stop]) -> dict[int, _Stop]:
    """Return the entries of `stops` for ranks that wait in an operation."""
    return {rank: stop for rank, stop in stops.items() if stop.seq != _UNKNOWN}


def _merged(stop: _Stop | None, timeout: Timeout) -> _Stop:
    seq, function, elements, enqueued, place = stop or _Stop(_UNKNOWN, "", _UNKNOWN, _UNKNOWN)
    is_first = seq == _UNKNOWN and timeout.seq != _UNKNOWN
    return _Stop(
        timeout.seq if is_first else seq,
        timeout.function if is_first or not function else function,
        timeout.elements if is_first or elements == _UNKNOWN else elements,
        max(enqueued, timeout.last_enqueued),
        max(place, timeout.place),
    )


def _join_unnamed(groups: dict[str, dict[int, _Stop]]) -> None:
    """Move the operation of a line without a group into the only named group of that rank."""
    for rank, stop in list(groups.pop("").items()):
        named = [name for name, stops in groups.items() if rank in stops]
        name = named[0] if named else min(groups)
        other = groups[name].get(rank)
        enqueued = max(stop.enqueued, other.enqueued if other is not None else _UNKNOWN)
        groups[name][rank] = (stop if stop.seq != _UNKNOWN or other is None else other)._replace(
            enqueued=enqueued
        )


def _mismatch(group: str, stops: Mapping[int, _Stop], out: Observations) -> Explanation | None:
    """Explain the ranks that called another operation than most ranks of a group; None if there are none."""
    stopped = _stopped(stops)
    if len(stopped) < 2:
        return None
    common, waiting = _common(stopped)
    different = _different(common, stopped)
    if not different:
        return None
    other = stopped[min(different)]
    text = (
        f"{ranks_text(different)} called {other.function} of {other.elements:,} elements as collective "
        f"{common.seq} of group {group}, {waiting} others {common.function} of {common.elements:,}"
    )
    if 2 * len(different) >= len(stopped):
        different = set(stopped)
    return Explanation("PROGRAM_MISMATCH", culprits_of(different, out), 0.85, text, (), _MISSING)


def _common(stopped: Mapping[int, _Stop]) -> tuple[_Stop, int]:
    """Return the operation in which most ranks wait, and their number."""
    operations = Counter(stop._replace(enqueued=_UNKNOWN, place=_UNKNOWN) for stop in stopped.values())
    return operations.most_common(1)[0]


def _hang(
    group: str, stops: Mapping[int, _Stop], waiting: set[int], alone: set[int], out: Observations
) -> Explanation:
    """Explain the stop of a group.

    `waiting` are the ranks that wait in any group, `alone` the ranks that wait in a larger group in which no
    other rank waits.
    """
    stopped = _stopped(stops)
    if not stopped:
        text = f"the watchdog of {ranks_text(stops)} ended the job"
        return Explanation("HANG", (), 0.4, text, (), _MISSING)
    common, number = _common(stopped)
    name = f"{common.function or 'the collective'} {common.seq}{f' of group {group}' if group else ''}"
    behind = _behind(common.seq, stops)
    absent = behind & alone or behind - waiting or _absent(waiting, out) or alone - stopped.keys() or behind
    silent = absent - behind - {failure.rank for failure in out.failures}
    if len(silent) > 1 and common.function in _ROOTED:
        text = f"{number} ranks timed out in {name}; {ranks_text(absent)} may have passed it before"
        return Explanation("HANG", (), 0.5, text, (), _MISSING)
    if absent:
        reason = "did not enter it" if absent <= behind else "did not time out, so did not enter it"
        text = f"{number} ranks timed out in {name}; {ranks_text(absent)} {reason}"
        confidence = 0.85 if absent <= behind else 0.65
        return Explanation("HANG", culprits_of(absent, out), confidence, text, (), _MISSING)
    text = f"all {number} ranks with a log timed out in {name}"
    return Explanation("HANG", (), 0.5, text, (), _MISSING)


def _different(common: _Stop, stopped: Mapping[int, _Stop]) -> set[int]:
    """Return the ranks that called another operation than `common` at the same number."""
    return {rank for rank, stop in stopped.items() if stop.seq == common.seq and stop[:3] != common[:3]}


def _behind(seq: int, stops: Mapping[int, _Stop]) -> set[int]:
    """Return the ranks whose last operation is earlier than number `seq`."""
    last = {rank: max(stop.enqueued, stop.seq) for rank, stop in stops.items()}
    behind = {rank for rank, number in last.items() if _UNKNOWN < number < seq}
    return behind or {rank for rank, stop in stops.items() if _UNKNOWN < stop.seq < seq}


def _absent(waiting: Collection[int], out: Observations) -> set[int]:
    """Return the ranks of the job that do not wait anywhere, if they are the minority."""
    expected = max(out.expected, max(waiting) + 1)
    absent = set(range(min(expected, 1_000_000))) - set(waiting)
    return absent if len(absent) < len(waiting) else set()
