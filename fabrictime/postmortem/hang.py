"""Finds the rank that stopped a job, from collectives that ranks lack in Flight Recorder dumps. Does no I/O.

A rank waits in a collective that it entered and that did not complete. It waits for the members of the group
whose last collective is an earlier one. A rank that others wait for and that itself waits for none is the
root. If all ranks wait in a circle, the root is the rank that blocks the largest number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, clock_text, culprits_of, ranks_text
from fabrictime.postmortem.groups import members_of
from fabrictime.postmortem.observations import MAX_RANK, Call, Group, Observations, Status

_MINORITY: Final = 0.25
"""Largest share of a group that can wait for all others because it made a call too many."""


class _Place(NamedTuple):
    """A collective: its group and its sequence number."""

    group: Group
    seq: int


@dataclass(slots=True)
class _Wait:
    """The ranks that wait in a collective, and the members for which they wait."""

    call: Call
    waiting: dict[int, Call] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    """Members with a dump that did not enter."""
    absent: set[int] = field(default_factory=set)
    """Members without a dump."""
    done: set[int] = field(default_factory=set)
    """Members that completed it."""


def stalls(out: Observations) -> Iterator[Explanation]:
    """Yield explanations of a job's hang according to its dumps; none if no rank waits."""
    waits = {**_waits(out), **_message_waits(out)}
    if not waits:
        return
    roots = _roots(waits)
    absent: set[int] = set().union(*(wait.absent for wait in waits.values()))
    if roots:
        yield from _not_entered(roots, waits, out)
    elif absent:
        yield _absent(waits, out)
    else:
        yield _stuck_inside([wait for wait in waits.values() if not wait.behind], out)


def _waits(out: Observations) -> dict[_Place, _Wait]:
    """Return, by collective, the ranks that wait in it and the members for which they wait."""
    last: dict[Group, dict[int, int]] = defaultdict(dict)
    done: dict[_Place, set[int]] = defaultdict(set)
    pending: dict[_Place, dict[int, Call]] = defaultdict(dict)
    for rank, calls in out.calls.items():
        for call in calls:
            last[call.group][rank] = max(call.seq, last[call.group].get(rank, -1))
            place = _Place(call.group, call.seq)
            if call.is_complete:
                done[place].add(rank)
            else:
                pending[place].setdefault(rank, call)
    waits: dict[_Place, _Wait] = {}
    for rank, statuses in out.statuses.items():
        for group, status in statuses.items():
            last[group][rank] = max(status.enqueued, last[group].get(rank, -1))
    for place, calls_by_rank in pending.items():
        members = members_of(place.group, last[place.group], out)
        wait = _Wait(min(calls_by_rank.values(), key=lambda call: call.created_ns), calls_by_rank)
        wait.done = (done[place] | _completed(place, out)) - calls_by_rank.keys()
        for rank in members - calls_by_rank.keys() - wait.done:
            if rank not in out.calls:
                wait.absent.add(rank)
            elif last[place.group].get(rank, -1) < place.seq:
                wait.behind.add(rank)
        waits[place] = wait
    return waits


def _completed(place: _Place, out: Observations) -> set[int]:
    """Return the ranks that completed a collective, according to their dumps' last completed numbers."""
    nothing = Status(-1, -1, -1)
    return {
        rank
        for rank, statuses in out.statuses.items()
        if statuses.get(place.group, nothing).completed >= place.seq
    }


def _message_waits(out: Observations) -> dict[_Place, _Wait]:
    """Return, by send or receive, the ranks that wait in it and the peers for which they wait.

    The numbers of messages differ between ranks, so a peer has entered if it waits in the same message, or in
    a message to this rank.
    """
    pending: dict[_Place, _Wait] = {}
    for message in out.messages:
        places = message.group.ranks
        if message.is_complete or max(message.source, message.target) >= (len(places) or MAX_RANK):
            continue
        source, target = ((places[place] if places else place) for place in (message.source, message.target))
        place = _Place(message.group._replace(ranks=(source, target)), -1)
        call = Call(
            message.rank,
            message.group,
            message.seq,
            f"the message from rank {source} to rank {target}, number",
            *(-1, -1, "", "scheduled", 0, message.created_ns, 0, 0, 0),
        )
        wait = pending.setdefault(place, _Wait(call))
        wait.waiting.setdefault(message.rank, call)
    for place, wait in pending.items():
        peers = set(place.group.ranks) - wait.waiting.keys()
        wait.absent = {rank for rank in peers if rank not in out.calls}
        wait.behind = peers - wait.absent
    return pending


def _roots(waits: Mapping[_Place, _Wait]) -> set[int]:
    """Return the ranks with a dump that stopped the job: others wait for them, and they wait for none.

    If there are none, return the ranks in a circle of waits that block the largest number of ranks. The
    result is empty if a wait is for data or for a member without a dump. A few ranks that wait in a
    collective which no other member entered have left the common sequence: if others wait for them, they are
    the ranks that stopped.
    """
    reach: dict[int, int] = defaultdict(int)
    waits_for: dict[int, set[int]] = defaultdict(set)
    for wait in waits.values():
        for rank in wait.behind:
            reach[rank] += len(wait.waiting)
        for rank in wait.waiting if not _is_one_too_many(wait) else ():
            waits_for[rank] |= wait.behind | wait.absent
    idle = reach.keys() - waits_for.keys()
    if idle or not reach:
        return set(idle)
    for_data = [rank for rank in reach if not waits_for[rank]]
    if for_data or any(wait.absent for wait in waits.values()):
        return set()
    largest = max(reach.values())
    return {rank for rank, number in reach.items() if number == largest}


