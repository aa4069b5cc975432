"""Reads dumps of PyTorch's Flight Recorder, which contain the last operations of a rank. Pure.

A dump is JSON, or a pickle of plain data, which is read without `pickle`. Its times are those of the host's
system clock. `entries` holds the operations; an entry's group is (name, description).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from producers.collectives.plain_pickle import NotPlain, load_plain
from schemas.records import (
    CollectiveFunction,
    CollectiveOperation,
    Communicator,
    KeptReason,
    RankCondition,
    RankState,
)

MAX_BYTES: Final = 16 << 20
"""Maximum size of a dump that is read."""
MAX_OPERATIONS: Final = 512
"""Maximum number of a dump's operations that are published, the newest ones."""

_AFTER_RANK: Final = re.compile(r"(?<![A-Za-z])(?<!local[_-])rank[_=.-]?(\d{1,8})(?!\d)", re.IGNORECASE)
_AT_END: Final = re.compile(
    r"[!-~]{0,200}?(?<!\d)(\d{1,8})(?:\.(?:json|pkl|pickle|bin|trace|txt))?(?:\.gz)?", re.IGNORECASE
)
_RANK_MAX: Final = 16_777_215
_SEQ_MAX: Final = 2**62
_NS_MAX: Final = 4_611_686_018_427_387_904
_BYTES_MAX: Final = 10**15
_TEXT_MAX: Final = 200
_F = CollectiveFunction
_FUNCTIONS: Final = (
    ("all_reduce", _F.ALL_REDUCE),
    ("allreduce", _F.ALL_REDUCE),
    ("all_gather", _F.ALL_GATHER),
    ("allgather", _F.ALL_GATHER),
    ("reduce_scatter", _F.REDUCE_SCATTER),
    ("all_to_all", _F.ALL_TO_ALL),
    ("alltoall", _F.ALL_TO_ALL),
    ("broadcast", _F.BROADCAST),
    ("barrier", _F.BARRIER),
    ("gather", _F.GATHER),
    ("scatter", _F.SCATTER),
    ("reduce", _F.REDUCE),
    ("send", _F.SEND),
    ("recv", _F.RECEIVE),
)
"""Function by a part of a profiling name such as nccl:all_reduce. The first entry that matches applies."""
ITEM_BYTES: Final = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}
"""Bytes of an element by the name of its type in PyTorch."""


class Dump(NamedTuple):
    """The content of a dump: communicators, their operations and the state of this rank in each."""

    version: str
    communicators: list[Communicator]
    operations: list[CollectiveOperation]
    ranks: list[RankState]


def rank_of_name(name: str) -> int | None:
    """Return the rank in the name of a dump file; None if the name contains no rank.

    PyTorch and torchcomms append the rank to a prefix. Other programs append a process id, such as
    `nccl_trace_rank_7_pid123`: the rank is then the last number after `rank`, before the number at the end.
    """
    after_rank = _AFTER_RANK.findall(name)
    at_end = _AT_END.fullmatch(name)
    digits = after_rank[-1] if after_rank else at_end[1] if at_end is not None else ""
    rank = int(digits) if digits else _RANK_MAX + 1
    return rank if rank <= _RANK_MAX else None


def parse_dump(data: bytes, rank: int, host: str, system_to_fabric_ns: int) -> Dump:
    """Parse a dump; add `system_to_fabric_ns` to its times. Raises ValueError if it cannot be parsed."""
    content = load_dump(data)
    entries = content.get("entries")
    if not isinstance(entries, list):
        raise ValueError("dump: expected a list 'entries'")
    groups: dict[str, int] = {}
    communicators: list[Communicator] = []
    operations: list[CollectiveOperation] = []
    for entry in entries[-MAX_OPERATIONS:]:
        if not isinstance(entry, dict):
            continue
        name = _group(entry)
        if name not in groups:
            groups[name] = len(communicators)
            communicators.append(_communicator(name, rank, content))
        operation = _operation(entry, groups[name], system_to_fabric_ns)
        if operation is not None:
            operations.append(operation)
    ranks = list(_states(operations, communicators, rank, host))
    return Dump(_text(content.get("version", "")), communicators, operations, ranks)


def load_dump(data: bytes, limit: int = MAX_BYTES) -> Mapping[str, Any]:
    """Return the dictionary in a JSON or pickle dump, which may be gzip-compressed. Raises ValueError."""
    try:
        data = _decompressed(data, limit)
        content = json.loads(data) if data.lstrip()[:1] == b"{" else load_plain(data)
    except NotPlain:
        raise
    except (ValueError, RecursionError):
        raise ValueError("dump: expected JSON or a pickle of plain data") from None
    if not isinstance(content, dict):
        raise ValueError(f"dump: {type(content).__name__}, expected a dictionary")
    return content


