"""Finds the rank that stopped a job from the lines of PyTorch's watchdog, without dumps. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, culprits_of, ranks_text
from fabrictime.postmortem.observations import Observations, Timeout

_UNKNOWN: Final = -1
_MISSING: Final = (
    "dumps of the Flight Recorder: set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 on all ranks",
)


class _Stop(NamedTuple):
    """The last state of a rank in a group."""

    seq: int
    function: str
    elements: int
    enqueued: int


def timeouts(out: Observations) -> Iterator[Explanation]:
    """Yield which ranks timed out, and which did not come."""
    groups: dict[str, dict[int, _Stop]] = defaultdict(dict)
    for timeout in out.timeouts:
        groups[timeout.group][timeout.rank] = _merged(groups[timeout.group].get(timeout.rank), timeout)
    if len(groups) > 1 and "" in groups:
        _join_unnamed(groups)
    if groups:
        group, stops = max(groups.items(), key=lambda item: len(item[1]))
        yield _explanation(group, stops, out)


def _merged(stop: _Stop | None, timeout: Timeout) -> _Stop:
    seq, function, elements, enqueued = stop or _Stop(_UNKNOWN, "", _UNKNOWN, _UNKNOWN)
    is_first = seq == _UNKNOWN and timeout.seq != _UNKNOWN
    return _Stop(
        timeout.seq if is_first else seq,
        timeout.function if is_first or not function else function,
        timeout.elements if is_first or elements == _UNKNOWN else elements,
        max(enqueued, timeout.last_enqueued),
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


def _explanation(group: str, stops: Mapping[int, _Stop], out: Observations) -> Explanation:
    place = f" of group {group}" if group else ""
    stopped = {rank: stop for rank, stop in stops.items() if stop.seq != _UNKNOWN}
    if not stopped:
        text = f"the watchdog of {ranks_text(stops)} ended the job"
        return Explanation("HANG", (), 0.4, text, (), _MISSING)
    operations = Counter((stop.seq, stop.function, stop.elements) for stop in stopped.values())
    common, waiting = operations.most_common(1)[0]
    different = _different(common, stopped)
    if different:
        other = stopped[min(different)]
        text = (
            f"{ranks_text(different)} called {other.function} of {other.elements:,} elements as collective "
            f"{common[0]}{place}, {waiting} others {common[1]} of {common[2]:,}"
        )
        return Explanation("PROGRAM_MISMATCH", culprits_of(different, out), 0.85, text, (), _MISSING)
    name = f"{common[1] or 'the collective'} {common[0]}{place}"
    behind = _behind(common[0], stops)
    absent = behind or _absent(stopped, out)
    if absent:
        reason = "did not enter it" if behind else "did not time out, so it did not enter it"
        text = f"{waiting} ranks timed out in {name}; {ranks_text(absent)} {reason}"
        return Explanation("HANG", culprits_of(absent, out), 0.85 if behind else 0.65, text, (), _MISSING)
    text = f"all {waiting} ranks with a log timed out in {name}"
    return Explanation("HANG", (), 0.5, text, (), _MISSING)


def _different(common: tuple[int, str, int], stopped: Mapping[int, _Stop]) -> set[int]:
    """Return the ranks that called something else at the number of the others."""
    return {rank for rank, stop in stopped.items() if stop.seq == common[0] and stop[1:3] != common[1:]}


def _behind(seq: int, stops: Mapping[int, _Stop]) -> set[int]:
    """Return the ranks whose last operation is an earlier one."""
    last = {rank: max(stop.enqueued, stop.seq) for rank, stop in stops.items()}
    behind = {rank for rank, number in last.items() if _UNKNOWN < number < seq}
    return behind or {rank for rank, stop in stops.items() if _UNKNOWN < stop.seq < seq}


def _absent(stopped: Mapping[int, _Stop], out: Observations) -> set[int]:
    """Return the ranks of the job that did not time out, if they are the minority."""
    expected = max(out.expected, max(stopped) + 1)
    absent = set(range(min(expected, 1_000_000))) - stopped.keys()
    return absent if len(absent) < len(stopped) else set()