def _is_one_too_many(wait: _Wait) -> bool:
    """Return whether a few ranks wait in a collective that many other members, with dumps, did not enter."""
    members = len(wait.waiting) + len(wait.behind) + len(wait.absent) + len(wait.done)
    return len(wait.waiting) <= _MINORITY * members and len(wait.behind) > len(wait.waiting)


def _not_entered(roots: set[int], waits: Mapping[_Place, _Wait], out: Observations) -> Iterator[Explanation]:
    wait = _main_wait([wait for wait in waits.values() if wait.behind & roots])
    culprits = wait.behind & roots
    if _is_one_too_many(wait) and len(culprits) > len(wait.waiting):
        yield _one_too_many(wait, out)
        return
    total = set().union(*(other.waiting.keys() for other in waits.values()))
    since = clock_text(min(call.created_ns for call in wait.waiting.values()))
    text = (
        f"{ranks_text(culprits)} did not enter {_name(wait.call)}, in which {ranks_text(wait.waiting)}"
        f" wait{f' since {since}' if since else ''}"
    )
    evidence = [_last_call(rank, wait.call.group, out) for rank in sorted(culprits)[:4]]
    if len(total) > len(wait.waiting):
        evidence.append(f"{len(total)} ranks wait in {len(waits)} collectives, directly or behind them")
    confidence = 0.92 if len(culprits) <= len(wait.waiting) else 0.7
    missing = [f"the stacks of {ranks_text(culprits)} (py-spy dump) would say why it did not come"]
    if wait.absent:
        confidence -= 0.15
        missing.append(_no_dump(wait.absent))
    yield Explanation(
        "HANG", culprits_of(culprits, out), confidence, text, tuple(filter(None, evidence)), tuple(missing)
    )


def _main_wait(waits: Sequence[_Wait]) -> _Wait:
    """Return the wait with the largest number of ranks; among equals, the earliest."""
    return max(waits, key=lambda wait: (len(wait.waiting), -wait.call.created_ns))


def _one_too_many(wait: _Wait, out: Observations) -> Explanation:
    text = (
        f"{ranks_text(wait.waiting)} entered {_name(wait.call)}, which no other of the group entered: "
        "a call too many, or the others are late"
    )
    return Explanation("PROGRAM_MISMATCH", culprits_of(wait.waiting, out), 0.6, text)


def _absent(waits: Mapping[_Place, _Wait], out: Observations) -> Explanation:
    wait = _main_wait([wait for wait in waits.values() if wait.absent])
    since = clock_text(wait.call.created_ns)
    text = (
        f"{ranks_text(wait.absent)} left no dump; all others entered {_name(wait.call)} and wait"
        f"{f' since {since}' if since else ''}"
    )
    share = len(wait.absent) / max(1, len(wait.waiting) + len(wait.absent))
    confidence = 0.7 if share <= 0.5 else 0.4
    return Explanation("HANG", culprits_of(wait.absent, out), confidence, text, (), (_no_dump(wait.absent),))


def _no_dump(ranks: set[int]) -> str:
    return (
        f"{ranks_text(ranks)} left no dump: set TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
        f"TORCH_NCCL_TRACE_BUFFER_SIZE on all"
        " ranks, and see the end of its log"
    )


def _stuck_inside(waits: Sequence[_Wait], out: Observations) -> Explanation:
    """Return the explanation for a collective that all members entered and that did not complete."""
    wait = min(waits, key=lambda wait: (-len(wait.waiting), wait.call.order))
    since = clock_text(wait.call.created_ns)
    late = _not_started(wait, out)
    if late:
        text = (
            f"{ranks_text(late)} called {_name(wait.call)}, but its GPU has not started it; the others run it"
        )
        return Explanation("HANG", culprits_of(late, out), 0.65, text)
    if wait.done and len(wait.waiting) < len(wait.done):
        text = (
            f"{ranks_text(wait.waiting)} did not leave {_name(wait.call)}, which {len(wait.done)} "
            f"ranks completed"
        )
        return Explanation("HANG", culprits_of(wait.waiting, out), 0.6, text)
    text = f"all ranks entered {_name(wait.call)} and none left it{f', since {since}' if since else ''}"
    missing = (
        "logs of NCCL_DEBUG=INFO of all ranks would say which NICs and hosts the data crossed",
        "the state of links, NICs and GPUs at that time would say which of them failed",
    )
    return Explanation("HANG", (), 0.55, text, (), missing)


def _not_started(wait: _Wait, out: Observations) -> set[int]:
    """Return the minority of ranks whose GPU did not start a collective, if start times are recorded."""
    scheduled = {
        rank for rank, call in wait.waiting.items() if call.state == "scheduled" and not call.started_ns
    }
    started = wait.waiting.keys() - scheduled
    if not scheduled or len(scheduled) >= len(started):
        return set()
    return {
        rank
        for rank in scheduled
        if any(call.started_ns for call in out.calls[rank]) and not _has_started(rank, wait.call, out)
    }


def _has_started(rank: int, call: Call, out: Observations) -> bool:
    """Return whether a group's status in a rank's dump shows that the rank started a collective."""
    status = out.statuses.get(rank, {}).get(call.group)
    return status is not None and status.started >= call.seq


def _name(call: Call) -> str:
    return f"{call.function or 'the collective'} {call.seq} of {call.group.text()}"


def _last_call(rank: int, group: Group, out: Observations) -> str:
    calls = [call for call in out.calls.get(rank, ()) if call.group == group]
    if not calls:
        return f"rank {rank} recorded no collective of {group.text()}"
    last = max(calls, key=lambda call: call.seq)
    ended = clock_text(last.ended_ns)
    state = f"completed{f' at {ended}' if ended else ''}" if last.is_complete else last.state
    return f"the last collective of rank {rank} in it is {last.function} {last.seq}, {state}"
