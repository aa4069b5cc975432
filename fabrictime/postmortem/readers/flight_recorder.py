"""Reads dumps of PyTorch's Flight Recorder and of torchcomms, for all versions since 1.5. Does no I/O.

Sources of the format: pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, and
meta-pytorch/torchcomms, comms/torchcomms/hooks/FlightRecorder.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fabrictime.postmortem.observations import MAX_RANK, Call, Group, Message, Observations, Status
from fabrictime.postmortem.readers.values import clean_function, count, members, real, text, whole
from producers.collectives.flight_recorder import load_dump

MAX_BYTES: Final = 128 << 20
"""Maximum size of a dump, also after its decompression."""
MAX_ENTRIES: Final = 20_000
"""Number of a dump's entries that are read, the newest ones. PyTorch keeps 2,000 unless told otherwise."""
_ELEMENTS_MAX: Final = 10**15
_UNKNOWN: Final = -1
_P2P: Final = re.compile(r"(send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")


def read_flight_recorder(rank: int, data: bytes, out: Observations) -> None:
    """Add the content of a rank's dump to `out`. Raises ValueError if the data is no dump."""
    content = load_dump(data, MAX_BYTES)
    entries = content.get("entries", [] if "pg_config" in content or "pg_status" in content else None)
    if not isinstance(entries, list | tuple):
        raise ValueError("dump: expected a list 'entries'")
    if len(entries) > MAX_ENTRIES:
        out.notes.append(
            f"dump of rank {rank}: {len(entries):,} entries, the newest {MAX_ENTRIES:,} are read"
        )
    groups = _groups(content.get("pg_config"), out)
    out.place(rank, "")
    if rank in out.calls:
        out.notes.append(f"rank {rank} has several dumps, the first is read")
        return
    calls = out.calls[rank] = []
    groups_by_id = dict(zip(map(str, range(len(groups))), groups.values(), strict=True))
    for order, entry in enumerate(entries[-MAX_ENTRIES:]):
        if isinstance(entry, dict):
            group = _group(entry, groups)
            groups_by_id[text(entry.get("pg_id"))] = group
            _take(entry, order, rank, group, calls, out)
    out.statuses[rank] = dict(_statuses(content.get("pg_status"), groups_by_id))


def _statuses(table: Any, groups_by_id: Mapping[str, Group]) -> Iterator[tuple[Group, Status]]:
    """Yield (group, status) from a dump's `pg_status`, whose keys are the process's own numbers of groups."""
    for number, entry in list(table.items())[:MAX_ENTRIES] if isinstance(table, dict) else ():
        group = groups_by_id.get(text(number))
        if group is not None and isinstance(entry, dict):
            stated = (whole(entry.get(f"last_{state}_collective")) for state in Status._fields)
            yield group, Status(*(_UNKNOWN if seq is None else seq for seq in stated))


def _groups(config: Any, out: Observations) -> dict[str, Group]:
    """Return the groups that a dump lists, by name."""
    groups: dict[str, Group] = {}
    if not isinstance(config, dict):
        return groups
    for name, entry in list(config.items())[:MAX_ENTRIES]:
        if isinstance(entry, dict):
            ranks = members(entry.get("ranks"), MAX_RANK)
            group = Group(text(name), _description(entry.get("desc")), ranks)
            groups[group.name] = group
            out.groups[group] = None
            out.expect(ranks[-1] + 1 if ranks else 0)
    return groups


def _description(value: Any) -> str:
    plain = text(value)
    return "" if plain == "undefined" else plain


def _group(entry: Mapping[Any, Any], groups: Mapping[str, Group]) -> Group:
    """Return the group in which a dump's entry ran."""
    stated = entry.get("process_group", entry.get("pg_name", entry.get("pg_id", "0")))
    parts = list(stated[:2]) if isinstance(stated, list | tuple) else [stated]
    name, description = (*map(text, parts), "", "")[:2]
    return groups.get(name) or Group(name or "0", _description(description))


def _take(
    entry: Mapping[Any, Any], order: int, rank: int, group: Group, calls: list[Call], out: Observations
) -> None:
    """Add a dump's entry to the rank's calls or to the messages; entries without a number are left out."""
    out.groups[group] = None
    profiling_name = text(entry.get("profiling_name"))
    match = _P2P.search(profiling_name)
    if match is not None or entry.get("is_p2p") is True:
        if match is not None:
            out.messages.append(_message(match, entry, order, rank, group))
        return
    seq = whole(entry.get("collective_seq_id", entry.get("seq_id")))
    if seq is not None:
        calls.append(_call(entry, order, rank, group, seq, profiling_name))


def _message(match: re.Match[str], entry: Mapping[Any, Any], order: int, rank: int, group: Group) -> Message:
    first, second = int(match[2]), int(match[3])
    is_send = match[1] == "send"
    return Message(
        rank,
        group,
        count(entry.get("p2p_seq_id")),
        is_send,
        first if is_send else second,
        second if is_send else first,
        text(entry.get("state")) == "completed",
        order,
        *_times(entry),
    )


def _times(entry: Mapping[Any, Any]) -> tuple[int, int, int, int]:
    """Return (time created, time started, time ended, duration) of a dump's entry, ns; 0 if unknown."""
    return (
        count(entry.get("time_created_ns")),
        count(entry.get("time_discovered_started_ns")),
        count(entry.get("time_discovered_completed_ns")),
        round(real(entry.get("duration_ms"), 1e11) * 1e6),
    )


def _call(
    entry: Mapping[Any, Any], order: int, rank: int, group: Group, seq: int, profiling_name: str
) -> Call:
    ended_ns = count(entry.get("time_discovered_completed_ns"))
    state = text(entry.get("state")) or ("completed" if ended_ns else "scheduled")
    dtypes = entry.get("input_dtypes")
    dtype = dtypes[0] if isinstance(dtypes, list | tuple) and dtypes else dtypes
    return Call(
        rank,
        group,
        seq,
        clean_function(profiling_name.partition(":")[2] or profiling_name),
        _elements(entry.get("input_sizes")),
        _elements(entry.get("output_sizes")),
        text(dtype),
        state,
        order,
        *_times(entry),
    )


def _elements(shapes: Any) -> int:
    """Return the number of elements of all tensors; -1 if `shapes` does not state it."""
    if not isinstance(shapes, list | tuple):
        return -1
    if shapes and not isinstance(shapes[0], list | tuple):
        shapes = [shapes]
    total = 0
    for shape in shapes[:10_000]:
        elements = 1
        for size in shape[:16] if isinstance(shape, list | tuple) else ():
            elements = min(elements * count(size, _ELEMENTS_MAX), _ELEMENTS_MAX)
        total += elements
    return min(total, _ELEMENTS_MAX)