def _decompressed(data: bytes, limit: int) -> bytes:
    """Decompress `data` if it is gzip, else return it. Raises ValueError above `limit` bytes."""
    if data[:2] != b"\x1f\x8b":
        return data
    inflater = zlib.decompressobj(wbits=31)
    try:
        content = inflater.decompress(data, limit)
    except zlib.error as error:
        raise NotPlain(f"dump: gzip: {error}, expected a whole file") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise NotPlain(f"dump: gzip: cut or above {limit >> 20} MiB, expected a whole file below it")
    return content


def _group(entry: Mapping[str, Any]) -> str:
    """Return the name and description of an entry's process group, separated by a colon."""
    group = entry.get("process_group", entry.get("pg_name", ""))
    parts = group if isinstance(group, list | tuple) else [group]
    return ":".join(_text(part) for part in parts[:2] if part != "") or "default"


def _communicator(name: str, rank: int, content: Mapping[str, Any]) -> Communicator:
    """Return a process group as a communicator; the dump's rank list gives its size and this rank's place."""
    config = content.get("pg_config")
    group = config.get(name.partition(":")[0]) if isinstance(config, dict) else None
    ranks = group.get("ranks", "") if isinstance(group, dict) else ""
    try:
        members = json.loads(ranks) if isinstance(ranks, str) and ranks else ranks
    except (ValueError, RecursionError):
        members = []
    members = members if isinstance(members, list) else []
    return {
        "id": f"flight-recorder:{name}",
        "name": name,
        "rank": members.index(rank) if rank in members else rank,
        "ranks": min(len(members), _RANK_MAX),
        "nodes": 0,
        "nics": [],
        "gpu": None,
    }


def _operation(entry: Mapping[str, Any], communicator: int, shift_ns: int) -> CollectiveOperation | None:
    """Convert an entry to an operation; None if it has no number or no time. `shift_ns` is added to times."""
    is_p2p = entry.get("is_p2p") is True
    seq = _whole(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id")), _SEQ_MAX)
    created_ns = _whole(entry.get("time_created_ns"), _NS_MAX)
    if seq is None or not created_ns:
        return None
    started_ns = _whole(entry.get("time_discovered_started_ns"), _NS_MAX) or created_ns
    ended_ns = _whole(entry.get("time_discovered_completed_ns"), _NS_MAX)
    begin_ns = min(_NS_MAX, created_ns + shift_ns)
    return {
        "communicator": communicator,
        "seq": seq,
        "function": function_of(_text(entry.get("profiling_name", ""))),
        "algorithm": "",
        "protocol": "",
        "bytes": _bytes(entry),
        "peer": None,
        "channels": 0,
        "begin_ns": begin_ns,
        "end_ns": min(_NS_MAX, max(begin_ns, ended_ns + shift_ns)) if ended_ns else None,
        "launch_ns": max(0, started_ns - created_ns) or None,
        "kernel_ns": _duration_ns(entry.get("duration_ms")),
        "gpu_late_ns": None,
        "peer_late_ns": None,
        "network_late_ns": None,
        "flush_ns": None,
        "sampled_share": 0.0,
        "tag": 0,
        "kept": KeptReason.RECORDED,
    }


def _states(
    operations: list[CollectiveOperation], communicators: list[Communicator], rank: int, host: str
) -> Iterator[RankState]:
    for index, communicator in enumerate(communicators):
        own = [operation for operation in operations if operation["communicator"] == index]
        waiting = [operation for operation in own if operation["end_ns"] is None]
        reason = f"waits in {waiting[0]['function']} {waiting[0]['seq']}" if waiting else ""
        yield {
            "communicator": communicator["id"],
            "rank": rank,
            "host": host,
            "state": RankCondition.RUNNING,
            "operations": max((operation["seq"] for operation in own), default=-1),
            "text": reason,
            "process": 0,
            "gpu": None,
            "function": _F.UNKNOWN,
            "behind": 0,
        }


def function_of(name: str) -> CollectiveFunction:
    """Return the collective function for PyTorch's profiling name, such as nccl:_all_gather_base."""
    lower = name.lower()
    return next((function for part, function in _FUNCTIONS if part in lower), _F.UNKNOWN)


def _bytes(entry: Mapping[str, Any]) -> int:
    """Return the total size of an operation's inputs, bytes; 0 if it is unknown."""
    sizes, dtypes = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list | tuple) or not isinstance(dtypes, list | tuple):
        return 0
    total = 0
    for shape, dtype in zip(sizes[:64], dtypes[:64], strict=False):
        count = 1
        for size in shape[:16] if isinstance(shape, list | tuple) else (0,):
            count = min(count * (_whole(size, _BYTES_MAX) or 0), _BYTES_MAX)
        total += count * ITEM_BYTES.get(_text(dtype), 0)
    return min(total, _BYTES_MAX)


def _duration_ns(value: Any) -> int | None:
    is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e11
    return round(value * 1e6) if is_valid else None


def _whole(value: Any, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value <= limit else None


def _text(value: Any) -> str:
    if not isinstance(value, str | int):
        return ""
    text = value if isinstance(value, str) else str(value) if abs(value) <= _NS_MAX else ""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:_TEXT_MAX])
