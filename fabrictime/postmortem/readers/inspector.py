"""Reads the JSON of NCCL Inspector, versions 1 to 5: one object per operation. Does no I/O.

Source of the format: NVIDIA/nccl, plugins/profiler/inspector/inspector_json.cc and its README.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fabrictime.postmortem.observations import MAX_RANK, Group, Observations, Span
from fabrictime.postmortem.readers.json_stream import Damaged, JsonText
from fabrictime.postmortem.readers.values import clean_function, count, real, text, whole

MAX_SPANS: Final = 500_000
"""Largest number of operations that are read from one file."""


class _Row(NamedTuple):
    """An operation as one process states it.

    `member` is the process's rank within the communicator, `stamp_ns` the time at which the row was written.
    """

    host: str
    pid: str
    member: int
    ranks: int
    group: Group
    coll: Mapping[str, Any]
    message: Mapping[str, Any]
    stamp_ns: int


def read_inspector(name: str, chunks: Iterator[str], out: Observations) -> None:
    """Add the operations in a file; note a truncated last object. Raises ValueError if no object is whole."""
    rows: list[_Row] = []
    try:
        for value in JsonText(chunks).values():
            for item in value if isinstance(value, list) else [value]:
                row = _row(item) if isinstance(item, dict) else None
                if row is not None:
                    rows.append(row)
            if len(rows) >= MAX_SPANS:
                out.notes.append(f"{name}: more than {MAX_SPANS:,} operations, the rest is not read")
                break
    except Damaged:
        if rows:
            out.notes.append(f"{name}: its last operation is cut")
    if not rows:
        raise ValueError("Inspector: expected objects with 'header' and 'coll_perf' or 'p2p_perf'")
    _place(rows, out)
    for row in rows:
        _take(row, out)


def _row(item: Mapping[str, Any]) -> _Row | None:
    header, metadata = _part(item, "header"), _part(item, "metadata")
    member = whole(header.get("rank"), MAX_RANK)
    if member is None:
        return None
    return _Row(
        text(metadata.get("hostname")),
        text(metadata.get("pid")),
        member,
        count(header.get("n_ranks", header.get("nranks")), MAX_RANK),
        Group(text(header.get("id")), text(header.get("comm_name"))),
        _part(item, "coll_perf"),
        _part(item, "p2p_perf"),
        count(metadata.get("dump_timestamp_us"), 10**17) * 1000,
    )


def _place(rows: Iterable[_Row], out: Observations) -> None:
    """Record the job-wide rank of each process: its rank in the largest communicator to which it belonged."""
    largest: dict[tuple[str, str], _Row] = {}
    for row in rows:
        former = largest.get((row.host, row.pid))
        if former is None or row.ranks > former.ranks:
            largest[row.host, row.pid] = row
    for process, row in largest.items():
        out.expect(row.ranks)
        if row.ranks >= out.expected or process not in out.processes:
            out.processes[process] = row.member
        out.place(out.processes[process], row.host)


def _take(row: _Row, out: Observations) -> None:
    rank = out.processes[row.host, row.pid]
    out.groups[row.group] = None
    if row.coll:
        out.spans.append(_span(row, row.coll, "coll", rank))
    if row.message:
        out.spans.append(_span(row, row.message, "p2p", rank))


def _part(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _pair(row: _Row) -> tuple[int, ...]:
    """Return (sender, receiver) of a message; empty for a collective."""
    peer = whole(row.message.get("p2p_peer"), MAX_RANK)
    if peer is None:
        return ()
    is_send = clean_function(text(row.message.get("p2p"))) == "send"
    return (row.member, peer) if is_send else (peer, row.member)


def _span(row: _Row, perf: Mapping[str, Any], kind: str, rank: int) -> Span:
    times = _part(perf, "event_trace_ts")
    size = count(perf.get(f"{kind}_msg_size_bytes"), 10**15)
    duration_us = real(perf.get(f"{kind}_exec_time_us"), 1e12)
    rate_gbs = real(perf.get(f"{kind}_algobw_gbs"), 1e9) or real(perf.get(f"{kind}_busbw_gbs"), 1e9)
    if not duration_us and rate_gbs:
        duration_us = size / rate_gbs / 1000
    return Span(
        "inspector",
        rank,
        row.group,
        row.ranks,
        count(perf.get(f"{kind}_sn")),
        clean_function(text(perf.get(kind))),
        size,
        count(times.get(f"{kind}_start_ts"), 10**17) * 1000,
        round(duration_us * 1000),
        row.stamp_ns,
        () if kind == "coll" else _pair(row),
    )
